"""Claims: figures first, a sentence for the student, an exception in tests; seeds measure them."""

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author import notebook, trial
from autograder.author.execution import claims, execute
from autograder.author.master import Code
from course_pkg import claim
from course_pkg.checking.notebook.claim import ClaimFailed

DRAWN = """\
import sys
from matplotlib import pyplot
from course_pkg import claim
seed = 0  # change it
pyplot.plot([0, seed])
claim("seed", seed, below=2)
"""


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (95.234, {"above": 90}, "✓ BLEU: 95.23, above 90"),
        (0.5, {"above": 0.25, "below": 1}, "✓ BLEU: 0.5, above 0.25 and below 1"),
        (7, {"equals": 7}, "✓ BLEU: 7, equal to 7"),
        ([3, 1, 2], {"above": 0}, "✓ BLEU: 1, above 0 (the closest of 3)"),
        (torch.tensor([1.0, 5.0]), {"below": [2, 9]}, "✓ BLEU: 1, below 2 (the closest of 2)"),
        (
            95,
            {"above": {"copied": 3, "word by word": 71.4}},
            "✓ BLEU: 95, above 71.4 (word by word), 3 (copied)",
        ),
        (
            [1, 5],
            {"above": {"a": [0, 1], "b": 0.5}, "below": 9, "why": "9 is published"},
            "✓ BLEU: 1, above 0.5 (b), 0 (a) and below 9 (the closest of 2); 9 is published",
        ),
        (True, {}, "✓ BLEU"),
        (torch.tensor(True), {}, "✓ BLEU"),
    ],
)
def test_what_holds_is_said_in_one_line(value, bounds, text, capsys):
    claim("BLEU", value, **bounds)
    assert capsys.readouterr().out == text + "\n"


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (89.0, {"above": 90}, "✗ BLEU: expected above 90, came out 89"),
        (90.0, {"above": 90}, "✗ BLEU: expected above 90, came out 90"),
        (90.00001, {"below": 90}, "✗ BLEU: expected below 90, came out 90.00001"),
        (float("nan"), {"above": 1}, "✗ BLEU: expected above 1, came out nan"),
        ([3, -1, 2], {"above": 0}, "✗ BLEU: expected above 0, came out -1 (the worst of 3)"),
        ([1, 2], {"equals": [1, 3]}, "✗ BLEU: expected equal to 3, came out 2 (the worst of 2)"),
        (2, {"below": {"a": 1, "b": 3}}, "✗ BLEU: expected below 1 (a), 3 (b), came out 2"),
        (False, {}, "✗ expected: BLEU; this is not so"),
    ],
)
def test_what_does_not_hold_is_a_sentence_for_students_and_an_error_in_tests(
    value, bounds, text, capsys, monkeypatch
):
    with pytest.raises(ClaimFailed) as error:
        claim("BLEU", value, **bounds)
    assert f"✗ {error.value}" == text
    capsys.readouterr()
    monkeypatch.delenv("PYTEST_VERSION")
    claim("BLEU", value, **bounds)
    said = capsys.readouterr().out
    assert said.startswith(text + "\n") and "another seed" in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_control_is_kept_as_one_and_a_reason_as_a_reason():
    """Sabotage must bring down what has a control; what has a closed form may stand."""
    cells = [
        "from course_pkg import claim",
        "claim('BLEU', 95, above={'word by word': 71.4})",
        "claim('error', 0, below=1e-5, why='closed form')",
        "claim('both', 2, above={'a': 1}, below=3, why='published')",
    ]
    nb = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    execute(nb)
    found = [(each.get("beside"), each.get("why")) for each in claims(nb)]
    assert found == [({"word by word": 71.4}, None), (None, "closed form"), ({"a": 1}, "published")]


def test_controls_without_a_name_are_refused():
    with pytest.raises(ValueError, match="no control is given: above"):
        claim("BLEU", 1, above={})


def test_the_figure_stands_above_the_claim_and_seeds_see_what_came_out():
    for seed, holds in ((0, True), (3, False)):
        nb = new_notebook(cells=[new_code_cell(DRAWN)])
        run = trial.run_notebook(nb, "00_drawn", seed)
        figure, text = nb.cells[0].outputs
        assert "image/png" in figure.data and text.data["text/plain"].startswith("✓✗"[not holds])
        (found,) = run.claims
        assert found == {"what": "seed", "holds": holds, "value": seed, "margin": 2 - seed}
        assert run.held is holds and not run.errors


def test_a_value_that_json_has_not_is_shown_all_the_same():
    source = DRAWN.replace('claim("seed", seed, below=2)', 'claim("x", float("nan"), above=1)')
    run = trial.run_notebook(new_notebook(cells=[new_code_cell(source)]), "00_drawn", 0)
    assert run.claims == [{"what": "x", "holds": False, "value": "nan", "margin": "nan"}]


def test_an_error_in_a_cell_is_no_held_claim():
    nb = new_notebook(cells=[new_code_cell("1 / 0"), new_code_cell(DRAWN)])
    run = trial.run_notebook(nb, "00_drawn", 1)
    assert run.errors == ["ZeroDivisionError: division by zero"] and not run.held
    assert len(run.claims) == 1


def test_the_table_marks_what_another_seed_may_cross():
    def run(seed, *margins):
        claims = [
            {"what": f"claim {n}", "holds": margin > 0, "value": 0, "margin": margin}
            for n, margin in enumerate(margins)
        ]
        return trial.Run("00_drawn", seed, claims=claims)

    lines = trial.table([run(0, 5, 1, 2), run(1, 5.1, 3, 2), run(2, 5, -1, 2)]).splitlines()[2:]
    assert [line.endswith(" <") for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("assert 1 < 2", "is no claim"),
        ("torch.testing.assert_close(x, y)", "is no claim"),
        ("claim('a', 1, above=0)\nplot.curves({})", "draws after a claim"),
        ("claim('a', 1, above=0)\n_, ax = pyplot.subplots()", "draws after a claim"),
        ("def show():\n    plot.heatmap(A)\nclaim('a', 1, above=0)\nshow()", "draws after a claim"),
    ],
)
def test_masters_draw_first_and_claim(source, problem):
    assignment = Assignment("02_lstm")
    with pytest.raises(CourseError, match=problem):
        notebook._demand_claims(assignment, [Code(source)])
    notebook._demand_claims(assignment, [Code("plot.curves({})\nclaim('a', 1, above=0)")])


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_every_notebook_has_a_seed_that_can_be_changed(assignment):
    nb = nbformat.read(assignment.solved, as_version=4)
    assert sum(len(trial.SEED.findall(cell.source)) for cell in nb.cells) == 1
