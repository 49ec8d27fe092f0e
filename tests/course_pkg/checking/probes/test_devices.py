"""Where a notebook uses a GPU, checks make each call there too; here a second device stands in."""

import contextlib
import importlib
import inspect
import io
import time
from unittest.mock import patch

import pytest
import torch

from autograder.assignment import assignments
from autograder.hidden import load_hidden
from course_pkg.checking import guard, runner
from course_pkg.checking.probes import devices
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.checking.runner import check, run_here
from course_pkg.checking.telling.failure import Failure
from course_pkg.checking.telling.report import CheckFailed
from course_pkg.flash_kernels import triton_flash_forward
from course_pkg.kv_cache import CachedAttention
from course_pkg.lstm import LSTM, lstm_step
from course_pkg.memory import dnc_allocation
from course_pkg.paged_attention import PagedKVCache
from course_pkg.tools import launch
from course_pkg.visual_attention import hard_attention
from tests.second_device import META, second_device

for assignment in assignments():
    importlib.import_module(f"course_pkg.checks.{assignment.topic}")
for exercise in list(CHECKS):
    load_hidden(exercise)

SECOND_DEVICE = inspect.getfile(inspect.unwrap(second_device))
EXERCISES = sorted(CHECKS, key=lambda exercise: (exercise.module, exercise.name))


@pytest.fixture(autouse=True)
def only_students_lines(monkeypatch):
    monkeypatch.setattr(guard, "_NOT_STUDENT", (*guard._NOT_STUDENT, SECOND_DEVICE))


def report(reference: object, solution: object | None = None, place=META):
    """Check a solution on the second device too; the reference itself when none is given."""
    with contextlib.redirect_stdout(io.StringIO()), only_calls_there():
        return run_here(Exercise.of(reference), solution or reference, hidden=True, place=place)


@contextlib.contextmanager
def only_calls_there():
    """Let the second device hold numbers where a call is repeated on it; elsewhere it is slow.

    Kernels have other tiles there, as on a GPU.
    """

    def there(function):
        return lambda *args, **kwargs: second_device()(function)(*args, **kwargs)

    copies = patch.object(devices, "copies", there(devices.copies))
    tiles = patch.object(launch, "SIDE", 32)
    repeat = patch.object(guard.Guarded, "_repeat", tiles(there(guard.Guarded._repeat)))
    with copies, repeat:
        yield


@pytest.mark.in_turn
@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: f"{e.module}.{e.name}")
def test_references_work_on_another_device(exercise):
    reference = getattr(importlib.import_module(f"course_pkg.{exercise.module}"), exercise.name)
    found = report(reference)
    assert found.passed, found.text


def test_a_tensor_without_its_device_is_named_with_its_line():
    def lstm_step_of_student(x, h, c, W, b):
        return lstm_step(x, h + torch.zeros(h.shape), c, W, b)

    assert report(lstm_step, lstm_step_of_student, place=None).passed
    text = report(lstm_step, lstm_step_of_student).text
    assert "On meta, lstm_step raised RuntimeError: Expected all tensors to be on the same" in text
    assert "return lstm_step(x, h + torch.zeros(h.shape), c, W, b)" in " ".join(text.split())
    assert "It works on the CPU" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_part_that_fails_there_is_where_to_begin(monkeypatch):
    def careless(x, h, c, W, b):
        return lstm_step(x, h + torch.zeros(h.shape), c, W, b)

    monkeypatch.setitem(LSTM.forward.__globals__, "lstm_step", careless)
    assert "It uses your lstm_step, whose checks fail: begin there." in report(LSTM).text
    assert report(LSTM, place=None).passed


def test_what_a_module_makes_and_does_not_register_stays_on_the_cpu():
    class WithAList(LSTM):
        def __init__(self, D, H):
            super().__init__(D, H)
            self.zero = [torch.zeros(())]

        def forward(self, X, state=None, lengths=None):
            return super().forward(X + self.zero[0].expand(X.shape), state, lengths)

    class WithABuffer(LSTM):
        def __init__(self, D, H):
            super().__init__(D, H)
            self.register_buffer("zero", torch.zeros(()), persistent=False)

        def forward(self, X, state=None, lengths=None):
            return super().forward(X + self.zero.expand(X.shape), state, lengths)

    class KeepsAResult(LSTM):
        seen = None

        def forward(self, X, state=None, lengths=None):
            X = X if self.seen is None or self.seen.shape != X.shape else X + 0 * self.seen
            self.seen = X.detach()
            return super().forward(X, state, lengths)

    assert report(LSTM, WithAList, place=None).passed
    assert "X + self.zero[0].expand(X.shape)" in report(LSTM, WithAList).text
    assert report(LSTM, WithABuffer).passed
    assert report(LSTM, KeepsAResult).passed


def test_results_must_be_the_same_and_lie_there():
    def back_home(x, h, c, W, b):
        return tuple(part.cpu() for part in lstm_step(x, h, c, W, b))

    def other_numbers(x, h, c, W, b):
        h_t, c_t = lstm_step(x, h, c, W, b)
        return (h_t + 0.01, c_t) if x.is_meta else (h_t, c_t)

    def other_shape(x, h, c, W, b):
        h_t, c_t = lstm_step(x, h, c, W, b)
        return (h_t[:1], c_t) if x.is_meta else (h_t, c_t)

    assert "the result should be there too, yours is on cpu" in report(lstm_step, back_home).text
    assert "On meta: the result at [0, 0] should be" in report(lstm_step, other_numbers).text
    assert "On meta the result is (1, " in report(lstm_step, other_shape).text


@pytest.mark.parametrize(
    "dtype, least",
    [(torch.float64, 1e-5), (torch.complex128, 1e-5), (torch.float32, 2e-5), (torch.float16, 3e-2)],
)
def test_the_order_of_sums_is_forgiven(dtype, least):
    here = torch.ones(3, dtype=dtype)
    devices.demand_same([here * (1 + least / 3)], [here], here.device, random=False)
    with pytest.raises(Failure, match=r"On cpu: the result\[0\]|On cpu: the result at \[0\]"):
        devices.demand_same([here * (1 + 4 * least)], [here], here.device, random=False)
    devices.demand_same([here * 2, {"n": 7}], [here, {"n": 8}], here.device, random=True)
    with pytest.raises(Failure, match="has 1 members, not 2"):
        devices.demand_same([here], [here, here], here.device, random=True)


def test_random_results_need_not_be_the_same():
    def with_other_draws(e, a, sample=True):
        if e.is_meta and sample:
            torch.rand(1)
        return hard_attention(e, a, sample)

    assert report(hard_attention, with_other_draws).passed


def test_equal_numbers_may_come_in_any_order():
    def the_other_way_round(usage):
        return dnc_allocation(usage.flip(1)).flip(1)

    def more_there(usage):
        return dnc_allocation(usage) * (1 + usage.is_meta / 100)

    assert report(dnc_allocation, the_other_way_round).passed
    here, there = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[1.0, 2.0, 0.0]])
    devices.demand_same((there,), (here,), here.device, random=False, ordered=False)
    for different in (2 * there, there.T):
        with pytest.raises(Failure, match="On cpu"):
            devices.demand_same([different], [here], here.device, random=False, ordered=False)
    failed = [
        each.check.name for each in report(dnc_allocation, more_there).outcomes if each.failure
    ]
    assert {"values", "equally_used", "total"} <= set(failed)


def test_what_depends_on_the_device_is_called_in_memory_only():
    called = []

    def f(x):
        called.append(x.is_meta)
        return x

    with second_device():
        there = guard.Guarded(f, "f", place=META)
        guard.here(there)(torch.ones(2))
        assert not any(called)
        there(torch.ones(2))
        assert any(called)
    assert guard.here(f) is f and guard.in_any_order(f) is f  # a proxy, say
    assert report(triton_flash_forward).passed  # though tiles have other sides there


def test_a_call_that_is_slow_there_is_let_off():
    called = []

    def slow(x):
        called.append(x.is_meta)
        while x.is_meta:
            time.sleep(0.001)
        return x

    with second_device():
        guarded = guard.Guarded(slow, "slow", seconds=0.01, place=META)
        for _ in range(3):
            assert guarded(torch.ones(2)).tolist() == [1, 1]
    assert called.count(True) == 1
    with pytest.raises(Failure, match=r"slow ran for more than 0\.01 s"):
        guard.Guarded(slow, "slow", seconds=0.01)(torch.ones(2, device=META))


def test_views_of_one_memory_stay_views():
    class Slots(PagedKVCache):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.window = self.K.flatten(2, 3)

        def write(self, layer, slots, K, V):
            self.window[layer, :, slots] = K.permute(1, 0, 2)
            S = self.V.shape[3]
            self.V[layer, :, slots // S, slots % S] = V.permute(1, 0, 2)

        def gather(self, layer, blocks, length):
            assert self.window.untyped_storage().nbytes() == self.K.untyped_storage().nbytes()
            self.window += 1
            K, V = super().gather(layer, blocks, length)
            self.window -= 1
            return K - 1, V

    assert report(PagedKVCache, Slots).passed


def test_copies_of_modules_share_nothing_but_what_their_modules_share():
    module = torch.nn.ModuleList([torch.nn.LSTM(4, 5), torch.nn.Linear(3, 3)])
    module.tied, module.table = module[1].weight, {"rows": [1, torch.ones(2)]}
    (copied, *_) = devices.copies(META, module, (), {})
    assert copied.tied is copied[1].weight and copied.tied.device == META
    assert copied.table["rows"][0] == 1 and copied.table["rows"][1].device == META
    copied[1].register_forward_hook(print)
    assert copied[1]._forward_hooks and not module[1]._forward_hooks
    assert copied[0](torch.zeros(2, 4, device=META))[0].shape == (2, 5)


def test_a_check_leaves_nothing_on_the_students_objects():
    attention = CachedAttention(8, 2)
    with second_device():
        guarded = guard.Guarded(attention, "CachedAttention", place=META)
        guarded(torch.randn(1, 3, 8))
    assert all(not parameter.is_meta for parameter in attention.parameters())
    assert type(torch.nn.Parameter(torch.ones(2)).__deepcopy__({})) is torch.nn.Parameter


def test_check_uses_the_gpu_of_the_notebook(monkeypatch, capsys):
    places = []

    def instead(exercise, solution, *, place):
        places.append(place)
        return run_here(exercise, solution)

    monkeypatch.setattr(runner, "run_here", instead)
    for name in ("cuda", "cpu", "mps"):
        monkeypatch.setattr(runner, "device", lambda name=name: torch.device(name))
        check(lstm_step)
    assert places == [torch.device("cuda"), None, None]
    capsys.readouterr()


def test_what_fails_on_the_cpu_is_said_as_ever():
    def wrong(x, h, c, W, b):
        return c, h

    assert report(lstm_step, wrong).text == report(lstm_step, wrong, place=None).text
    with pytest.raises(CheckFailed), second_device():
        wrong.__name__ = "lstm_step"
        check(wrong)


def test_the_second_device_is_as_strict_as_a_gpu():
    with second_device():
        there, here = torch.ones(2, 3, device=META), torch.ones(2, 3)
        for mixed in (
            lambda: there + here,
            lambda: torch.cat([there, here]),
            lambda: here @ there.mT,
            lambda: torch.rand(2, device=META, generator=torch.Generator()),
        ):
            with pytest.raises(RuntimeError, match="device"):
                mixed()
        assert (there + torch.tensor(2.0)).sum().item() == 18
        assert there[torch.tensor([1])].cpu().tolist() == [[1, 1, 1]]
        for order in (there.argsort(), there.sort().indices, there.topk(3, 1).indices):
            assert order.tolist() == [[2, 1, 0]] * 2
        assert there.sort(stable=True, dim=0).indices.tolist() == [[0] * 3, [1] * 3]
        numbers = torch.tensor([[3.0, 1.0, 2.0]], device=META)
        assert numbers.sort(1, descending=True).values.tolist() == [[3, 2, 1]]
        assert numbers.T.topk(2, dim=0).indices.tolist() == [[0], [2]]
        weight = torch.ones(3, device=META, requires_grad=True)
        (there * weight).sum().backward()
        assert weight.grad.device == META and weight.grad.tolist() == [2, 2, 2]
