"""Checks answer every wrong solution in words: no stack trace of their own, no guesses."""

import contextlib
import gc
import importlib
import inspect
import io
import math
import signal
import sys
import textwrap
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bs4 import BeautifulSoup
from torch.utils._pytree import tree_map

from autograder.assignment import ROOT, assignments
from autograder.author.examination import of_reference
from autograder.author.score import score_exercise
from autograder.grade.judging.graded_cell import graded
from autograder.handout.exercise import stub as exercise_stub
from autograder.hidden import load_hidden
from course_pkg import check, ready
from course_pkg.checking import CheckFailed, guard, registry, runner
from course_pkg.checking.case import Case
from course_pkg.checking.guard import Guarded, read_from, steps
from course_pkg.checking.registry import CHECKS, Exercise, find
from course_pkg.checking.runner import run
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.roots import roots
from course_pkg.lstm import LSTM, additive_cell_step, cell_gradient, init_forget_bias, lstm_step
from course_pkg.positions import sinusoidal_positions
from tests import course as toolbox
from tests import untested

for assignment in assignments():
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")
    importlib.import_module(f"autograder.assignments.{assignment.topic}.mistakes")
for exercise in list(CHECKS):
    load_hidden(exercise)

EXERCISES = sorted(CHECKS, key=lambda exercise: (exercise.module, exercise.name))
LSTM_STEP = Exercise.of(lstm_step)
RIGHT_STEP = lstm_step


def name(exercise: Exercise) -> str:
    return f"{exercise.module}.{exercise.name}"


def report(exercise: Exercise, solution: object, seconds: float = 5.0):
    with contextlib.redirect_stdout(io.StringIO()):
        return run(exercise, Guarded(solution, exercise.name, seconds), hidden=True)


def reference(exercise: Exercise) -> Callable:
    """What solves an exercise in course_pkg."""
    return getattr(importlib.import_module(f"course_pkg.{exercise.module}"), exercise.name)


def stub(*args, **kwargs):
    raise NotImplementedError()


ODD_RESULTS = {
    "nothing": None,
    "a number": 3.5,
    "a string": "done",
    "an empty tuple": (),
    "three tensors": (torch.zeros(2),) * 3,
    "two strings": ("h", "c"),
    "two empty tensors": (torch.zeros(0), torch.zeros(0)),
    "whole numbers": (torch.zeros(2, 3, dtype=torch.int64),) * 2,
    "truth values": torch.ones(4, 5, dtype=torch.bool),
    "complex numbers": torch.ones(4, 5, dtype=torch.complex128),
    "a scalar": torch.tensor(1.0),
    "NaN": (torch.full((3, 4), torch.nan), torch.full((3, 4), torch.nan)),
    "an array": np.zeros((3, 4)),
    "a dict": {"W": None, "b": "text"},
    "a nested tuple": (torch.zeros(3), (torch.zeros(3), None)),
    "a module": torch.nn.Linear(2, 3),
    "a class": dict,
    "a sparse tensor": torch.eye(3).to_sparse(),
    "a meta tensor": torch.empty(2, 3, device="meta"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_odd_results_are_failures_in_words(exercise):
    quarter = EXERCISES.index(exercise) % 4  # all kinds are tried on a quarter of the exercises
    for what, odd in list(ODD_RESULTS.items())[quarter::4]:

        class Odd(torch.nn.Module):
            def __init__(self, *args):
                super().__init__()

            def forward(self, *args, odd=odd, **kwargs):
                return odd

        solution = Odd if exercise.is_class else lambda *args, odd=odd, **kwargs: odd
        result = report(exercise, solution)
        assert result.share < 0.5, what
        assert "Traceback" not in result.text, what
        assert all(len(line) <= 80 for line in result.text.splitlines()), what


@pytest.mark.in_turn
@pytest.mark.parametrize("exercise", [e for e in EXERCISES if not e.is_class], ids=name)
def test_results_of_an_odd_precision_get_a_report(exercise):
    right = reference(exercise)
    for dtype in (torch.float8_e4m3fn, torch.bfloat16, torch.uint16):

        def odd(value, dtype=dtype):
            is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.detach().to(dtype) if is_float else value

        def solution(*args, odd=odd, **kwargs):
            return tree_map(odd, right(*args, **kwargs))

        assert "Traceback" not in report(exercise, solution).text, dtype


@pytest.mark.parametrize("exercise", EXERCISES, ids=name)
def test_stub_scores_nothing_and_says_so_once(exercise):
    module = inspect.getmodule(reference(exercise))
    namespace = {"__name__": "student"}
    exec(exercise_stub(Path(module.__file__)), namespace)
    result = report(exercise, namespace[exercise.name])
    assert result.share == 0
    if result.why_not:  # no check of a kernel runs without Triton
        pytest.skip(untested.TRITON)
    toolbox.assert_unsolved(exercise.name, result.text)


def test_a_gradient_that_is_no_number_is_told_as_such():
    x = torch.zeros(3, requires_grad=True)
    (x.sqrt() ** 2).sum().backward()
    with pytest.raises(Failure, match="The gradient of x should be finite, yours is not"):
        Case("any").finite_gradient(x, "x")
    with pytest.raises(Failure, match="No gradient reaches y"):
        Case("any").finite_gradient(torch.zeros(3), "y")


def test_a_random_start_is_told_by_two_calls_that_differ():
    class RandomStart(LSTM):
        def forward(self, X, state=None, lengths=None):
            if state is None:
                state = tuple(torch.randn(2, len(X), self.H, dtype=X.dtype))
            return super().forward(X, state, lengths)

    text = " ".join(report(Exercise.of(LSTM), RandomStart).text.split())
    assert "Two calls with the same input differ: outputs of the second call" in text
    assert "Is a state kept from the last call, or drawn at random?" in text


def test_class_instead_of_function_and_the_reverse():
    assert "lstm_step should be a function, yours is class" in report(LSTM_STEP, LSTM).text
    assert "LSTM should be a class, yours is function" in report(Exercise.of(LSTM), stub).text


def test_anything_instead_of_a_function():
    assert "should be a function, yours is the value 3" in report(LSTM_STEP, 3).text


def test_exception_shows_the_students_line():
    def wrong(x, h, c, W, b):
        return x @ W  # the line that fails

    text = " ".join(report(LSTM_STEP, wrong).text.split())
    assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text
    line = wrong.__code__.co_firstlineno + 1
    place = f"in line {line} of test_exception_shows_the_students_line: "  # where it is defined
    assert place + "return x @ W # the line that fails" in text


def root_of(x):
    return math.sqrt(x)


def test_exception_names_no_function_when_it_is_the_one_that_was_called():
    with pytest.raises(Failure) as caught:
        Guarded(root_of, "root_of")(-1)
    line = root_of.__code__.co_firstlineno + 1
    assert caught.value.message.endswith(f"\nin line {line}: return math.sqrt(x)")


def test_exception_in_the_package_shows_the_students_line_and_that_of_the_package():
    def lstm_step(*args):
        return LSTM_STEP.name, sinusoidal_positions(5, 3)

    text = report(LSTM_STEP, lstm_step).text
    assert "in line" in text and "return LSTM_STEP.name, sinusoidal_positions(5, 3)" in text
    assert "in course_pkg/positions.py, line" in text


def test_long_exceptions_are_cut():
    def wrong(*args):
        raise ValueError("long " * 10_000)

    assert len(report(LSTM_STEP, wrong).text) < 20_000


def test_exit_is_a_failure():
    assert "raised SystemExit" in report(LSTM_STEP, lambda *args: exit()).text


def test_endless_loop_is_stopped_even_if_it_catches_exceptions():
    def endless(b, value=1.0):
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                pass

    start = time.perf_counter()
    assert "ran for more than 0.2 s" in report(Exercise.of(init_forget_bias), endless, 0.2).text
    assert time.perf_counter() - start < 5


def test_no_time_limit_is_left_when_both_end_at_once(monkeypatch):
    monkeypatch.setattr(guard, "CLOCK_FACTOR", 1)

    def endless():
        while True:
            pass

    for _ in range(5):
        with pytest.raises(Failure, match=r"ran for more than 0\.05 s"):
            guard.attempt("endless", endless, 0.05)
        timers = (signal.ITIMER_PROF, signal.ITIMER_REAL)
        assert [signal.getitimer(timer)[0] for timer in timers] == [0.0, 0.0]


def test_a_time_limit_interrupts_nothing_but_what_it_is_for():
    """It repeats, and may come again while what has been stopped is still on its way out."""

    def quick():
        return signal.getsignal(signal.SIGPROF)

    guard.attempt("quick", quick)(signal.SIGPROF, sys._getframe())
    late = guard.attempt("quick", lambda: (quick(), sys._getframe()))
    with pytest.raises(guard.TooSlow):
        late[0](signal.SIGPROF, late[1])


def test_handlers_are_set_once_for_many_calls_and_set_back():
    numbers = signal.SIGPROF, signal.SIGALRM
    before = [signal.getsignal(number) for number in numbers]
    with guard.limits():
        within = [signal.getsignal(number) for number in numbers]
        for _ in range(2):
            guard.attempt("quick", int)
            with pytest.raises(Failure, match=r"ran for more than 0\.05 s"):
                guard.attempt("slow", lambda: time.sleep(9), 0.05)
            assert [signal.getsignal(number) for number in numbers] == within != before
        with pytest.raises(KeyError), guard.limits():
            raise KeyError
        assert [signal.getsignal(number) for number in numbers] == within
    assert [signal.getsignal(number) for number in numbers] == before


def test_a_stream_ends_as_soon_as_nobody_listens():
    ended = []

    def numbers():
        try:
            yield from range(9)
        finally:
            ended.append(True)

    stream = steps(Guarded(numbers, "numbers"))
    assert next(stream) == 0 and not ended
    frame = stream.gi_frame  # it keeps what is in it, as Python 3.12.3 does even without
    stream.close()
    assert ended and frame is not None
    assert list(steps(Guarded(numbers, "numbers"))) == list(range(9))


def test_a_report_keeps_nothing_that_a_call_has_made():
    made = []

    def wrong(*inputs):
        large = torch.ones(1000)
        made.append(weakref.ref(large))
        raise ValueError(large.sum())

    kept = report(LSTM_STEP, wrong)
    gc.collect()
    assert not kept.passed and made and not any(tensor() is not None for tensor in made)


def test_unknown_mistake_gets_numbers_but_no_guess():
    text = report(LSTM_STEP, lambda x, h, c, W, b: (0.3 * h + 0.1, 0.7 * c)).text
    assert "c_t[0, 0] should be" in text
    assert "Your output equals" not in text


def test_an_axis_too_few_is_told_where_a_size_is_1():
    def squeezes(*inputs):
        return tuple(state.squeeze() for state in additive_cell_step(*inputs))

    found = run(Exercise.of(additive_cell_step), Guarded(squeezes, "additive_cell_step"))
    told = {outcome.check.name: outcome.failure for outcome in found.outcomes}
    assert told["nothing_to_add"] is None
    assert told["values"].message.startswith("With B = 1: h_t should have shape (1, ")


def test_a_view_is_told_where_inputs_are_not_contiguous():
    def views(X, *rest):
        return additive_cell_step(X.view(-1).view(X.shape), *rest)

    found = run(Exercise.of(additive_cell_step), Guarded(views, "additive_cell_step"))
    message = {o.check.name: o.failure for o in found.outcomes}["values"].message
    assert message.startswith("With inputs that are not contiguous: ") and "view size" in message


def test_numbers_are_the_same_whether_they_are_contiguous_or_not():
    ordinary, strided = Case("numbers"), Case("numbers", strided=True)
    for draw in ("randn", "rand"):
        X, Y = getattr(ordinary, draw)(2, 3, 4), getattr(strided, draw)(2, 3, 4)
        assert torch.equal(X, Y) and X.is_contiguous() and not Y.is_contiguous()
    assert strided.integers(0, 9, 3, 4).stride() == (1, 3)


def test_the_single_size_is_that_of_the_sizes_that_are_drawn_first():
    ordinary, single = Case("sizes"), Case("sizes", single=1)
    (B, T), (D,) = single.sizes(2), single.sizes(1)
    assert [B, 1, D] == [B, T, D] and [B, D] == [ordinary.sizes(2)[0], ordinary.sizes(1)[0]]
    assert Case("sizes", single=0).narrowed([4, 3]) == [1, 3]
    assert single.lengths(1, 5).shape == (1,)


def test_every_parameter_of_a_module_must_learn():
    case, module = Case("any"), torch.nn.Linear(2, 3)
    (torch.ones(2) @ module.weight.T + module.bias.detach()).sum().backward()
    with pytest.raises(Failure, match="No gradient reaches bias: is the graph cut"):
        case.learns(module)
    module(torch.ones(2)).sum().backward()
    case.learns(module)


def test_settings_of_torch_are_left_as_they_were():
    with pytest.raises(Failure, match="f leaves gradients switched off for everything after it"):
        Guarded(lambda: torch.set_grad_enabled(False), "f")()
    with pytest.raises(Failure, match="f changes torch's default dtype"):
        Guarded(lambda: torch.set_default_dtype(torch.float64), "f")()
    with pytest.raises(Failure, match="f sets torch's seed: everything after it draws the same"):
        Guarded(lambda: torch.manual_seed(11), "f")()
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_an_input_keeps_its_requires_grad():
    with pytest.raises(Failure, match="f changes requires_grad of its input X"):
        Guarded(lambda X: X.requires_grad_().sum(), "f")(torch.ones(2))


def test_the_mode_of_a_model_is_left_as_it_was():
    class Model(torch.nn.Linear):
        def write(self):
            self.eval()

    model = Guarded(Model(1, 1), "M")
    with pytest.raises(Failure, match=r"M.write leaves self in another mode"):
        model.write()
    model.train()
    with pytest.raises(Failure, match="f changes which parameters of model learn"):
        Guarded(lambda model: model.requires_grad_(False) and None, "f")(model)


def test_a_result_without_a_graph_is_told():
    case, W = Case("graph"), torch.ones(2, requires_grad=True)
    case.trains(2 * W, "y")
    for cut in ((2 * W).detach(), 2.0):
        with pytest.raises(Failure, match="No gradient goes back from y"):
            case.trains(cut, "y")


def test_float32_result_is_accepted():
    def solution(f):
        return cell_gradient(f.float())

    assert report(Exercise.of(cell_gradient), solution).passed


def test_what_an_object_keeps_is_read_and_what_runs_code_is_guarded():
    class Holder:
        of_all = 1

        def __init__(self):
            self.kept, self.names, self.part = [1, 2], {3: "c"}, {"a": object()}

        @property
        def broken(self):
            raise KeyError("gone")

        def __getattr__(self, name):
            if name == "made":
                return 5
            raise AttributeError(name)

        def method(self):
            return self.kept

    holder = Guarded(Holder, "Holder")()
    assert (holder.kept, holder.names.get(3), holder.of_all) == ([1, 2], "c", 1)
    assert (holder.made, holder.method(), holder.part.get("b")) == (5, [1, 2], None)
    assert isinstance(holder.part.get("a"), Guarded)
    for name, text in {"broken": "Holder raised KeyError", "other": "no attribute"}.items():
        with pytest.raises(Failure, match=text):
            getattr(holder, name)
    with pytest.raises(Failure, match="raised TypeError: unhashable"):
        holder.part.get([])
    assert read_from(holder, lambda inner: [inner.kept, np.int64(3)]) == [[1, 2], 3]
    assert read_from({"a": 1}, lambda inner: inner["a"]) == 1
    with pytest.raises(Failure, match="Holder raised KeyError"):
        read_from(holder, lambda inner: inner.broken)


def test_missing_method_and_wrong_constructor():
    class Bare:
        def __init__(self, D, H):
            pass

    assert "LSTM has no attribute or method 'double'" in report(Exercise.of(LSTM), Bare).text

    class NoArguments(torch.nn.Module):
        def __init__(self):
            super().__init__()

    text = report(Exercise.of(LSTM), NoArguments).text
    assert "takes 1 positional argument but 3 were given" in " ".join(text.split())


def test_random_state_and_threads_are_the_students_own():
    torch.manual_seed(5)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    report(LSTM_STEP, lstm_step)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_nothing_reaches_stderr(capfd):
    def noisy(b, value=1.0):
        print("looking at b", file=sys.stderr)
        return init_forget_bias(b, value)

    run(Exercise.of(init_forget_bias), Guarded(noisy, "init_forget_bias"))
    captured = capfd.readouterr()
    assert captured.err == ""
    assert "looking at b" in captured.out


def test_check_prints_what_holds(capsys):
    assert check(lstm_step) is None
    assert "✓ lstm_step · values: agrees with torch.nn.LSTMCell" in capsys.readouterr().out


def test_check_shows_no_hidden_check(capsys):
    check(additive_cell_step)
    own = CHECKS[Exercise.of(additive_cell_step)].values()
    hidden = [check.name for check in own if check.hidden]
    text = capsys.readouterr().out
    assert hidden and not any(name in text for name in hidden)


def test_check_raises_one_exception_with_the_report():
    def lstm_step(x, h, c, W, b):
        return h

    with pytest.raises(CheckFailed, match="should return") as caught:
        check(lstm_step)
    assert str(caught.value) == "\n".join(caught.value._render_traceback_())


def notebook(monkeypatch) -> list[dict]:
    """Let checks believe that they run in a notebook; collect what they display there."""
    shown: list[dict] = []
    shell = SimpleNamespace(
        display_pub=SimpleNamespace(publish=lambda page, metadata: shown.append(page)),
        history_manager=SimpleNamespace(input_hist_raw=[]),
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    return shown


def test_a_notebook_shows_the_first_failure_and_folds_the_others(monkeypatch):
    def lstm_step(x, h, c, W, b):
        return h, c + 1

    shown = notebook(monkeypatch)
    with pytest.raises(CheckFailed) as caught:
        check(lstm_step)
    assert caught.value._render_traceback_() == ["5 of 5 checks of lstm_step fail."]
    assert shown[0]["text/plain"] == str(caught.value) == caught.value.report.text
    page = BeautifulSoup(shown[0]["text/html"], "html.parser")
    folded = page.details.extract()
    assert "✗ values" in page.text and "should be" in page.pre.text
    names = [check.name for check in CHECKS[LSTM_STEP].values() if not check.hidden]
    assert folded.summary.text == f"4 more checks fail: {', '.join(names[1:])}."
    assert page.pre.a is None or page.pre.a["href"] == "#" + page.pre.a.text.replace(" ", "-")
    assert f"✗ {names[1]}" in folded.text and "should be" in folded.pre.text


def test_what_passes_comes_first_in_a_notebook(monkeypatch):
    def lstm_step(x, h, c, W, b):
        i, f, g, o = W.chunk(4)
        return RIGHT_STEP(x, h, c, torch.cat([i, f, o, g]), b)

    shown = notebook(monkeypatch)
    with pytest.raises(CheckFailed):
        check(lstm_step)
    text = BeautifulSoup(shown[0]["text/html"], "html.parser").text
    assert text.index("✓ remembers") < text.index("✗ values") < text.index("2 more")


def test_a_notebook_shows_a_stub_as_one_line(monkeypatch):
    def lstm_step(x, h, c, W, b):
        raise NotImplementedError()

    shown = notebook(monkeypatch)
    with pytest.raises(CheckFailed) as caught:
        check(lstm_step)
    assert not shown
    assert caught.value._render_traceback_() == ["✗ lstm_step is not implemented yet."]


def test_a_notebook_that_is_validated_shows_the_whole_text_in_its_error(monkeypatch):
    def lstm_step(x, h, c, W, b):
        return h, c + 1

    shown = notebook(monkeypatch)
    monkeypatch.setenv("NBGRADER_EXECUTION", "validate")
    with pytest.raises(CheckFailed) as caught:
        check(lstm_step)
    assert not shown and caught.value._render_traceback_() == str(caught.value).splitlines()


def test_the_readme_shows_what_a_check_says():
    def lstm_step(x, h, c, W, b):
        i, f, g, o = (torch.cat([h, x], dim=1) @ W.T + b).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    with pytest.raises(CheckFailed) as caught:
        check(lstm_step)
    shown = "\n".join(str(caught.value).splitlines()[:6])
    assert textwrap.indent(shown, " " * 4) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_two_exercises_cannot_have_one_name():
    def lstm_step():
        """A function of another module than lstm."""

    with pytest.raises(ValueError, match="two exercises are called lstm_step, in lstm and"):
        registry.check(lstm_step)


def test_check_of_an_unknown_name_or_of_no_function():
    with pytest.raises(LookupError, match=r"no exercise is called 'stub'; there is none with"):
        check(stub)

    def lstm_stap():
        pass

    with pytest.raises(LookupError, match=r"there is lstm_step(, \w+){0,2}$"):
        check(lstm_stap)
    with pytest.raises(TypeError, match="takes a function or a class itself, got a Linear"):
        check(torch.nn.Linear(2, 3))


def test_grade_gives_points_by_weight(capsys):
    assert graded(points=5)(lstm_step) == 5

    def lstm_step_without_gradients(x, h, c, W, b):
        return tuple(state.detach() for state in lstm_step(x, h, c, W, b))

    lstm_step_without_gradients.__name__ = "lstm_step"
    failed = CHECKS[LSTM_STEP]["gradients"].weight
    total = sum(check.weight for check in CHECKS[LSTM_STEP].values())
    assert graded(points=5)(lstm_step_without_gradients) == round(5 * (1 - failed / total), 2)
    capsys.readouterr()


def test_a_check_that_cannot_run_says_so_and_is_not_counted(monkeypatch, capsys):
    own = CHECKS[LSTM_STEP]
    unable = replace(own["remembers"], why_not=lambda: "there is no GPU")
    monkeypatch.setitem(CHECKS, LSTM_STEP, own | {"remembers": unable})
    check(lstm_step)
    text = "○ lstm_step · remembers is not checked, and not counted: there is no GPU."
    assert text in capsys.readouterr().out
    assert graded(points=5)(lstm_step) == 5
    found = report(LSTM_STEP, lambda *args: None)
    assert found.share == 0 and not found.passed


def test_score_shows_where_a_check_is_at_fault(monkeypatch):
    def broken(student, case):
        return {}["missing"]

    check = CHECKS[LSTM_STEP]["values"]
    monkeypatch.setitem(CHECKS[LSTM_STEP], "values", replace(check, run=broken))
    problem = score_exercise(LSTM_STEP).problems[0]
    assert "The result cannot be checked: KeyError: 'missing'" in problem
    assert 'return {}["missing"]' in problem


def test_an_exercise_that_cannot_be_checked_earns_nothing_and_fails_nothing(monkeypatch, capsys):
    own = CHECKS[LSTM_STEP]
    unable = {n: replace(c, why_not=lambda: "there is no GPU") for n, c in own.items()}
    monkeypatch.setitem(CHECKS, LSTM_STEP, unable)
    check(lstm_step)
    text = "○ lstm_step is not checked, and not counted: there is no GPU."
    assert capsys.readouterr().out.strip() == text
    assert graded(points=5)(lstm_step) == 0
    of_reference.cache_clear()
    assert score_exercise(LSTM_STEP).why_not == "there is no GPU"
    of_reference.cache_clear()


def test_a_broken_part_is_named(monkeypatch):
    def lstm_step(x, h, c, W, b):
        return h, c

    module = importlib.import_module("course_pkg.lstm")
    monkeypatch.setattr(module, "lstm_step", lstm_step)
    with pytest.raises(CheckFailed, match="It uses your lstm_step, whose checks fail: begin there"):
        check(LSTM)
    monkeypatch.undo()
    check(LSTM)


def test_a_part_is_found_where_only_a_comprehension_uses_it():
    class Listed(LSTM):
        def forward(self, X, state=None, lengths=None):
            return [lstm_step(x, *state, self.W, self.b) for x in X]

    assert runner._exercises_used(Exercise.of(LSTM), Listed) == {LSTM_STEP: lstm_step}


def test_a_part_of_a_part_is_named_and_not_what_stands_between(monkeypatch):
    def allocate(self):
        return 0

    module = importlib.import_module("course_pkg.paged_attention")
    monkeypatch.setattr(module.BlockAllocator, "allocate", allocate)
    with pytest.raises(CheckFailed) as failed:
        check(module.BlockManager)
    assert failed.value.report.broken_parts == ["BlockAllocator"]


def test_roots_are_found_at_any_depth_and_in_circles():
    top, left, right, deep = (
        Exercise("lstm", name, False) for name in ("top", "left", "right", "deep")
    )
    uses = {top: [left, right], left: [deep, top], right: [deep], deep: [left]}
    tried = []

    def fails_if(*broken):
        return lambda one: tried.append(one) or one in broken

    assert roots(top, uses.get, fails_if(left, deep)) == ["deep"]
    assert tried.count(deep) == 1 and left not in tried and top not in tried
    assert roots(top, uses.get, fails_if(right)) == ["right"]
    assert roots(top, uses.get, fails_if()) == []


def test_a_broken_base_is_named():
    namespace = {}
    source = """
import torch
from course_pkg.kv_cache import CachedGPT as Right, Writer

class CachedGPT(Right):
    def forward(self, tokens, caches=None):
        return 2 * super().forward(tokens, caches)

class CachedWriter(CachedGPT, Writer):
    @torch.no_grad()
    def generate_with_cache(self, tokens, count, *args, **options):
        return tokens
"""
    exec(source, namespace)
    with pytest.raises(CheckFailed, match="It uses your CachedGPT, whose checks fail: begin there"):
        check(namespace["CachedWriter"])


def test_checks_are_found_by_name():
    assert find("lstm_step") == LSTM_STEP
    assert find("LSTM").is_class


def test_ready_waits_for_stubs(capsys, monkeypatch):
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)

    class Half:
        def __init__(self):
            pass

        def forward(self):
            raise NotImplementedError()

    assert ready(lstm_step, LSTM)
    assert not ready(stub, LSTM, Half)
    assert capsys.readouterr().out.startswith("First implement stub and Half above")


@pytest.mark.parametrize("execution", ["autograde", "validate"])
def test_experiments_do_not_run_in_grading(execution, capsys, monkeypatch):
    monkeypatch.setenv("NBGRADER_EXECUTION", execution)
    assert not ready(lstm_step)
    assert "do not run" in capsys.readouterr().out


class TestCase:
    def test_sizes_differ_and_repeat_by_seed(self):
        sizes = Case("a").sizes(5)
        assert len(set(sizes)) == 5 and min(sizes) >= 2
        assert sizes == Case("a").sizes(5)
        assert any(sizes != Case(other).sizes(5) for other in "bcdef")

    def test_lengths_have_both_extremes(self):
        lengths = Case("a").lengths(6, 9)
        assert lengths.min() == 1 and lengths.max() == 9 and len(lengths) == 6

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (None, "E should be a tensor of shape (2, 2), yours is None. Does it return"),
            ([1, 2], "yours is a list of 2"),
            (torch.ones(2, 3), "E should have shape (2, 2), yours has (2, 3)."),
            (torch.ones(2, 2, dtype=torch.int64), "should hold real numbers, yours holds whole"),
            (
                torch.tensor([[1.0, 1], [torch.nan, 1]]),
                "E[1, 0] should be 1, yours is nan (1 of 4 entries differ).",
            ),
            (torch.tensor([[1, 1], [1, 2.0]]), "E[1, 1] should be 1, yours is 2"),
            (torch.tensor([[1, 1], [1, 1.00004]]), "E[1, 1] should be 1, yours is 1.00004"),
        ],
    )
    def test_equal_says_what_differs(self, given, words):
        with pytest.raises(Failure) as caught:
            Case("a").equal(given, torch.ones(2, 2), "E")
        assert words in caught.value.message

    def test_equal_accepts_rounding_arrays_and_equal_nan(self):
        case = Case("a")
        case.equal(torch.ones(2) * (1 + 1e-7), torch.ones(2, dtype=torch.float64), "E")
        case.equal(np.ones(2), torch.ones(2), "E")
        case.equal(torch.tensor([torch.nan]), torch.tensor([torch.nan]), "E")
        case.equal(2.0, torch.tensor(2.0, dtype=torch.float64), "E")

    def test_raises_wants_the_right_kind(self):
        case, guarded = Case("a"), Guarded(int, "int")
        case.raises(ValueError, lambda: guarded("three"), "there is no number")
        with pytest.raises(Failure, match=r"should raise KeyError when .*: int raised ValueError"):
            case.raises(KeyError, lambda: guarded("three"), "there is no number")
        with pytest.raises(Failure, match=r"should raise ValueError when .*, yours returns"):
            case.raises(ValueError, lambda: guarded("3"), "there is a number")


def test_numbers_in_float32_are_compared_with_the_largest_of_them():
    """A sum that happens to be near zero rounds off as much as one that does not."""
    case = Case("any")
    expected = torch.tensor([3.0, -1.0 / 7e3, math.nan, math.inf], dtype=torch.float64)
    rounded = (expected - 4e-7).float()
    case.equal(rounded, expected, "y")
    case.equal(rounded.double(), expected, "y")
    with pytest.raises(Failure, match=r"y\[1\] should be -0.0001429, yours is -0.0001433"):
        case.equal(expected - 4e-7, expected, "y")
    with pytest.raises(Failure, match=r"y\[1\] should be"):
        case.equal((expected - 4e-6).float(), expected, "y")
    with pytest.raises(Failure, match=r"y\[1\] should be"):
        case.equal(rounded, expected, "y", atol=1e-7)
    case.equal(torch.empty(0, 3).float(), torch.empty(0, 3).double(), "nothing")
