"""`make quick` chooses what a change touches."""

from pathlib import Path

from autograder.assignment import assignments
from tests.quick import modules, topics


def test_a_module_brings_its_own_tests_or_its_folders():
    (mend,) = modules([Path("autograder/grade/submission/mend.py")])
    assert mend == "tests/autograder/grade/submission/test_mend.py"
    assert modules([Path("course_pkg/lstm.py")]) == ["tests/course_pkg/test_lstm.py"]
    found = modules([Path("course_pkg/checking/guard.py")])
    assert "tests/course_pkg/checking/test_checks.py" in found
    found = modules([Path("autograder/grade/errors.py")])
    assert found and not any("test_nbgrader" in name for name in found)
    assert modules([Path("tests/browser/test_day.py")]) == ["tests/browser/test_day.py"]
    assert modules([Path("README.md"), Path("solutions/02_lstm.md"), Path("gone/test_x.py")]) == []


def test_every_file_of_an_assignment_brings_its_scoreboard():
    (lstm,) = [a.name for a in assignments() if a.topic == "lstm"]
    for name in (
        "course_pkg/lstm.py",
        "course_pkg/checks/lstm.py",
        "autograder/assignments/lstm/hidden.py",
        "autograder/assignments/lstm/mistakes.py",
        "autograder/assignments/lstm/alternatives.py",
        f"solutions/{lstm}.md",
    ):
        assert topics([Path(name)]) == [lstm]
    assert topics([Path("autograder/grade/submission/mend.py"), Path("README.md")]) == []
