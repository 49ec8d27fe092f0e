"""Feedback: what nbgrader's command writes begins with points, what is wrong, and comments."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup, Tag

from autograder.assignment import Assignment
from autograder.classroom.reports.diagnosis import causes, findings, incidents
from autograder.classroom.reports.formulas import markdown2html
from tests import course as toolbox
from tests.course import WORK
from tests.submissions import lstm

LSTM = Assignment("02_lstm")
STUDENTS = ["buggy", "unlucky", "untouched"]
COMMAND = re.compile(r"\\[A-Za-z]{2}")  # of TeX; those of regular expressions have one letter
pytestmark = [pytest.mark.xdist_group("reports"), toolbox.needs_sandbox]


@pytest.fixture(scope="module")
def pages(graded, tmp_path_factory) -> dict[str, BeautifulSoup]:
    """What each student gets after a person has graded and commented some answers."""
    root = shutil.copytree(graded, tmp_path_factory.mktemp("feedback") / "course")
    shutil.rmtree(root / WORK / "autograded" / "perfect")  # for time
    with toolbox.gradebook(root) as book:
        for name, comment in (("gru_step", "Look at $z_t$. **See me.**"), ("shortcut", "<i>So?")):
            book.find_comment(name, LSTM.name, LSTM.name, "buggy").manual_comment = comment
        grade = book.find_grade("shortcut", LSTM.name, LSTM.name, "buggy")
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        book.db.commit()
    toolbox.nbgrader(root, "generate_feedback", LSTM.name)
    return {
        student: BeautifulSoup(_page(root, student).read_text(encoding="utf-8"), "html.parser")
        for student in STUDENTS
    }


def _page(root: Path, student: str) -> Path:
    return root / WORK / "feedback" / student / LSTM.name / f"{LSTM.name}.html"


def summary(page: BeautifulSoup) -> dict[str, Tag]:
    return {row.code.text: row for row in page.select("#summary tbody tr")}


def words(tag: Tag) -> str:
    return " ".join(tag.get_text(" ").split())


def test_summary_has_the_points(pages):
    points, questions = toolbox.points(LSTM), toolbox.questions(LSTM)
    for student, page in pages.items():
        rows = summary(page)
        assert list(rows) == [*points, *questions]
        for name, most in points.items():
            earned = {"untouched": 0, "buggy": lstm.SCORES.get(name, most)}
            if student in earned:
                assert words(rows[name].select_one(".points")) == f"{earned[student]:g} / {most:g}"
    assert pages["buggy"].h3.text == "02_lstm: 24.5 of 40 points"
    assert "A person has yet to grade answers for 6 points." in words(pages["buggy"])
    assert words(summary(pages["buggy"])["shortcut"]) == "shortcut 1.5 / 3 So?"
    assert words(summary(pages["buggy"])["input_gate"]) == "input_gate – / 3 Not graded yet."
    assert "yet to grade" not in words(pages["untouched"])


def test_summary_says_what_is_wrong(pages):
    rows = summary(pages["buggy"])
    found = [
        [words(p) for p in finding.select("p")] for finding in rows["gru_step"].select(".finding")
    ]
    assert found[0][0] == "values: agrees with torch.nn.GRUCell"
    assert found[0][2] == "Your output equals what you get when z and 1 - z are mixed up."
    assert found[-1][0] == "gradients: passes the same gradients back as torch.nn.GRUCell"
    assert re.match(r"gradient of x at \[0, 0\] should be 0.1357, yours is -0.0943", found[-1][1])
    assert not rows["lstm_step"].select(".finding")
    rows = summary(pages["unlucky"])
    assert "lstm_step uses torch.nn.LSTMCell, in line" in words(rows["lstm_step"])
    assert "gru_step is not defined" in words(rows["gru_step"])
    assert not rows["chrono_bias"].select(".finding")


def test_summary_says_what_went_wrong_while_grading(pages):
    problem = "Something went wrong while grading: A cell did not run to its end: it ended its"
    assert words(pages["unlucky"].select_one(".summary")).count(problem) == 1
    assert not any(problem in words(pages[student]) for student in ("buggy", "untouched"))


def test_summary_links_to_cells_and_headings(pages):
    for page in pages.values():
        places = {tag.get("id") for tag in page.find_all(id=True)}
        places |= {tag.get("name") for tag in page.select("a[name]")}
        links = [a["href"] for a in page.select("#summary a")]
        assert links and {link.removeprefix("#") for link in links} <= places
    assert pages["buggy"].select_one('#summary a[href="#heading-The-GRU-step"]')


def test_summary_shows_comments(pages):
    comment = summary(pages["buggy"])["gru_step"].select_one(".comment")
    assert comment.math and comment.strong.text == "See me."


def test_nothing_hidden_is_shown(pages):
    for page in pages.values():
        text = page.get_text()
        assert "BEGIN HIDDEN TESTS" not in text and "from autograder.grade" not in text
        assert "Rubric" not in text and "MARK SCHEME" not in text
    untouched = pages["untouched"].get_text()
    assert "BEGIN SOLUTION" not in untouched and "(1 - z) * n + z * h" not in untouched


def test_formulas_need_no_network(pages):
    for page in pages.values():
        assert not page.select("script, link, iframe, img[src^=http]")
        assert len(page.find_all("math")) > 100
        cells = [c for c in page.select(".rendered_html") if not c.select("code, pre")]
        assert cells and not [c for c in cells if "$" in c.text]


def test_every_formula_of_the_course_is_mathml():
    for path in sorted(LSTM.solved.parents[1].glob("*/*.ipynb")):
        for cell in nbformat.v4.reads(path.read_text(encoding="utf-8")).cells:
            if cell.cell_type == "markdown":
                page = BeautifulSoup(markdown2html({}, cell.source), "html.parser")
                unread = [m for m in page.find_all("math") if "\\" in m.text]
                unread += [code for code in page.find_all("code") if COMMAND.search(code.text)]
                assert not unread, f"{path.name}: {unread[0]}"


def test_a_formula_that_cannot_be_read_stays_as_it_is():
    assert markdown2html({}, r"so $a^<b_c_d$ is") == "<p>so <code>a^&lt;b_c_d</code> is</p>\n"
    assert "<math" in markdown2html({}, "\\begin{align}\na &= b\n\\end{align}")


def test_a_heading_with_a_formula():
    page = BeautifulSoup(markdown2html({}, "## Why $\\sqrt{d}$ matters"), "html.parser")
    assert page.h2.math.msqrt and ":" not in str(page)


REPORT = """\
✗ lstm_step · values: agrees with torch.nn.LSTMCell
  c_t[0, 0] should be -0.1327, yours is -0.143 (18 of 18 entries differ).
  Your output equals what you get when the gates are read in torch's order i, f,
  g, o.
  See "The order of the gates" above.
✓ lstm_step · remembers: keeps the cell state when f = 1 and i = 0
✗ lstm_step · gradients: passes the same gradients back as torch.nn.LSTMCell
  lstm_step ran for more than 10 s.
! lstm_step uses torch.nn.LSTMCell, in line 3 of its cell, 'return right(*parts)
  if parts else nn.LSTMCell': write it yourself; a grader will look at it.
"""


def test_reports_are_read_back():
    first, second, third = findings("lstm_step", REPORT)
    assert first.title == "values: agrees with torch.nn.LSTMCell"
    assert first.lines == [
        "c_t[0, 0] should be -0.1327, yours is -0.143 (18 of 18 entries differ).",
        "Your output equals what you get when the gates are read in torch's order i, f, g, o.",
    ]
    assert first.see == "The order of the gates"
    assert second.lines == ["lstm_step ran for more than 10 s."] and second.see is None
    assert third.title == "" and third.lines == [
        "lstm_step uses torch.nn.LSTMCell, in line 3 of its cell, 'return right(*parts) if parts "
        "else nn.LSTMCell': write it yourself; a grader will look at it."
    ]
    sentence = "the gates are read in torch's order i, f, g, o"
    assert causes(REPORT, {sentence, "the gates are read"}) == {sentence}
    assert incidents(REPORT) == {"time-out", "forbidden name"}
