"""What a verdict depends on: if any of those files changes, it is made anew."""

import subprocess
import sys
from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.grade.judging.verdict import trusted_files
from autograder.grade.submission.submission import INPUTS, Course

LSTM = Assignment("02_lstm")
# Stands for grading a submission: what is imported for it, with the hidden checks of an exercise.
GRADE = """
import sys
import autograder.grade.submission.submission
from autograder.hidden import load_hidden
from course_pkg.checking.registry import find
load_hidden(find("lstm_step"))
for name, module in list(sys.modules.items()):
    if name.startswith("autograder") and module.__file__:
        print(module.__file__)
"""


def test_a_verdict_depends_on_all_files_of_the_grader():
    command = [sys.executable, "-c", GRADE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {Path(line) for line in done.stdout.splitlines()}
    assert ROOT / "autograder" / "remote" / "channel.py" in imported
    assert imported <= set(trusted_files(LSTM))


def test_a_course_draws_its_inputs_once_and_keeps_them_to_itself(tmp_path):
    Course(tmp_path).work.mkdir(parents=True)
    first, path = Course(tmp_path).inputs, Course(tmp_path).work / INPUTS
    assert first > 0 and Course(tmp_path).inputs == first
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    assert Course(tmp_path).inputs != first
