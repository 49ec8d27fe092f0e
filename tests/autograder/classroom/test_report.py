"""The report on a class: what it says, how fast, and what it says when it cannot say anything."""

import csv
import re
import shutil
import sqlite3
import statistics as stdlib
import time
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from matplotlib.figure import Figure
from nbgrader import api
from nbgrader.server_extensions.formgrader import handlers

from autograder.assignment import CourseError
from autograder.classroom.reports import figures, report, results
from autograder.classroom.reports.diagnosis import incidents
from autograder.classroom.reports.errors import (
    ForeignGradebook,
    NothingCollected,
    NothingGraded,
    UnknownAssignment,
)
from autograder.classroom.reports.rendering import page
from autograder.classroom.reports.results import Classroom, Graded, Item
from autograder.classroom.reports.statistics import FEWEST, statistics, stuck
from autograder.grade.submission.submission import Course
from tests import course as toolbox
from tests.course import WORK

NAME = "02_lstm"
SERVER = "http://localhost:8888"
PROFILES = ["perfect", "buggy", "unlucky", "untouched"]
MISTAKES = {
    "additive_cell_step.replaced",
    "gru_step.z_for_the_new",
    "init_forget_bias.input_gate",
}
pytestmark = [pytest.mark.xdist_group("reports"), toolbox.needs_sandbox]


@dataclass
class Made:
    """A report that has been written."""

    text: str
    rows: dict[str, dict[str, str]]

    @property
    def words(self) -> str:
        soup = BeautifulSoup(self.text, "html.parser")
        return " ".join(soup.body.get_text(" ").split())


@pytest.fixture
def course(graded, tmp_path) -> Path:
    return shutil.copytree(graded, tmp_path / "course")


def command(root: Path, *options: str) -> int:
    parser = ArgumentParser()
    report.add_arguments(parser)
    return report.main(parser.parse_args([NAME, "--course", str(root), *options]))


def make(root: Path, *options: str) -> Made:
    assert command(root, *options) == 0
    with open(root / WORK / f"report_{NAME}.csv", newline="", encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    return Made((root / WORK / f"report_{NAME}.html").read_text(encoding="utf-8"), rows)


def change(root: Path, statement: str) -> None:
    with sqlite3.connect(root / WORK / "gradebook.db") as book:
        book.execute(statement)


def reading(root: Path) -> Classroom:
    return results.read(root, NAME, {})


def test_what_it_says_of_graded_submissions(course, capsys):
    with toolbox.gradebook(course) as book:
        book.add_student("absent", first_name="Grace", last_name="Hopper")
    shutil.copytree(course / WORK / "submitted" / "buggy", course / WORK / "submitted" / "new")
    made = make(course)
    printed = capsys.readouterr().out.split()
    assert printed == [f"{WORK}/report_{NAME}.html", f"{WORK}/report_{NAME}.csv"]

    rows = made.rows
    assert rows["absent"]["state"] == "not submitted"
    assert rows["new"]["state"] == "collected, not graded"
    for student in PROFILES:
        found = toolbox.scores(course, student, toolbox.Assignment(NAME))
        said = {name: float(rows[student][name]) if rows[student][name] else None for name in found}
        assert said == found
        assert float(rows[student]["seconds"]) > 0
    assert set(rows["buggy"]["mistakes"].split("; ")) == MISTAKES
    assert rows["perfect"]["mistakes"] == rows["perfect"]["incidents"] == ""
    assert rows["unlucky"]["incidents"] == "forbidden name; killed kernel"
    assert incidents("LSTM must not be used in this exercise") == {"forbidden call"}
    assert rows["unlucky"]["carried"] == "LSTM with lstm_step" and not rows["buggy"]["carried"]
    assert [s for s in PROFILES if rows[s]["stuck"] == "yes"] == ["untouched"]

    assert "4 graded 1 collected, not graded 1 not submitted 1 stuck 1 with incidents" in made.words
    assert "the cell state is replaced instead of added to" in made.words
    assert "A cell did not run to its end: it ended its Python process." in made.words
    assert "What has its points in spite of it Students Who lstm_step LSTM 1 unlucky" in made.words
    assert "Not submitted: absent." in made.words and "Hopper" not in made.words
    assert "Collected and not graded: new." in made.words


def test_page_stands_alone(course):
    made = make(course)
    assert made.text.count("<svg") == 2
    assert not re.findall(r"<(?:script|link|img|iframe)", made.text)
    assert not re.findall(r"url\((?!#)", made.text)


def test_links_are_the_formgraders_own(course):
    made = make(course, "--server", "https://hub.example/user/ta/")
    links = [a["href"] for a in BeautifulSoup(made.text, "html.parser").find_all("a")]
    assert all(link.startswith("https://hub.example/user/ta/formgrader/") for link in links)
    found = {_handler(link.removeprefix("https://hub.example/user/ta")) for link in links}
    assert found == {
        handlers.SubmissionHandler,
        handlers.GradebookNotebookSubmissionsHandler,
        handlers.ManageSubmissionsHandler,
    }
    with toolbox.gradebook(course) as book:
        for student in PROFILES:
            notebook = book.find_submission_notebook(NAME, NAME, student)
            assert made.rows[student]["formgrader"].endswith(f"/submissions/{notebook.id}/")


def _handler(link: str) -> type:
    """What answers in nbgrader's server: the first of its routes that fits."""
    path = urlsplit(link).path
    return next(h[1] for h in handlers.default_handlers if re.fullmatch(h[0], path))


def test_scores_written_by_nbgraders_command_have_a_time_too(course):
    shutil.rmtree(course / WORK / "graded")
    assert float(make(course).rows["perfect"]["seconds"]) > 0


def test_verdicts_may_be_gone(course):
    shutil.rmtree(course / WORK / "verdicts")
    made = make(course)
    assert made.rows["perfect"]["seconds"] == ""
    assert "No verdict is stored" in made.words


def test_an_exercise_that_is_new_since_the_grading(course):
    cell = "(select id from base_cell where name = 'check_gru_step')"
    change(course, f"delete from grade where cell_id in {cell}")
    assert {make(course).rows[student]["gru_step"] for student in PROFILES} == {""}


def test_everything_waits_for_somebody(course):
    with toolbox.gradebook(course) as book:
        for student, is_new in (("buggy", False), ("perfect", True)):
            for grade in book.find_submission_notebook(NAME, NAME, student).grades:
                if (grade.name == "check_LSTM") == is_new:
                    grade.auto_score = None
        book.db.commit()
    assert make(course).text.count("<svg") == 1


def test_ids_are_text(course):
    change(course, "update submitted_assignment set student_id = '<b>x' where student_id = 'buggy'")
    made = make(course)
    assert "<b>x" not in made.text and "&lt;b&gt;x" in made.text


@pytest.fixture
def large(course) -> Path:
    """A class of 300: copies of the four, ten who have not submitted, five not graded."""
    work = Course(course).work
    texts = {p: (work / "autograded" / p / NAME / f"{NAME}.ipynb").read_text() for p in PROFILES}
    markers = {p: (work / "graded" / NAME / f"{p}.json").read_text() for p in PROFILES}
    with toolbox.gradebook(course) as book:
        like = {p: book.find_submission(NAME, p) for p in PROFILES}
        for number in range(315):
            student = f"s{number:03}"
            book.db.add(api.Student(id=student))
            if number < 305:
                (work / "submitted" / student / NAME).mkdir(parents=True)
            if number >= 300:
                continue
            profile = PROFILES[number % 4]
            book.db.add(_like(like[profile], student))
            folder = work / "autograded" / student / NAME
            folder.mkdir(parents=True)
            (folder / f"{NAME}.ipynb").write_text(texts[profile])
            (work / "graded" / NAME / f"{student}.json").write_text(markers[profile])
        for profile in PROFILES:
            book.remove_student(profile)
            shutil.rmtree(work / "submitted" / profile)
        book.db.commit()
    return course


def _like(submission: api.SubmittedAssignment, student: str) -> api.SubmittedAssignment:
    (notebook,) = submission.notebooks
    scores = ("auto_score", "manual_score", "extra_credit", "needs_manual_grade")
    grades = [
        api.Grade(cell_id=grade.cell_id, **{name: getattr(grade, name) for name in scores})
        for grade in notebook.grades
    ]
    comments = [
        api.Comment(cell_id=comment.cell_id, auto_comment=comment.auto_comment)
        for comment in notebook.comments
    ]
    copy = api.SubmittedNotebook(notebook_id=notebook.notebook_id, grades=grades, comments=comments)
    return api.SubmittedAssignment(
        assignment_id=submission.assignment_id, student_id=student, notebooks=[copy]
    )


def test_a_class_of_300(large):
    start = time.process_time()
    made = make(large)
    seconds = time.process_time() - start
    print(f"{seconds:.1f} s, {len(made.text) / 1e3:.0f} kB")
    assert seconds < 20
    assert len(made.rows) == 315
    counts = "300 graded 5 collected, not graded 10 not submitted 75 stuck 75 with incidents"
    assert counts in made.words
    for row in list(made.rows.values())[:300]:
        profile = PROFILES[int(row["student"][1:]) % 4]
        assert (set(row["mistakes"].split("; ")) == MISTAKES) == (profile == "buggy")
        assert (row["stuck"] == "yes") == (profile == "untouched")
        assert (row["incidents"] != "") == (profile == "unlucky")
    assert (
        "the cell state is replaced instead of added to replaced 75 s001 and 74 more" in made.words
    )
    assert "forbidden name: 75" in made.words and "killed kernel: 75" in made.words


def a_class(*scores: tuple[float, ...], name: str = "ex") -> Classroom:
    """A class with these scores in exercises of four points."""
    items = [Item(f"{name}_{n}", f"check_{name}_{n}", 4, True) for n in range(len(scores[0]))]
    graded = [
        Graded(str(n), "", None, {i.name: x for i, x in zip(items, each, strict=True)})
        for n, each in enumerate(scores)
    ]
    return Classroom(NAME, items, graded, [], [])


def drawn(monkeypatch, draw, given) -> Figure:
    """The figure that would have been written."""
    monkeypatch.setattr(figures, "_svg", lambda figure: figure)
    figure = draw(given)
    plt.close(figure)
    return figure


@pytest.mark.parametrize("name", ["ex", "apply_relative_position_bias_to_a_shifted_window"])
@pytest.mark.parametrize("draw", [figures.scores, lambda c: figures.exercises(statistics(c))])
def test_titles_are_whole(monkeypatch, draw, name):
    figure = drawn(monkeypatch, draw, a_class((1.123456, 4), (2, 4), name=name))
    figure.draw_without_rendering()
    box = figure.axes[0].title.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert box.y0 >= 0 and box.y1 <= figure.bbox.y1


@pytest.mark.parametrize(
    ("scores", "title"),
    [
        (((1, 4, 2), (2, 4, 4)), "ex_0 is the hardest: 38% of its points on average"),
        (((1, 4, 1), (2, 4, 2)), "How many got all points, some and none"),
        (((1, 4, 1.01), (2, 4, 2)), "How many got all points, some and none"),  # 38 % both
        (((4, 4, 4), (4, 4, 4)), "How many got all points, some and none"),
        (((1,), (2,)), "How many got all points, some and none"),
    ],
)
def test_of_equally_hard_exercises_none_is_the_hardest(monkeypatch, scores, title):
    figure = drawn(monkeypatch, figures.exercises, statistics(a_class(*scores)))
    assert figure.axes[0].get_title(loc="left") == title


def test_points_are_rounded_and_words_agree(monkeypatch):
    made = a_class((1.23456, 0.1), (2.34567, 0.1), (3.98765, None))
    text = page(made, {}, SERVER)
    words = " ".join(BeautifulSoup(text, "html.parser").get_text(" ").split())
    assert "lies between 1.89 and 3.22 points" in words and "The median is 2.45 of 8" in words
    assert "1 answer to grade by hand" in words and "1 of them does" in words


def test_difficulty_and_discrimination():
    exercises = [Item(name, f"check_{name}", points, True) for name, points in [("a", 2), ("b", 4)]]
    question = Item("why", "why", 3, False)
    a, b = [0, 1, 2] * 4, [4, 0, 1, 2, 3, 4, 0, 0, 2, 4, 1, 1]
    graded = [
        Graded(str(n), "", None, {"a": x, "b": y, "why": None if n else 3})
        for n, (x, y) in enumerate(zip(a, b, strict=True))
    ]
    found = statistics(Classroom(NAME, [*exercises, question], graded, [], []))
    assert [s.mean for s in found[:2]] == pytest.approx([sum(a) / 24, sum(b) / 48])
    assert (found[0].none, found[0].part, found[0].full) == (4, 4, 4)
    assert found[0].discrimination == pytest.approx(stdlib.correlation(a, b))
    assert found[2].waiting == 11 and found[2].mean is found[2].discrimination is None
    few = Classroom(NAME, exercises, graded[: FEWEST - 1], [], [])
    assert {s.discrimination for s in statistics(few)} == {None}
    assert [(g.student, names) for g, names in stuck(few)] == [("6", ["a", "b"])]


def test_unknown_assignment(course, capsys):
    parser = ArgumentParser()
    report.add_arguments(parser)
    assert report.main(parser.parse_args(["02_lsmt", "--course", str(course)])) == 1
    said = capsys.readouterr().err
    assert said.startswith("There is no report: there is no assignment '02_lsmt'")
    assert "only 02_lstm: give one of these" in said
    with pytest.raises(UnknownAssignment):
        results.read(course, "02_lsmt", {})


def test_a_folder_that_is_no_course(tmp_path):
    with pytest.raises(
        CourseError, match=r"holds no nbgrader_config.py: name the course's folder with --course"
    ):
        command(tmp_path)


def test_nothing_collected(course):
    for folder in ("submitted", "autograded"):
        shutil.rmtree(course / WORK / folder)
    (course / WORK / "gradebook.db").unlink()
    with pytest.raises(NothingCollected, match=f"nbgrader collect {NAME}"):
        reading(course)
    assert not (course / WORK / "gradebook.db").exists()


@pytest.mark.parametrize("statement", ["delete from grade", "update grade set auto_score = null"])
def test_nothing_graded(course, statement):
    change(course, statement)
    with pytest.raises(NothingGraded, match=f"4 .* none is graded: .* grade {NAME}"):
        reading(course)


def test_gradebook_of_another_course(course, capsys):
    change(course, "update assignment set course_id = 'history'")
    with pytest.raises(ForeignGradebook, match=r"'history', .* names 'sequence_models'"):
        reading(course)
    assert command(course) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_gradebook_of_another_version(course):
    change(course, "update base_cell set name = 'check_old' where name = 'check_gru_step'")
    with pytest.raises(ForeignGradebook, match=r"check_gru_step, check_old.*generate_assignment"):
        reading(course)


def test_a_damaged_gradebook(course, capsys):
    (course / WORK / "gradebook.db").write_text("not a database, but long enough for a header" * 9)
    assert command(course) == 1
    assert "file is not a database" in capsys.readouterr().err


def test_damaged_notebooks_and_markers(course):
    (course / WORK / "autograded" / "buggy" / NAME / f"{NAME}.ipynb").write_text("{")
    (course / WORK / "graded" / NAME / "perfect.json").write_text("{")
    made = make(course)
    assert made.rows["buggy"]["mistakes"] == "" and made.rows["perfect"]["score"] == "31.0"
