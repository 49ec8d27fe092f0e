"""Sabotage: what is taken out of a notebook, and which claims count as refuted."""

import argparse

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author import sabotage
from autograder.author.master import parts, sabotages

MASTER = """# Title

```sabotage the mean is left out
- x.mean() → - 0
```

```python
x = f(2) - x.mean()
```
"""
CELLS = [
    "import torch\nfrom course_pkg.checking.notebook.claim import claim",
    """w = torch.ones(1, requires_grad=True)
optimiser = torch.optim.SGD([w], lr=0.1)
for _ in range(50):
    optimiser.zero_grad()
    w.square().sum().backward()
    optimiser.step()""",
    'claim("what is left", w.item(), below={"no step": 0.5})',
    'claim("two", 2, above={"one": 1})\nclaim("three", 3, equals=3)',
]


@pytest.fixture
def assignment(tmp_path, monkeypatch):
    monkeypatch.setattr(Assignment, "solved", property(lambda self: tmp_path / "solved.ipynb"))
    monkeypatch.setattr(Assignment, "master", property(lambda self: tmp_path / "02_lstm.md"))
    nb = new_notebook(cells=[new_code_cell(source) for source in CELLS])
    found = Assignment("02_lstm")
    found.master.write_text("# Title\n")
    sabotage.execute(nb)
    nbformat.write(nb, found.solved)
    return found


def test_a_fence_says_what_is_missing_and_leaves_nothing_in_the_notebook(tmp_path):
    path = tmp_path / "02_x.md"
    path.write_text(MASTER, encoding="utf-8")
    (found,) = sabotages(path)
    assert found.sentence == "the mean is left out" and found.changes == (("- x.mean()", "- 0"),)
    assert all("sabotage" not in part.source and "→" not in part.source for part in parts(path))
    path.write_text(MASTER.replace(" the mean is left out", ""), encoding="utf-8")
    with pytest.raises(CourseError, match=r"02_x\.md:3: write ```sabotage what is missing"):
        sabotages(path)


def test_a_claim_with_a_control_that_always_holds_is_named(assignment, monkeypatch, capsys):
    monkeypatch.setattr(sabotage, "assignments", lambda names: [assignment])
    assert sabotage.main(_arguments()) == 1
    said = capsys.readouterr().out
    assert "a nothing is learned: 2 hold" in said
    assert "  -  what is left" in said and "  +  two" in said and "  +  three" in said
    assert "holds whatever is missing: 02_lstm: two\n" in said
    assert said.count("whatever is missing") == 1


def test_what_a_fence_takes_out_must_stand_once(assignment):
    assignment.master.write_text("```sabotage no steps\nrange(50) → range(0)\n```\n")
    _, without = sabotage.variants(assignment)
    sabotage.run(without)
    assert without.holds == {("what is left", 0): False, ("two", 0): True, ("three", 0): True}
    assignment.master.write_text("```sabotage no claims\nclaim( → print(\n```\n")
    with pytest.raises(CourseError, match="'claim\\(' stands 3 times in the notebook's code"):
        list(sabotage.variants(assignment))


@pytest.mark.parametrize("found", assignments(), ids=lambda found: found.name)
def test_what_the_fences_of_the_course_take_out_stands_there(found):
    """One after the other, as they are put in: what an earlier one has taken out is gone."""
    fences = [each.sentence for each in sabotages(found.master)]
    assert [each.sentence for each in sabotage.variants(found)][1:] == fences


def test_classic_mistakes_take_the_place_of_their_exercises():
    every = list(sabotage.variants(Assignment("01_rnn"), with_mistakes=True))
    assert len(every) > 3
    cells = {cell.id for cell in nbformat.read(Assignment("01_rnn").solved, as_version=4).cells}
    for each in every[1:]:
        if ": " in each.sentence:
            added = [cell for cell in each.nb.cells if cell.id not in cells]
            assert [cell.id for cell in added] == [sabotage.PUT_IN]
            namespace = {}
            exec(added[0].source, namespace)
            exercise = each.sentence.partition(":")[0]
            assert namespace[exercise].__name__ != exercise  # a mistake has a name of its own


def test_what_cannot_be_put_in_is_told(assignment):
    nb = nbformat.read(assignment.solved, as_version=4)
    nb.cells.insert(0, new_code_cell("nothing", id=sabotage.PUT_IN))
    with pytest.raises(CourseError, match="could not run: NameError: name 'nothing'"):
        sabotage.run(sabotage.Variant("nothing", nb))


def _arguments():
    return argparse.Namespace(assignments=[], mistakes=False, jobs=1, json=None)
