"""From a request to points, and what the journal says of it; no submission is run here."""

import csv
import shutil
from argparse import ArgumentParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell

from autograder.__main__ import COMMANDS
from autograder.assignment import Assignment, CourseError
from autograder.classroom import journal, policy, regrade
from autograder.grade.batch import command as batch
from autograder.grade.batch.gradebook import Recorder
from autograder.grade.judging.verdict import Verdict
from autograder.grade.late.policy import PLACE
from autograder.grade.submission.regrade_requests import request
from autograder.grade.submission.submission import Course, Submission
from tests import course as toolbox
from tests.course import WORK, needs_sandbox

LSTM = Assignment("02_lstm")
POINTS = toolbox.points(LSTM)
pytestmark = [pytest.mark.xdist_group("reports"), needs_sandbox]


@pytest.fixture
def course(graded, tmp_path, monkeypatch) -> Path:
    """A copy of the graded course; judging again gives `buggy` 1 point more for gru_step."""
    root = shutil.copytree(graded, tmp_path / "course")
    ask(root, "buggy", "# Regrade request\n\ngru_step: my gates\nare *right*.")
    monkeypatch.setattr(batch, "on_dask", lambda tasks, *_: [(t, better(root)) for t in tasks])
    return root


def ask(root: Path, student: str, text: str) -> None:
    path = root / WORK / "submitted" / student / LSTM.name / f"{LSTM.name}.ipynb"
    nb = nbformat.read(path, as_version=4)
    nb.cells.append(new_markdown_cell(text))
    nbformat.write(nb, path)


def better(root: Path) -> Verdict:
    """The verdict on `buggy` that is kept, with a point more."""
    course = Course(root)
    for path in course.store.path(LSTM.name, "*").parent.glob("*.json"):
        found = course.store.load(LSTM.name, path.stem)
        if set(found.failed) == {"additive_cell_step", "gru_step", "init_forget_bias"}:
            found.points["check_gru_step"] += 1
            texts = [o["data"] for cell in found.outputs for o in cell if "execution_count" in o]
            texts[list(found.points).index("check_gru_step")]["text/plain"] = "1.0"
            return found
    raise LookupError


def with_a_note(root: Path) -> Verdict:
    """The same, with a doubt about gru_step."""
    found = better(root)
    found.notes["check_gru_step"] = "It names nn.GRUCell."
    return found


def by_hand(root: Path, **points: float) -> None:
    with toolbox.gradebook(root) as book:
        for exercise, score in points.items():
            grade = book.find_grade(f"check_{exercise}", LSTM.name, LSTM.name, "buggy")
            grade.manual_score, grade.needs_manual_grade = score, False
        book.db.commit()


@pytest.fixture
def run(course, capsys):
    def call(module, *options: str) -> list[str]:
        parser = ArgumentParser()
        module.add_arguments(parser)
        assert module.main(parser.parse_args([*options, "--course", str(course)])) == 0
        return capsys.readouterr().out.splitlines()

    return call


def table(lines: list[str]) -> dict[str, list[str]]:
    """The rows of a regrade by exercise."""
    return {line.split()[1]: line.split()[2:] for line in lines[1:]}


def test_requests_are_listed(course, run):
    head, line = run(regrade, LSTM.name)
    assert head.split() == ["student", "regraded", "(UTC)", "request"]
    assert line.split(maxsplit=1) == ["buggy", "gru_step: my gates are *right*."]
    run(regrade, LSTM.name, "buggy")
    _, line = run(regrade, LSTM.name)
    assert line.split()[1].startswith("20") and line.endswith("are *right*.")


def test_regrading_shows_what_changes(course, run):
    rows = table(run(regrade, LSTM.name, "buggy", "--why", "gates are right"))
    assert rows["gru_step"] == ["0", "1", "0", "1"]
    full = f"{POINTS['lstm_step']:g}"
    assert rows["lstm_step"] == [full] * 4
    before, after = map(float, rows["all"])
    assert after - before == 1
    assert set(rows) == {*POINTS, *toolbox.questions(LSTM), "all"}
    said = [line for line in run(journal, LSTM.name, "buggy") if "regrade: gates" in line]
    assert len(said) == 2 and "gru_step" in said[0] and "by checks" in said[0]
    assert said[1].split()[-7:-3] == ["regrade", f"{before:g}", f"{after:g}", "regrade:"]


def test_points_by_hand_stay_unless_told(course, run):
    by_hand(course, gru_step=0.5, init_forget_bias=1)
    rows = table(run(regrade, LSTM.name, "buggy"))
    assert rows["gru_step"] == ["0", "1", "0.5", "0.5", "0.5"]
    rows = table(run(regrade, LSTM.name, "buggy", "--keep-better"))
    assert rows["gru_step"] == ["1", "1", "0.5", "1"]
    assert rows["init_forget_bias"] == ["0", "0", "1", "1", "1"]
    with toolbox.gradebook(course) as book:
        found = {
            exercise: book.find_grade(f"check_{exercise}", LSTM.name, LSTM.name, "buggy")
            for exercise in ("gru_step", "init_forget_bias")
        }
        scores = {name: (g.manual_score, g.needs_manual_grade) for name, g in found.items()}
    assert scores == {"gru_step": (None, False), "init_forget_bias": (1, False)}
    run(journal, LSTM.name, "buggy", "--to", str(course / "journal.csv"))
    with open(course / "journal.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["points"] == "by hand"]
    said = [(row["exercise"], row["from"], row["to"], row["why"]) for row in rows]
    given = "found later: given by hand"
    assert said == [
        ("gru_step", "", "0.5", given),
        ("init_forget_bias", "", "1", given),
        ("gru_step", "0.5", "", "regrade"),
    ]


def test_a_regrade_changes_the_penalty_too(course, run):
    (course / PLACE).write_text(
        "percent_per_day = 10\n[due]\n02_lstm = 2026-11-02T23:59:00Z\n", encoding="utf-8"
    )
    stamp = course / WORK / "submitted" / "buggy" / LSTM.name / "timestamp.txt"
    stamp.write_text("2026-11-03 12:00:00 UTC")
    by_hand(course, gru_step=0.5)
    run(regrade, LSTM.name, "buggy", "--keep-better")
    with toolbox.gradebook(course) as book:
        found = book.find_submission(LSTM.name, "buggy")
        assert found.late_submission_penalty == pytest.approx(found.score / 10)
    penalties = [line for line in run(journal, LSTM.name, "buggy") if "late penalty" in line]
    assert len(penalties) == 2 and all(line.endswith("regrade") for line in penalties)
    (course / PLACE).write_text("[due]\n02_lstm = 2026-11-02T23:59:00Z\n", encoding="utf-8")
    run(policy)
    assert run(journal)[-1].endswith("policy.toml")


def test_the_journal_can_be_exported(course, run, tmp_path):
    by_hand(course, gru_step=2)
    path = tmp_path / "journal.csv"
    printed = run(journal, LSTM.name, "--to", str(path))
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == journal.COLUMNS and len(rows) == len(printed) - 1
    given = [row for row in rows if row["points"] == "by hand"]
    assert [(r["who"], r["student"], r["exercise"], r["to"]) for r in given] == [
        ("not known", "buggy", "gru_step", "2")
    ]
    with pytest.raises(CourseError, match=r"journal\.csv exists: remove it"):
        run(journal, "--to", str(path))
    assert run(journal, LSTM.name, "nobody") == ["No score has changed."]


def test_who_has_not_submitted_cannot_be_graded_again(course, run):
    with pytest.raises(CourseError, match="nobody has not submitted 02_lstm"):
        run(regrade, LSTM.name, "nobody")
    with pytest.raises(CourseError, match="the instructor's notebook cannot be read"):
        run(regrade, "02_gru")


@pytest.mark.parametrize(
    "text, asked",
    [
        ("# Regrade request\nlstm_step", "lstm_step"),
        ("**Regrade request:** lstm_step,\nplease", "lstm_step, please"),
        ("regrade request", "(no reason given)"),
        ("Regrade request: \x1b[2J gone", "2J gone"),
        ("My regrade request", ""),
        ("Regrade requests are\nfun", ""),
    ],
)
def test_what_is_a_request(text, asked):
    assert request([new_markdown_cell(text)]) == asked
    assert request([nbformat.v4.new_code_cell(text)]) == ""


def test_three_hundred_requests_flood_nobody():
    cells = [new_markdown_cell(f"# Regrade request\n{n}: {'please ' * 100}") for n in range(300)]
    asked = request(cells)
    assert asked.startswith("0: please") and " / 2: please" in asked and "3: please" not in asked
    assert asked.endswith(" / and 297 more in the notebook")
    assert len(asked) < 1000 and "\n" not in asked
    assert request(cells[:3]).count(" / ") == 2 and "more in" not in request(cells[:3])


def test_the_commands_are_listed():
    assert {"regrade", "journal"} <= set(COMMANDS)


def test_where_a_person_is_asked_for_points_by_hand_stay(course, run, monkeypatch):
    monkeypatch.setattr(
        batch, "on_dask", lambda tasks, *_: [(t, with_a_note(course)) for t in tasks]
    )
    by_hand(course, gru_step=0)
    *rows, remark = run(regrade, LSTM.name, "buggy", "--keep-better")
    assert table(rows)["gru_step"] == ["0", "1", "0", "0", "0"]
    assert remark.startswith("buggy: the points by hand stay in gru_step, which waits for a person")
    with toolbox.gradebook(course) as book:
        assert book.find_grade("check_gru_step", LSTM.name, LSTM.name, "buggy").needs_manual_grade


def test_one_that_fails_does_not_silence_the_others(course, capsys, monkeypatch):
    record = Recorder.record

    def fails(self, submission, key):
        return "no" if submission.student == "perfect" else record(self, submission, key)

    monkeypatch.setattr(Recorder, "record", fails)
    parser = ArgumentParser()
    regrade.add_arguments(parser)
    given = [LSTM.name, "perfect", "buggy", "--course", str(course)]
    assert regrade.main(parser.parse_args(given)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert table(lines)["gru_step"] == ["0", "1", "0", "1"]
    assert not any(line.startswith("perfect") for line in lines)


def test_a_submission_that_cannot_be_read_is_one_line_of_the_list(course, run, monkeypatch):
    ask(course, "perfect", "Regrade request: please")
    notebook = Submission.notebook

    def fails(self):
        if self.student == "perfect":
            raise RuntimeError("broken")
        return notebook(self)

    monkeypatch.setattr(Submission, "notebook", fails)
    _, *lines = run(regrade, LSTM.name)
    assert len(lines) == 2 and "the submission cannot be read: broken" in lines[1]
