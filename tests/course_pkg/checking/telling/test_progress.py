"""Progress: what has passed in this session, or in the notebooks of a folder, and what is next."""

from dataclasses import replace

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook, new_output

from autograder.assignment import Assignment
from autograder.author.execution import execute
from course_pkg import check, lstm, progress, rnn
from course_pkg.checking import CheckFailed
from course_pkg.checking.registry import CHECKS, find
from course_pkg.checking.telling import session

LSTM, RNN = Assignment("02_lstm"), Assignment("01_rnn")


@pytest.fixture(autouse=True)
def new_session():
    session.FOUND.clear()
    session._failures.clear()


def fails(solution) -> None:
    with pytest.raises(CheckFailed):
        check(solution)


def gru_step(x, h, W_x, W_h, b_x, b_h):
    """It goes twice as far as it should; where z = 1 it should not move."""
    new = lstm.gru_step(x, h, W_x, W_h, b_x, b_h)
    return new + (new - h).round(decimals=12)


def stub(*args):
    raise NotImplementedError()


def row(table: object, exercise: str) -> list[str]:
    """The words of a row in the text of a table."""
    (line,) = (line for line in str(table).splitlines() if f" {exercise} " in line)
    return line.split()


def test_it_shows_the_assignment_of_the_last_check_in_its_order():
    check(rnn.rnn_step)
    check(lstm.lstm_step)
    fails(gru_step)
    gru = CHECKS[find("gru_step")]
    visible = [check for check in gru.values() if not check.hidden]
    passing = gru["remembers"].weight + gru["gradients"].weight  # a rounded number has no gradient
    share = passing / sum(check.weight for check in visible)
    table = progress()
    assert [cells[1] for cells in table.rows[1:-1]] == [part.name for part in lstm_exercises()]
    assert row(table, "lstm_step") == ["✓", "lstm_step", "5", "of", "5"]
    assert row(table, "gru_step")[:2] == ["✗", "gru_step"]
    assert float(row(table, "gru_step")[2]) == round(4 * share, 2) > 0
    assert row(table, "LSTM") == ["○", "LSTM", "0", "of", "6"]
    assert row(table, "sum") == ["sum", f"{5 + round(4 * share, 2):g}", "of", "31"]
    assert "Next: additive_cell_step." in str(table)
    assert all(len(line) <= 80 for line in str(table).splitlines())
    assert row(progress("rnn"), "rnn_step")[0] == "✓"


def lstm_exercises():
    return [exercise for exercise in CHECKS if exercise.module == "lstm"]


def test_a_notebook_shows_a_table():
    check(lstm.lstm_step)
    page = BeautifulSoup(progress()._repr_html_(), "html.parser")
    rows = [[cell.text for cell in row.find_all("td")] for row in page.find_all("tr")]
    assert rows == [list(cells) for cells in progress().rows]
    assert "The grader runs others as well" in page.text


def test_a_stub_counts_as_not_tried_even_after_a_pass():
    stub.__name__ = "lstm_step"
    check(lstm.lstm_step)
    fails(stub)
    assert row(progress("lstm"), "lstm_step")[0] == "○"


def test_what_cannot_be_checked_here_is_not_next(monkeypatch):
    exercise = find("additive_cell_step")
    unable = {n: replace(c, why_not=lambda: "no GPU") for n, c in CHECKS[exercise].items()}
    monkeypatch.setitem(CHECKS, exercise, unable)
    check(lstm.additive_cell_step)
    table = progress()
    assert row(table, "additive_cell_step") == ["–", "additive_cell_step", "0", "of", "2"]
    assert "Next: lstm_step." in str(table) and "– cannot be checked" in str(table)


def test_after_all_exercises_come_the_questions():
    for exercise in lstm_exercises():
        check(getattr(lstm, exercise.name))
    assert "Next: the questions." in str(progress()) and row(progress(), "sum")[1] == "31"


def test_what_is_not_there_is_said(tmp_path):
    for nothing in (progress(), progress(folder=tmp_path)):
        assert BeautifulSoup(nothing._repr_html_(), "html.parser").td.text in str(nothing)
    assert "Run a check, or name the assignment" in str(progress())
    assert f"There is no NN_topic/NN_topic.ipynb in {tmp_path}." in str(nothing)
    with pytest.raises(LookupError, match="there is no assignment 'lstn'; did you mean lstm"):
        progress("lstn")


def test_a_folder_is_one_table_of_what_was_saved_and_what_was_checked_since(tmp_path):
    for assignment in (LSTM, RNN):
        nb = nbformat.read(assignment.student, as_version=4)
        cells = {cell.id: cell for cell in nb.cells}
        if assignment is LSTM:
            passed = {"topic": "lstm", "exercise": "LSTM", "share": 1.0, "why_not": None}
            cells["check_LSTM"].outputs = [
                new_output("display_data", data={"text/plain": "✓"}, metadata={"check": passed})
            ]
            half = passed | {"exercise": "gru_step", "share": 0.5}
            cells["check_gru_step"].outputs = [
                new_output("display_data", data={"text/plain": "✗"}, metadata={"check": half}),
                new_output("error", ename="CheckFailed", evalue="", traceback=[]),
            ]
            cells["check_chrono_bias"].outputs = [
                new_output("error", ename="CheckFailed", evalue="a stub", traceback=[])
            ]
        path = tmp_path / assignment.name / f"{assignment.name}.ipynb"
        path.parent.mkdir()
        nbformat.write(nb, path)
    check(lstm.additive_cell_step)
    _, first, second, total = progress(folder=tmp_path).rows
    assert first == ("01_rnn", "0 of 8", "0 of 26", "rnn_step")
    assert second == ("02_lstm", "2 of 9", "10 of 31", "lstm_step")
    assert total == ("sum", "2 of 17", "10 of 57", "")


def test_jupyter_saves_with_the_notebook_what_a_folder_reads(tmp_path):
    sources = [
        "from course_pkg import check, lstm, progress",
        "check(lstm.lstm_step)",
        "progress()",
    ]
    graded = {"nbgrader": {"grade": True, "grade_id": "check_lstm_step", "points": 5}}
    cells = [new_code_cell(source) for source in sources]
    cells[1].metadata = graded
    nb = new_notebook(cells=cells)
    execute(nb)
    assert "<table>" in nb.cells[2].outputs[0]["data"]["text/html"]
    path = tmp_path / "02_lstm" / "02_lstm.ipynb"
    path.parent.mkdir()
    nbformat.write(nb, path)
    assert progress(folder=tmp_path).rows[1] == ("02_lstm", "1 of 1", "5 of 5", "the questions")
