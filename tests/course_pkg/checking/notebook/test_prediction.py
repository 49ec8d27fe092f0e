"""Predictions: noted in silence, shown once above the claims of the experiment below them."""

import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook

from autograder.author.execution import claims, execute
from course_pkg import claim, predict
from course_pkg.checking.notebook import prediction

IMPORTS = "from matplotlib import pyplot\nfrom course_pkg import claim, predict"
FIRST = 'pyplot.plot([0, 1])\nclaim("x", 1, above=0)\nclaim("y", 2, above=0)'
SECOND = 'claim("x", 5, above=0)'  # other cells, about something of the same name
THIRD = 'claim("x", 6, above=0)'


@pytest.fixture(autouse=True)
def new_session(monkeypatch):
    for name, empty in (("_predictions", {}), ("_answers", {}), ("_asked", None)):
        monkeypatch.setattr(prediction, name, empty)


def said(capsys) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if "predicted" in line]


def test_a_notebook_shows_it_between_the_figure_and_the_claims_also_when_run_again():
    figure, x, y = "a figure", "✓ x: 1, above 0", "✓ y: 2, above 0"
    run = [
        ('predict("Which?", "<b> & the\\n second ")', []),
        (FIRST, [figure, "You predicted: <b> & the second", x, y]),
        ('predict("And here?", "the first")', []),
        (FIRST, [figure, "You predicted: <b> & the second", x, y]),
        (SECOND, ["You predicted: the first", "✓ x: 5, above 0"]),
        ('predict("And here?", "the last")', []),
        (SECOND, ["You predicted: the last", "✓ x: 5, above 0"]),
        (THIRD, ["✓ x: 6, above 0"]),
    ]
    nb = new_notebook(cells=[new_code_cell(source) for source in (IMPORTS, *(s for s, _ in run))])
    execute(nb)
    assert [[seen(output) for output in cell.outputs] for cell in nb.cells[1:]] == [
        expected for _, expected in run
    ]
    assert [found["what"] for found in claims(nb)] == list("xyxyxxx")  # as seeds count them


def seen(output) -> str:
    page = output.data.get("text/html")
    return "a figure" if page is None else BeautifulSoup(page, "html.parser").get_text()


def test_an_empty_one_prints_nothing_and_ends_the_waiting_of_the_one_before(capsys):
    predict("Which?", "the second")
    predict("How many?", " ")
    claim("x", 1, above=0)
    assert capsys.readouterr().out == "✓ x: 1, above 0\n"


def test_one_that_waits_is_shown_with_the_next_outcome_and_the_last_wins(capsys):
    predict("Which?", "the first")
    predict("Which?", "the second")
    assert capsys.readouterr().out == ""
    claim("x", 1, above=0)
    claim("y", 1, above=0)
    assert said(capsys) == ["You predicted: the second"]
    predict("Which?", "")
    claim("x", 1, above=0)
    assert said(capsys) == []


def test_an_experiment_that_was_run_too_early_shows_it_the_next_time(capsys):
    for expected in ([], ["You predicted: the first"]):
        claim("x", 1, above=0)
        claim("y", 1, above=0)
        assert said(capsys) == expected
        predict("Which?", "the first")


def test_a_long_one_is_wrapped(capsys):
    predict("Which?", "word " * 50)
    claim("x", 1, above=0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80 and lines[1].startswith("  word")


@pytest.mark.parametrize("given", [("Which?", 10), (["Which?"], "a"), ("Which?", None)])
def test_what_is_no_text_is_an_error_that_says_so(given):
    with pytest.raises(
        TypeError, match=r"should be text between quotation marks, such as .*; it is"
    ):
        predict(*given)
