"""Right parts across the wire: stand-ins do what these do, and nothing else is answered."""

import time
from pathlib import Path

import pytest
import torch

from autograder.grade.judging.solutions import Solutions
from autograder.remote import references
from autograder.remote.references import Right
from course_pkg import lstm, paged_attention, transformer
from course_pkg.checking.telling.failure import Failure
from tests.plain_kernel import PlainKernel

SOURCE = Path(__file__).with_name("parts.py").read_text()
PARTS = {
    "gpt": ["byte_pair_merges"],
    "lstm": ["lstm_step"],
    "paged_attention": ["BlockAllocator", "BlockTable"],
    "transformer": ["FeedForward"],
}


@pytest.fixture(scope="module")
def kernel():
    torch.set_num_threads(1)
    kernel = PlainKernel()
    kernel.run(SOURCE)
    yield kernel
    kernel.kill()


def asking(kernel, topic: str):
    return Solutions(lambda: kernel, seconds=60, right=Right(topic, PARTS[topic]))


def test_gradients_go_back_through_a_right_part(kernel):
    B, T, D, H = 2, 4, 3, 5
    X = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    h, c = torch.randn(2, B, H, dtype=torch.float64, requires_grad=True)
    W = torch.randn(4 * H, H + D, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4 * H, dtype=torch.float64, requires_grad=True)
    expected, cell = h, c
    for x in X.unbind(1):
        expected, cell = lstm.lstm_step(x, expected, cell, W, b)
    wanted = torch.autograd.grad(expected.sum(), (X, W, b))
    with asking(kernel, "lstm") as solutions:
        found = solutions.get("last")(X, h, c, W, b)  # which calls it by another name
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), (X, W, b)), wanted)


def test_objects_are_changed_copied_and_derived_from(kernel):
    with asking(kernel, "paged_attention") as solutions:
        assert solutions.get("blocks")() == (True, 3, 2, 1)
        assert solutions.get("refusals")() == ["OutOfBlocks", "IndexError", "TypeError"]
        table = paged_attention.BlockTable(4)
        slots = table.append(3, [5])
        assert solutions.get("tables")() == (slots, 3, [5, 7], [5], True)
        assert solutions.get("derived")() == "block 0"


def test_modules_have_the_same_parameters_and_learn(kernel):
    with asking(kernel, "transformer") as solutions:
        for dtype in (torch.float32, torch.float64):
            X = torch.ones(2, 4, dtype=dtype, requires_grad=True)
            torch.manual_seed(3)
            Y, reaches_X, names, is_same = solutions.get("wide")(X)
            torch.manual_seed(3)
            net = transformer.FeedForward(4, 8).to(dtype)
            torch.testing.assert_close(Y, net(X).detach())
            assert reaches_X and is_same
            assert names == sorted([*dict(net.named_parameters()), "scale"])
        assert solutions.get("drawn")()


@pytest.mark.parametrize(
    "name, said",
    [
        ("shapes", "raised IndexError: Dimension out of range"),
        ("objects", "raised WireError: an object of type object cannot be sent"),
        ("other_topic", "no question that right parts answer"),
    ],
)
def test_what_cannot_be_answered_ends_the_call_with_an_error(kernel, name, said):
    with asking(kernel, "lstm") as solutions:
        with pytest.raises(Failure) as caught:
            solutions.get(name)()
        assert said in caught.value.message and "remote" not in caught.value.message
        x = torch.ones(2)
        assert torch.equal(solutions.get("scale")(x), 2 * x)  # in a new fork, if need be


@pytest.mark.parametrize(
    "name, said",
    [
        ("other_part", "LSTM is not among the right parts"),
        ("other_method", "BlockAllocator has no method '__init__'"),
        ("no_fields", "'method'"),
    ],
)
def test_nothing_else_is_answered(kernel, name, said):
    topic = "paged_attention" if name == "other_method" else "lstm"
    with asking(kernel, topic) as solutions:
        assert solutions.get(name)()[2] == said


@pytest.mark.parametrize("name", ["flood", "too_large", "too_long"])
def test_questions_have_bounds(kernel, name, monkeypatch):
    monkeypatch.setattr(references, "QUESTIONS", 50)
    with asking(kernel, "paged_attention") as solutions:
        with pytest.raises(Failure):
            solutions.get(name)()
    with asking(kernel, "paged_attention") as solutions:
        assert solutions.get("blocks")() == (True, 3, 2, 1)


def test_a_question_that_takes_too_long_ends_the_process_that_answers(kernel, monkeypatch):
    with asking(kernel, "gpt") as solutions:
        assert solutions.get("merges")(3) == []
        monkeypatch.setattr(references, "SECONDS", 0.5)
        started = time.monotonic()
        with pytest.raises(Failure, match="a question to the grader has no answer"):
            solutions.get("merges")(10**6)
        assert time.monotonic() - started < 20
    monkeypatch.undo()
    with asking(kernel, "gpt") as solutions:  # by a new process
        assert solutions.get("merges")(3) == []


@pytest.mark.parametrize("name", ["other_part", "no_fields"])
def test_nothing_is_answered_without_right_parts(kernel, name):
    with Solutions(lambda: kernel, seconds=60) as solutions:
        with pytest.raises(Failure, match="a question in place of an answer"):
            solutions.get(name)()
        with pytest.raises(Failure, match="wrong"):
            solutions.get("last")(*[torch.ones(1, 1)] * 5)
