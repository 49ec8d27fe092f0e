"""The builder: what it refuses, that it is deterministic, and that it notices what is stale."""

import ast
import json
import shutil
from dataclasses import replace

import nbformat
import numpy as np
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook

from autograder.assignment import ROOT, Assignment, CourseError, assignments, reference
from autograder.author import build, execution, notebook, trial
from autograder.author.master import ExerciseFence, parts
from autograder.author.mutants import mutants
from autograder.handout import exercise
from course_pkg.checking.registry import Exercise
from course_pkg.checking.telling import naming
from course_pkg.lstm import cell_gradient

LSTM = Assignment("02_lstm")
GOOD = """# Title

```python
x = 1
```

```hint
Which sizes meet?

~~~python
a @ b


~~~
```

```hint
Transpose [[rnn]]'s.
```

```python exercise="lstm_step" points=4
```

```question name="why" points=2
Why?
---
- because
```
"""


@pytest.fixture
def master(tmp_path):
    def write(text: str):
        path = tmp_path / "02_lstm.md"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_parts_of_a_master(master):
    found = parts(master(GOOD))
    assert [type(part).__name__ for part in found] == ["Text", "Code", "ExerciseFence", "Question"]
    assert (found[2].name, found[2].points, found[2].line) == ("lstm_step", 4, 21)
    assert found[2].hints == (
        "Which sizes meet?\n\n~~~python\na @ b\n\n\n~~~",
        "Transpose [[rnn]]'s.",
    )
    assert (found[3].text, found[3].rubric, found[3].line) == ("Why?", "- because", 24)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" points=4", "", r":21: points are missing: write points=4 in the fence"),
        (" points=4", " points=many", r":21: not understood: .*points=many; write exercise="),
        ("exercise=", "excercise=", r":21: not understood: excercise; write exercise="),
        (" points=2", "", r":24: points are missing"),
        ('name="why" ', "", r":24: a question needs a name"),
        ("---\n- because\n", "", r":24: a question needs its rubric below a line with ---"),
        ("- because\n```", "- because\n", r":24: there is no ``` below that closes this fence"),
        ("points=4\n```", "points=4\npass\n```", r":21: the fence of 'lstm_step' must be empty"),
        ('name="why"', 'name="lstm_step"', r":24: 'lstm_step' occurs twice; rename one"),
        ("Transpose [[rnn]]'s.\n", "", r":17: a hint is text between ```hint and ```"),
        ("```hint", '```hint name="a"', r":7: a hint is text between ```hint and ```"),
        ("~~~", "```", r":7: a hint is text between ```hint and ```; code in it is between ~~~"),
        ("rnn]]'s.\n```", "rnn]]'s.\n```\nSo.", r":7: a hint stands directly above the fence"),
        ('```python exercise="lstm_step" points=4\n```', "", r":7: a hint stands directly above"),
    ],
)
def test_a_broken_master_is_reported_with_its_line(master, old, new, message):
    assert old in GOOD
    with pytest.raises(CourseError, match="02_lstm.md" + message):
        parts(master(GOOD.replace(old, new)))


def test_an_exercise_twice_is_reported(master):
    fence = '\n```python exercise="lstm_step" points=4\n```\n'
    with pytest.raises(CourseError, match=r":\d+: 'lstm_step' occurs twice"):
        parts(master(GOOD + fence))


@pytest.fixture
def changed_master(monkeypatch, tmp_path):
    """Let the builder read a changed copy of 02_lstm's master."""

    def change(old: str, new: str) -> None:
        text = LSTM.master.read_text(encoding="utf-8")
        assert old in text
        copy = tmp_path / "02_lstm.md"
        copy.write_text(text.replace(old, new, 1), encoding="utf-8")
        for picture in LSTM.master.parent.glob("*.svg"):
            shutil.copy(picture, tmp_path)
        monkeypatch.setattr(Assignment, "master", property(lambda self: copy))

    return change


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'exercise="gru_step"',
            'exercise="gru_stop"',
            r"there is no 'gru_stop' in course_pkg.lstm",
        ),
        ("(lstm.svg)", "(missing.svg)", r"there is no picture .*missing.svg"),
        ("Assignment [[rnn]]", "Assignment 01", r"'Assignment 01' goes by number; write \[\[topic"),
        ("Assignment [[rnn]]", "Assignment\n01", r"goes by number"),
        ("Assignment [[rnn]]", "RNNs (01)", r"'\(01\)' goes by number"),
        ("Assignment [[rnn]]", "01_rnn", r"'01_rnn' goes by number"),
        ("[[rnn]]", "[[rn]]", r"there is no assignment \[\[rn\]\]; rnn"),
    ],
)
def test_a_master_that_does_not_fit_the_module_is_reported(changed_master, old, new, message):
    changed_master(old, new)
    with pytest.raises(CourseError, match=message):
        notebook.notebook(LSTM)
        notebook.pictures(LSTM)


def test_an_exercise_without_a_fence_is_reported(monkeypatch):
    known = exercise.exercises(reference("lstm"))
    monkeypatch.setattr(notebook, "exercises", lambda module: {**known, "peephole": ""})
    message = r":1: 'peephole' of course_pkg.lstm has no fence; add ```py"
    with pytest.raises(CourseError, match=message):
        notebook.notebook(LSTM)


def test_an_unknown_assignment_is_reported():
    with pytest.raises(CourseError, match=r"there is no solutions/99_none.md; there is "):
        assignments(["99_none"])


def test_hints_name_other_assignments_by_topic():
    fence = ExerciseFence("lstm_step", 4, 1, ("As in [[rnn]].",))
    assert notebook.with_numbers(LSTM, fence).hints == ("As in 01.",)


def test_hints_stand_folded_between_the_solution_and_the_check():
    cells = notebook.notebook(LSTM).cells
    (fence,) = (part for part in parts(LSTM.master) if getattr(part, "name", "") == "gru_step")
    place = [cell.id for cell in cells].index("gru_step")
    assert cells[place + 1].cell_type == "markdown" and cells[place + 2].id == "check_gru_step"
    shown = BeautifulSoup(cells[place + 1].source, "html.parser").find_all("summary")
    numbers = range(1, len(fence.hints) + 1)
    assert [summary.text for summary in shown] == [f"Hint {n} of gru_step" for n in numbers]


def test_building_twice_changes_nothing():
    before = {path: path.read_bytes() for path in (LSTM.solved, LSTM.student)}
    assert build.build(LSTM) == []
    assert before == {path: path.read_bytes() for path in before}


def test_mistakes_run_again_only_when_code_has_changed(monkeypatch):
    build.build(LSTM)
    monkeypatch.setattr(build, "files", lambda assignment: pytest.fail("they run"))
    assert build._graders(LSTM) == []
    monkeypatch.setattr(build, "graders_depend_on", lambda topic: "other code")
    with pytest.raises(pytest.fail.Exception, match="they run"):
        build._graders(LSTM)


def test_what_is_found_stale_is_built_again(monkeypatch, tmp_path):
    last = tmp_path / "last.txt"
    last.write_text("as it is now")
    monkeypatch.setattr(build, "_last", lambda assignment: last)
    monkeypatch.setattr(build, "stale", lambda assignment: [tmp_path / "02_lstm.npz"])
    assert build.check(LSTM) == [tmp_path / "02_lstm.npz"]
    assert not last.exists()


@pytest.fixture
def copies(monkeypatch, tmp_path):
    """Let the builder write copies of 02_lstm's notebooks."""
    for name in ("solved", "student"):
        folder = shutil.copytree(getattr(LSTM, name).parent, tmp_path / name)
        copy = folder / LSTM.student.name
        monkeypatch.setattr(Assignment, name, property(lambda self, copy=copy: copy))


def test_an_instructor_can_build_without_hints(copies, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_graders", lambda assignment: [])
    monkeypatch.setattr(build, "stale", lambda assignment: [])
    monkeypatch.setattr(build.empty_solutions, "table", lambda assignment: {})
    data = tmp_path / "course_pkg" / "checks" / "data" / "02_lstm.json"
    monkeypatch.setattr(build.write_outline, "ROOT", tmp_path)
    files = [data, LSTM.solved, LSTM.student]
    assert build.build(LSTM, with_hints=False) == files
    assert build.check(LSTM, with_hints=False) == [] and build.check(LSTM) == files[:2]
    assert {known["hints"] for known in json.loads(data.read_text()).values()} == {0}
    text = LSTM.student.read_text()
    assert "Hint 1 of" not in text and "The classic mistake: open it" in text


def test_a_changed_notebook_is_stale(copies):
    assert build.check(LSTM) == []
    LSTM.student.write_text(LSTM.student.read_text().replace("# YOUR CODE HERE", "pass", 1))
    assert build.check(LSTM) == [LSTM.student]
    LSTM.solved.write_text(LSTM.solved.read_text().replace("lstm_step", "lstm_stop", 1))
    assert LSTM.solved in build.check(LSTM)
    nb = nbformat.read(LSTM.solved, as_version=4)
    nb.metadata["course"]["outputs_depend_on"]["course_pkg/tools/plot.py"] = "something else"
    nbformat.write(nb, LSTM.solved)
    assert build.check(LSTM) == [LSTM.solved]


def test_outputs_of_checks_are_written_without_running_the_notebook(copies, monkeypatch):
    before = {path: path.read_bytes() for path in (LSTM.solved, LSTM.student)}
    nb = nbformat.read(LSTM.solved, as_version=4)
    checks = [cell for cell in nb.cells if cell.id.startswith("check_")]
    for cell in checks:
        cell.outputs = []
    nbformat.write(nb, LSTM.solved)
    assert len(checks) == 9 and build.check(LSTM) == [LSTM.solved]
    monkeypatch.setattr(build, "execute", None)
    assert build.build(LSTM) == [LSTM.solved]
    assert before == {path: path.read_bytes() for path in before}


def test_what_runs_again_says_why(copies, monkeypatch, capsys):
    nb = nbformat.read(LSTM.solved, as_version=4)
    del nb.metadata["course"]["outputs_depend_on"]["course_pkg/tools/plot.py"]
    nbformat.write(nb, LSTM.solved)
    monkeypatch.setattr(build, "execute", lambda nb: None)
    build.build(LSTM)
    assert "notebook: course_pkg/tools/plot.py changed …" in capsys.readouterr().out


def test_runs_at_other_seeds_are_a_reason_to_run_it_again(copies, monkeypatch):
    assert build.check(LSTM) == []
    runs = [replace(run, claims=[]) for run in trial.kept(LSTM)[:2]]
    monkeypatch.setattr(build, "kept", lambda assignment, nb: runs)
    assert build.check(LSTM) == [LSTM.solved]


def test_a_bound_that_is_neither_a_control_nor_has_a_reason_is_refused(monkeypatch):
    bounds = {"a": {"above": 1}, "b": {"below": {"chance": 3}}, "c": {"above": 1, "why": "closed"}}

    def claimed(nb):
        nb.cells = [new_code_cell("from course_pkg.checking.notebook.claim import claim")]
        nb.cells += [
            new_code_cell(f"claim({what!r}, 2, **{each!r})") for what, each in bounds.items()
        ]
        nb.cells += [new_code_cell("claim('d', True)\nclaim('e', 2, equals=2)")]
        execution.execute(nb)

    monkeypatch.setattr(build, "execute", claimed)
    with pytest.raises(CourseError, match=r"neither a control .* nor says why=\.\.\.: a$"):
        build._execute(LSTM, new_notebook())


def test_ids_are_unique_and_say_what_a_cell_is():
    ids = [cell.id for cell in nbformat.read(LSTM.student, as_version=4).cells]
    assert len(set(ids)) == len(ids)
    assert {"lstm_step", "check_lstm_step"} <= set(ids)


def test_solution_markers_go_around_bodies_or_where_the_reference_has_them():
    sources = exercise.exercises(reference("lstm"))
    step = sources["lstm_step"]
    assert step.index('"""\n    ### BEGIN SOLUTION') < step.index("torch.cat")
    assert step.endswith("    ### END SOLUTION")
    lstm = exercise.cleared(sources["LSTM"])
    assert "self.W = nn.Parameter" in lstm and "torch.where" not in lstm


def test_a_stub_keeps_signatures_and_docstrings_alone():
    text = exercise.stub(ROOT / "course_pkg" / "lstm.py")
    original = (ROOT / "course_pkg" / "lstm.py").read_text(encoding="utf-8")
    for stubbed, node in zip(ast.parse(text).body, ast.parse(original).body, strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert ast.get_docstring(stubbed) == ast.get_docstring(node)
    assert text.count("raise NotImplementedError()") == 9
    assert "torch.sigmoid" not in text


def test_an_exercise_without_docstring_is_reported(tmp_path):
    module = tmp_path / "bare.py"
    module.write_text("def bare(x):\n    return x\n")
    with pytest.raises(ValueError, match=r"bare.py:1: bare has no docstring"):
        exercise.exercises([module])


def an_entry(observed: np.ndarray, dtype: str = "float64", what: str = "c_t") -> naming.Entry:
    return naming.Entry("step", 3, "values", "f is forgotten", what, "", dtype, observed)


def test_fingerprints_survive_writing_and_reading(tmp_path):
    path = tmp_path / "data" / "02_lstm.npz"
    entry = an_entry(np.array([0.5, np.nan]))
    naming.save(path, [entry])
    (found,) = naming.load(path)
    assert found[:-1] == entry[:-1]
    assert np.array_equal(found.observed, entry.observed, equal_nan=True)
    first = path.read_bytes()
    naming.save(path, [entry])
    assert path.read_bytes() == first


@pytest.mark.parametrize("scale", [1e-12, 1.0, 5.8, 1e9])
def test_another_processor_changes_no_fingerprint(scale):
    """Sums of the same numbers in another order, as another processor takes them."""
    generator = np.random.default_rng(0)
    x = scale * generator.standard_normal((200, 7, 5))
    for dtype, coarse in (("float32", True), ("float64", False)):
        numbers = x.astype(dtype)
        there = an_entry(numbers[::-1].cumsum(axis=0, dtype=dtype)[-1], dtype)
        here = an_entry(numbers.sum(axis=0), dtype)
        assert not np.array_equal(here.observed, there.observed)
        assert naming.same(here, there)
        # What is wrong by a hundred-thousandth is another mistake, unless float32 hides it.
        assert naming.same(here, an_entry(here.observed * (1 + 1e-5), dtype)) is coarse


def test_fingerprints_differ_in_shape_kind_and_what_is_not_finite():
    one = an_entry(np.array([1.5, np.inf, np.nan]))
    assert naming.same(one, one)
    for other in ([1.5, np.inf], [1.5, -np.inf, np.nan], [1.5, 3.0, np.nan], [1.5, np.inf, 0.0]):
        assert not naming.same(one, an_entry(np.array(other)))
    assert not naming.same(an_entry(np.array([1, 2])), an_entry(np.array([1, 3])))
    assert not naming.same(an_entry(np.array([1, 2])), an_entry(np.array([1.0, 2.0])))
    assert not naming.same(one, an_entry(one.observed, what="h_t"))


@pytest.mark.parametrize(
    ("values", "peculiar"),
    [
        (np.zeros(20), False),
        (np.full((3, 4), np.nan), False),
        (np.array([1.0, 0.0]), False),
        (np.array(0.25), True),
        (np.tril(np.ones((4, 5))), True),
    ],
)
def test_only_peculiar_values_name_a_bug(values, peculiar):
    assert naming.identifies(values) is peculiar


def test_mutants_change_one_thing_each():
    found = list(mutants(Exercise.of(cell_gradient)))
    names = [mutant.name for mutant in found]
    assert "G[:, t - 1] = G[:, t] * f[:, t] → G[:, t - 1] = G[:, t] / f[:, t]" in names
    assert "return G → (left out)" in names
    assert len(names) >= 15
    assert all(mutant.solution.__name__ == "cell_gradient" for mutant in found)
