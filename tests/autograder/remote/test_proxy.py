"""Student code in another process: checks see what they would see in this one."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from autograder.remote.channel import Channel
from course_pkg.checking.batched import call_often, of_each
from course_pkg.checking.case import Case
from course_pkg.checking.guard import Guarded, NotImplementedYet, steps
from course_pkg.checking.telling.failure import Failure, describe
from tests.plain_kernel import Notebook

SOURCE = Path(__file__).with_name("student.py").read_text()


@pytest.fixture(scope="module")
def notebook():
    torch.set_num_threads(1)
    with Notebook(SOURCE) as notebook:
        yield notebook


@pytest.fixture(params=["guarded", "proxy"])
def get(request, notebook):
    """Give the student's objects, once in this process and once in another."""
    if request.param == "proxy":
        return notebook.get
    namespace = {"__name__": "__main__"}
    exec(SOURCE, namespace)
    return lambda name: Guarded(namespace[name], name, 2.0)


def double(*shape, **settings):
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(**settings)


def message_of(call, *args, **kwargs) -> str:
    with pytest.raises(Failure) as caught:
        call(*args, **kwargs)
    return caught.value.message


def test_kinds(get):
    assert [get(name).kind for name in ("scale", "Layer", "number")] == [
        "function",
        "class",
        "the value 5",
    ]
    layer = get("Layer")(2, 3)
    assert (layer.kind, layer.type_name, describe(layer)) == ("function", "Layer", "a Layer")
    assert layer.forward.kind == "function"


def test_values_come_and_go(get):
    value = {"a": [1, (2.5, None)], "b": torch.arange(3), 4: "text", "c": torch.float16}
    result = get("echo")(value, more=(True,))
    assert torch.equal(result[0]["b"], torch.arange(3)) and result[0]["c"] == torch.float16
    assert result[0]["a"] == [1, (2.5, None)] and result[1] == {"more": (True,)}
    assert get("numbers")(3) == [0, 1, 2]


def test_steps_run_when_they_are_asked_for(get):
    student = get("Steps")()
    one, other = steps(student.run, 3), steps(student.run, count=9)
    assert next(one) == student.taken == 1
    assert [next(other) for _ in range(5)] == [1, 2, 3, 4, 5] and student.taken == 5
    assert next(one) == student.taken == 2
    assert list(one) == [3]
    assert list(steps(get("numbers"), 0)) == []
    assert list(steps(get("echo"), 4)) == [4, {}]  # of a tuple, as of any iterable


def test_a_step_may_fail(get):
    events = steps(get("products"), torch.ones(2))
    assert torch.equal(next(events) + next(events), torch.full((2,), 3.0))
    assert message_of(list, events).startswith("products raised KeyError")
    no_iterable = message_of(lambda: list(steps(get("grad_mode"))))
    assert no_iterable.startswith("grad_mode raised TypeError: 'bool' object is not iterable")


def test_calls_together(get):
    x = double(3, requires_grad=False)
    first, second = of_each(get("scale"), [(x, 2.0), (x, 3.0)])
    assert torch.equal(first, 2 * x) and torch.equal(second, 3 * x)
    steps_made = of_each(get("Steps"), [(), {}])
    assert [step.taken for step in steps_made] == [0, 0]
    layer = get("Layer")(D=3, H=2)
    rows = of_each(get("apply"), [(layer, [torch.eye(3)[n]]) for n in range(3)])
    assert torch.equal(torch.stack(rows), layer.W.T)
    generator, again = (torch.Generator().manual_seed(5) for _ in range(2))
    drawn = call_often(get("draw"), 3, 2, generator)
    for pair in drawn:
        assert torch.equal(torch.stack(pair), torch.stack(get("draw")(2, again)))
    assert torch.equal(generator.get_state(), again.get_state())


def test_calls_together_fail_as_one_after_the_other(get):
    inputs = [(double(2), 2.0), (double(2),), (double(2), 1.0, 1.0)]
    assert message_of(of_each, get("scale"), inputs).startswith(
        "scale raised TypeError: scale() missing 1 required positional argument: 'factor'"
    )
    with pytest.raises(NotImplementedYet):
        of_each(get("stub"), [(), ()])


def test_calls_together_take_one_message(notebook, monkeypatch):
    scale, sent, exchange = notebook.get("scale"), [], Channel._exchange
    monkeypatch.setattr(Channel, "_exchange", lambda *a: sent.append(a) or exchange(*a))
    assert of_each(scale, [(n, 2) for n in range(9)]) == [2 * n for n in range(9)]
    assert len(sent) == 1
    # A result that a check cannot look at is no more than that, as at home.
    told = message_of(of_each, scale, [5])
    assert told.startswith("The result cannot be checked: TypeError: ")


def test_instances(get):
    layer = get("Layer")(D=3, H=2)
    assert layer.H == 2 and isinstance(layer.W, nn.Parameter)
    state = layer.state_dict()
    assert list(state) == ["W"] and describe(state) == "an OrderedDict"
    assert not layer.load_state_dict({"W": torch.ones(2, 3)}).missing_keys
    assert torch.equal(layer(torch.ones(1, 3)), torch.full((1, 2), 3.0))
    assert layer.double().state_dict()["W"].dtype == torch.float64
    assert torch.equal(get("apply")(layer, [double(4, 3)]), layer(double(4, 3)))
    assert message_of(layer.load_state_dict, {"V": torch.ones(1)}).startswith("Layer.load_state_")
    assert message_of(lambda: layer.missing) == "Layer has no attribute or method 'missing'."


def test_leaves_that_nobody_keeps(get):
    """The student's process forgets them as soon as it has answered."""
    first, second = (get("new_leaf")([1.0, number]) for number in (2.0, 3.0))
    assert first.is_leaf and first.requires_grad
    (first * second).sum().backward()
    assert first.grad.tolist() == [1.0, 3.0] and second.grad.tolist() == [1.0, 2.0]
    layer = get("Layer")(3, 2)
    rows = torch.stack([layer.row(0), layer.row(1)])
    assert torch.equal(rows, layer.W)


def test_gradients_of_inputs(get):
    x, y = double(3, 2), double(3, 2, requires_grad=False)
    product, count, both = get("several")(x, y, torch.tensor([0, 2]))
    assert product.requires_grad and not count.requires_grad and both[1] is product
    loss = (product**2).sum() + (3 * product).sum() + both[0].prod()
    loss.backward()
    expected = double(3, 2)
    rows = expected[[0, 2]]
    ((expected * y) ** 2 + 3 * expected * y).sum().add(rows.exp().prod()).backward()
    torch.testing.assert_close(x.grad, expected.grad)


def test_gradients_of_chained_calls(get):
    x, step = double(4), get("scale")
    y = x
    for factor in (2.0, 3.0, 4.0):
        y = step(y, factor)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.full((4,), 24.0, dtype=torch.float64))
    assert torch.autograd.gradcheck(step, (double(4), 3.0))


def test_gradients_of_parameters(get):
    layer = get("Layer")(3, 2).double()
    W = layer.W
    for times in (1, 2):
        layer(torch.ones(5, 3, dtype=torch.float64)).sum().backward()
        expected = torch.full((2, 3), 5.0 * times, dtype=torch.float64)
        torch.testing.assert_close(dict(layer.named_parameters())["W"].grad, expected)
        torch.testing.assert_close(W.grad, expected)
        assert layer.norm_of_grad() == pytest.approx(expected.norm().item())
    layer.zero_grad()
    assert W.grad is None
    (gradient,) = torch.autograd.grad(layer(double(1, 3)).sum(), list(layer.parameters()))
    torch.testing.assert_close(gradient, double(1, 3).detach().expand(2, 3))
    layer.learn()
    torch.testing.assert_close(W.grad, torch.ones_like(W))


def test_an_optimiser_on_this_side(get):
    layer = get("Layer")(3, 1).double()
    layer.load_state_dict({"W": torch.zeros(1, 3)})
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    X, y = double(20, 3, requires_grad=False), torch.ones(20, 1, dtype=torch.float64)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((layer(X) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    with torch.no_grad():
        layer.W.fill_(2.0)
    layer.W.data[0, 0] = 1.0
    torch.testing.assert_close(layer.state_dict()["W"][0].tolist(), [1.0, 2.0, 2.0])


def test_without_gradients(get):
    with torch.no_grad():
        assert not get("scale")(double(3), 2.0).requires_grad
        assert not get("grad_mode")()
    assert get("grad_mode")()
    assert not get("scale")(double(3, requires_grad=False), 2.0).requires_grad


def test_clipping_changes_gradients_in_place(get):
    parameters = [double(2), double(3)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    assert get("clip")(parameters, 1.0).item() == pytest.approx(5**0.5)
    assert parameters[1].grad.norm().item() == pytest.approx((3 / 5) ** 0.5)


def test_inputs_changed_in_place(get):
    x = double(3, requires_grad=False)
    with pytest.raises(Failure) as caught:
        get("zero")([1.0, x])
    failure = caught.value
    assert failure.message == "zero changes its argument x in place; the caller still needs it."
    assert failure.what == "x after the call" and torch.equal(failure.observed, torch.zeros(3))
    leaf = message_of(get("zero"), [1.0, double(3)])
    assert "a leaf Variable that requires grad" in leaf
    assert "changes its argument x" in message_of(get("zero"), [1.0, double(3) * 1])


@pytest.mark.parametrize(
    "given",
    [[3, 1, 2], {"b": [1], "a": [2]}, {"words": {1, 2}}, [[0.5, float("nan")], ["x"]]],
    ids=str,
)
def test_containers_changed_in_place(get, given):
    assert message_of(get("empty"), copy.deepcopy(given)) == (
        "empty changes its argument value in place; the caller still needs it."
    )
    get("look_at")(given)


def test_random_numbers(get):
    torch.manual_seed(3)
    expected = torch.rand(2), torch.rand(2), torch.rand(2)
    torch.manual_seed(3)
    assert all(torch.equal(e, d) for e, d in zip(expected[:2], get("draw")(2), strict=True))
    assert torch.equal(torch.rand(2), expected[2])
    a, b = get("Layer")(2, 2).W, get("Layer")(2, 2).W
    torch.manual_seed(3)
    c = get("Layer")(2, 2).W
    torch.manual_seed(3)
    d = get("Layer")(2, 2).W
    assert not torch.equal(a, b) and torch.equal(c, d)


def test_generators(get):
    draws = [get("draw")(2, Case("a").generator) for _ in range(2)]
    assert torch.equal(draws[0][1], draws[1][1])
    ours, theirs = Case("a").generator, Case("a").generator
    get("draw")(3, theirs)
    torch.rand(6, generator=ours)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_exceptions(get, notebook):
    remote = get == notebook.get
    with pytest.raises(Failure) as caught:
        get("fails")(3)
    message = "fails raised ValueError: the size must be even, got 3"
    assert caught.value.message.startswith(message)
    if remote:  # exec in this process gives no source to show
        line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if "must be even" in text)
        place = f'\nin line {line}: raise ValueError(f"the size must be even, got {{size}}")'
        assert caught.value.message == message + place
    assert caught.value.kinds == ("ValueError", "Exception", "BaseException", "object")
    assert Case("").raises(ValueError, lambda: get("fails")(3), "odd").message.startswith(message)
    assert message_of(get("scale"), 1) == (
        "scale raised TypeError: scale() missing 1 required positional argument: 'factor'"
    )
    assert "raised SystemExit" in message_of(get("leaves"), 0)


def test_stubs(get):
    with pytest.raises(NotImplementedYet) as caught:
        get("stub")()
    assert caught.value.message == "stub is not implemented yet."
    with pytest.raises(NotImplementedYet) as caught:
        get("uses_stub")()
    assert caught.value.message == "uses_stub is not implemented yet, because stub is not."


def test_methods_of_objects_of_one_type(get):
    first, second = get("Tally")(), get("Tally")()
    add = first.add
    assert [add(), first.add(2), second.add(count=5), second.total] == [1, 3, 5, 5]
    assert (second.add.kind, describe(second.add)) == ("function", describe(first.add))
    assert get("apply")(second.add, [4]) == 9
    assert message_of(second.add, "x").startswith("Tally.add raised TypeError")
    assert message_of(lambda: second.subtract) == "Tally has no attribute or method 'subtract'."


def test_a_method_that_is_known_is_one_message(notebook, monkeypatch):
    sent = []
    exchange = Channel._exchange
    monkeypatch.setattr(
        Channel, "_exchange", lambda self, *args: sent.append(args) or exchange(self, *args)
    )
    first, second = notebook.get("Tally")(), notebook.get("Tally")()
    first.add()
    sent.clear()
    assert second.add() == 1 and len(sent) == 1
    second.spoil()
    assert message_of(second.add) == "Tally.add is the value 1, and no longer a method."
    assert message_of(lambda: notebook.get("apply")(second.add, [4])) == (
        "Tally.add is no longer a method."
    )
