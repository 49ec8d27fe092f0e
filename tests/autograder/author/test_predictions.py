"""Predictions of a master: what is refused, and the cells that are made of the others."""

import ast
import subprocess
import sys

import pytest

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author import predictions
from autograder.author.master import Code, ExerciseFence, Prediction, Question, parts
from autograder.author.notebook import notebook

LSTM = Assignment("02_lstm")
WAY = """# Title

```predict
Which curve of [[rnn]] is higher,
and where do they cross?
```

**What to expect.** The first.

```python
from course_pkg import claim, predict

claim("x", 1, above=0)
```
"""
LONG = (
    'Which of the "two" curves is higher, and after how many of the learner\'s steps do they cross?'
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("```predict", "```predict points=2", "a prediction is a question in plain text"),
        ("Which curve of [[rnn]] is higher,\nand where do they cross?\n", "", "a prediction is a"),
        ("Which curve", r"Where does $\\alpha$", "a prediction is a question in plain text"),
        ("cross?\n```", "cross?\n", "a prediction is a"),
    ],
)
def test_a_broken_fence_is_reported_with_its_line(tmp_path, old, new, message):
    path = tmp_path / "02_lstm.md"
    assert old in WAY
    path.write_text(WAY.replace(old, new), encoding="utf-8")
    with pytest.raises(CourseError, match=f"02_lstm.md:3: {message}"):
        parts(path)


def test_it_is_read_as_one_line(tmp_path):
    path = tmp_path / "02_lstm.md"
    path.write_text(WAY, encoding="utf-8")
    assert parts(path)[1] == Prediction(
        "Which curve of [[rnn]] is higher, and where do they cross?", line=3
    )


@pytest.mark.parametrize(
    "below",
    [
        [],
        [Code("x = 1")],
        [Prediction("And?", 9), Code("claim(1)")],
        [ExerciseFence("lstm_step", 4, 9), Code("claim(1)")],
        [Question("why", 2, "Why?", "- because", 9), Code("claim(1)")],
    ],
)
def test_below_it_is_an_experiment_that_claims(below):
    found = [Code("from course_pkg import predict"), Prediction("Which?", 5), *below]
    with pytest.raises(CourseError, match=r"a.md:5: no experiment below this prediction"):
        predictions.demand_outcomes("a.md", found)
    predictions.demand_outcomes("a.md", [*found[:2], Code("y = 1"), Code("claim(1)")])


def test_it_is_imported():
    with pytest.raises(CourseError, match=r"a.md:5: predict is not imported; add it"):
        predictions.demand_outcomes("a.md", [Prediction("Which?", 5), Code("claim(1)")])


def test_its_cell_is_the_students_own_and_no_part_of_what_outputs_depend_on(monkeypatch):
    (cell, *_) = [c for c in notebook(LSTM).cells if c.source.startswith("predict(")]
    assert cell.metadata == {} and cell.id.startswith("predict-")
    before = notebook(LSTM).metadata
    monkeypatch.setattr(predictions, "cell", lambda question: f"predict({question!r}, '')")
    assert notebook(LSTM).metadata == before


def test_cells_hold_the_questions_and_are_formatted():
    asked = [
        p.question for a in assignments() for p in parts(a.master) if isinstance(p, Prediction)
    ]
    asked += [LONG, LONG.replace("'", ""), LONG.replace('"', ""), "Why?"]
    cells = [predictions.cell(question) for question in asked]
    for question, cell in zip(asked, cells, strict=True):
        (call,) = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
        assert [ast.literal_eval(argument) for argument in call.args] == [question, ""]
    text = "\n".join(cells) + "\n"
    arguments = ["format", "--stdin-filename", "cell.py", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments], input=text, capture_output=True, text=True
    )
    assert done.stdout == text
