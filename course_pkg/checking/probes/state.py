"""Does a call depend on those before it? Tried on copies, which nothing else sees.

A mask, a table or a state that is kept from the first call is right there and wrong in the second;
what is kept of the weights is wrong once they have changed. This looks at modules, at their
methods, and at functions that have a default value to keep something in.
"""

import copy
import functools
import inspect
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_pkg.checking.probes import devices
from course_pkg.checking.telling.failure import Failure

LARGEST = 50_000  # parameters of a module that is tried: more would take long


Attempt = Callable[[Callable[[], object]], object]


@dataclass(frozen=True)
class FirstCall:
    """The first call of something.

    Args:
        before: a copy of it from before the call.
        after: itself.
        args, kwargs: what it was called with.
        result: what it gave.
        draws: whether it drew random numbers.
    """

    before: Callable
    after: Callable
    args: tuple
    kwargs: dict
    result: object
    draws: bool


class Refusal(str):
    """The name of the exception by which a call refused its inputs; empty if it took too long."""


def copy_of(target: Any) -> Any:
    """Copy a module, a method of one, or a function that can keep something in a default value.

    None for anything else, such as what every module can do, or if it is too large or cannot be
    copied.
    """
    module = _module(target)
    try:
        if module is None:
            return _copy_of_function(target)
        if is_inherited(target):
            return None
        if sum(parameter.numel() for parameter in module.parameters()) > LARGEST:
            return None
        with devices.deepcopy_of_tensors(_copy):
            new = copy.deepcopy(module)
        return new if module is target else getattr(new, target.__name__)
    except Exception:
        return None


def demand_nothing(name: str, attempt: Attempt, first: FirstCall) -> None:
    """Demand that something does the same in a later call, before and after a first one.

    And a module the same in evaluation, unless it draws random numbers. It may refuse inputs, if it
    does so in both; where it takes too long, nothing more is tried. What its calls leave as it was
    keeps nothing, and needs no trial: most things do.

    Args:
        name: what messages call it.
        attempt: does something within the time of a call, or raises Failure.
        first: the first call.
    Raises:
        Failure: it does not.
    """
    if _is_unchanged(attempt, first):
        return
    for pair, inputs, problem, what in _trials(attempt, first):
        if None in pair:  # what was copied once cannot be copied again
            return
        for module in filter(None, map(_module, pair)):
            _change_weights(module)
        for other in inputs:
            results = [_result(attempt, call, *other) for call in pair]
            if any(isinstance(result, Refusal) and not result for result in results):
                return
            if not _agree(*results):
                raise Failure(f"{name} {problem}", what=f"{name} {what}")


def _is_unchanged(attempt: Attempt, first: FirstCall) -> bool:
    """Tell whether a call has left all as it was, and would in evaluation, with the same result."""
    before = _module(first.before)
    if before is None:
        return _is_same(_defaults(first.before), _defaults(first.after))
    call = copy_of(first.before)
    copied = _module(call)
    if copied is None or not _is_same(before, _module(first.after)):
        return False
    modes = [(part, part.training) for part in copied.modules()]
    copied.eval()
    again = _result(attempt, call, first.args, first.kwargs)
    for part, mode in modes:
        part.training = mode
    return _is_same(before, copied) and (first.draws or _agree(again, first.result))


def _trials(
    attempt: Attempt, first: FirstCall
) -> Iterator[tuple[tuple[Callable, Callable], list, str, str]]:
    """Yield two copies, the inputs to compare them on, and what is wrong if they differ.

    From before and after a call: with inputs of other values and sizes; with the same; and after a
    call in evaluation, without gradients, where alone some keep things. And in training and
    evaluation.
    """
    before, after, args, kwargs = first.before, first.after, first.args, first.kwargs
    module = _module(before)
    changed = [(_map(change, args), _map(change, kwargs)) for change in (_shorter, _reversed)]
    required, without = _required(before, args, kwargs)
    again = f"the inputs of its first call{without}{' and other weights' if module else ''}"
    told = _changed_weights(before, after) or "What does it keep?"

    def depends(how: str) -> str:
        return (
            f"depends on an earlier call: with {how}, it returns something else than if it had not "
            f"been called before. {told}"
        )

    changing = ["inputs"] * bool(args or kwargs) + ["weights"] * (module is not None)
    other = depends(f"other {' and '.join(changing)} than at its first call")
    yield (copy_of(before), copy_of(after)), changed, other, "called again"
    yield (copy_of(before), copy_of(after)), [required], depends(again), "called again"
    if module is None:
        return
    pair = copy_of(before), copy_of(after)
    for copied in filter(None, map(_module, pair)):
        copied.eval()
    _result(attempt, pair[1], args, kwargs)
    yield pair, changed, other, "called again"
    if module.training and not first.draws:
        training = copy_of(before)
        module.eval()
        problem = "returns something else in evaluation, after eval(), than in training, though it "
        problem += "draws no random numbers."
        yield (training, before), [(args, kwargs)], problem, "in evaluation"


def _changed_weights(before: Callable, after: Callable) -> str:
    """Say which parameters and buffers a call has changed, if any."""
    old, new = (module.state_dict() if (module := _module(c)) else {} for c in (before, after))
    names = [n for n in old if n in new and not torch.equal(old[n], new[n])]
    return f"It has changed {' and '.join(names)} in place." if names else ""


def is_inherited(target: Any) -> bool:
    """Tell a method that every module has, by its name, such as double, train or state_dict."""
    is_method = inspect.ismethod(target) and isinstance(target.__self__, nn.Module)
    return is_method and hasattr(nn.Module, target.__name__)


def signature_of(target: Any) -> inspect.Signature:
    """Give the arguments of a call; those of a module are its forward's."""
    call = target.forward if isinstance(target, nn.Module) else target
    if inspect.ismethod(call):
        return _signature(call.__func__, True)
    if inspect.isbuiltin(call) and type(call.__self__) is dict:
        return _signature_of_dicts(call.__name__)
    return _signature(call, False) if inspect.isfunction(call) else inspect.signature(call)


@functools.lru_cache(maxsize=256)
def _signature(function: types.FunctionType, is_method: bool) -> inspect.Signature:
    return inspect.signature(types.MethodType(function, function) if is_method else function)


@functools.cache
def _signature_of_dicts(method: str) -> inspect.Signature:
    return inspect.signature(getattr({}, method))


def _module(target: object) -> nn.Module | None:
    owner = target.__self__ if inspect.ismethod(target) else target
    return owner if isinstance(owner, nn.Module) else None


def _copy_of_function(target: object) -> types.FunctionType | None:
    """Copy a function with its default values, if these can change."""
    if not inspect.isfunction(target):
        return None
    defaults = _defaults(target)
    if not any(
        isinstance(value, (list, dict, set)) for value in (*defaults[0], *defaults[1].values())
    ):
        return None
    places = target.__globals__, target.__name__, target.__defaults__, target.__closure__
    new = types.FunctionType(target.__code__, *places)
    new.__defaults__, new.__kwdefaults__ = copy.deepcopy(defaults)
    return new


def _defaults(function: Any) -> tuple:
    return function.__defaults__ or (), function.__kwdefaults__ or {}


def _required(call: Callable, args: tuple, kwargs: dict) -> tuple[tuple[tuple, dict], str]:
    """Leave out the optional arguments of a call, and say which, in words for after it."""
    try:
        signature = signature_of(call)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError):
        return (args, kwargs), ""
    empty = inspect.Parameter.empty
    optional = [name for name in bound.arguments if signature.parameters[name].default is not empty]
    for name in optional:
        del bound.arguments[name]
    without = f" without {' and '.join(optional)}" if optional else ""
    return (bound.args, bound.kwargs), without


def _change_weights(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point():
                parameter.mul_(0.5)


def _copy(tensor: Tensor, memo: dict) -> Tensor:
    if id(tensor) not in memo:
        new = tensor.detach().clone()
        memo[id(tensor)] = nn.Parameter(new) if isinstance(tensor, nn.Parameter) else new
    return memo[id(tensor)]


def _result(attempt: Attempt, call: Callable, args: Any, kwargs: Any) -> object:
    def run() -> object:
        result = call(*args, **kwargs)
        return list(result) if isinstance(result, Iterator) else result

    random = torch.get_rng_state()
    try:
        with torch.no_grad():
            return attempt(run)
    except Failure as failure:
        return Refusal("".join(failure.kinds[:1]))
    finally:
        torch.set_rng_state(random)


def _map(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value.detach())
    if isinstance(value, dict):
        return {key: _map(change, item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(change, item) for item in value)
    return value


def _reversed(tensor: Tensor) -> Tensor:
    """Other inputs of the same sizes; whole numbers stay within their range."""
    turned = tensor.flip(list(range(tensor.dim())))
    return turned / 2 if tensor.is_floating_point() else turned


def _shorter(tensor: Tensor) -> Tensor:
    """Other inputs with one position less."""
    turned = _reversed(tensor)
    return turned[:, 1:] if turned.dim() > 1 and turned.shape[1] > 1 else turned


def _is_same(a: Any, b: Any, compared: set | None = None) -> bool:
    """Tell whether two things hold the same; of what it does not know, it says no."""
    compared = set() if compared is None else compared
    if a is b or (id(a), id(b)) in compared:
        return True
    if type(a) is not type(b):
        return False
    compared.add((id(a), id(b)))
    if isinstance(a, Tensor):
        kinds = (a.shape, a.dtype, a.layout), (b.shape, b.dtype, b.layout)
        return kinds[0] == kinds[1] and a.layout == torch.strided and torch.equal(a, b)
    if isinstance(a, nn.Module):
        return _is_same(vars(a), vars(b), compared)
    if type(a) in (dict, OrderedDict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key], compared) for key in a)
    if type(a) in (list, tuple, deque):
        pairs = zip(a, b, strict=False)
        return len(a) == len(b) and all(_is_same(*pair, compared) for pair in pairs)
    return isinstance(a, (bool, int, float, complex, str, bytes, set, frozenset)) and a == b


def _agree(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(a, dict) and isinstance(b, dict):
        return _agree(list(a.values()), list(b.values()))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_agree(*pair) for pair in zip(a, b, strict=True))
    return a == b if isinstance(a, Refusal) or isinstance(b, Refusal) else True
