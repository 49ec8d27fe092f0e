"""A second device without a GPU: what lies on it cannot be mixed with what lies in memory.

Inside `second_device()`, tensors on `META` hold numbers. An operation that mixes them with tensors
of the CPU raises what torch raises on a GPU, and so does a generator of the CPU that is asked to
draw there. Which of equal numbers comes first, where torch does not say, is not as on the CPU.
"""

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")
CPU = torch.device("cpu")
_BETWEEN_DEVICES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
_TAKES_FROM_CPU = {  # indices, and the lengths of sentences
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_pack_padded_sequence",
    "aten::_pad_packed_sequence",
}
_BREAKS_TIES = {
    torch.ops.aten.sort.default,
    torch.ops.aten.sort.stable,
    torch.ops.aten.topk.default,
}


class _There(Tensor):
    """A tensor that lies on the second device; torch sees one without numbers."""

    @staticmethod
    def __new__(cls, numbers: Tensor):
        return Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=META,
        )

    def __init__(self, numbers: Tensor):
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __repr__(self, **kwargs):
        return f"There({self.numbers})"

    def tolist(self):
        return self.numbers.tolist()


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Do in other ways what torch does past the operations, or by changing a tensor's shape."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            return _new(func, args, **kwargs)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.LongTensor(i) if isinstance(i, list) else i for i in index)
            args = (args[0], index, *args[2:])
        if func in (torch.matmul, Tensor.matmul, Tensor.__matmul__):
            left, right = args
            if left.dim() == 1:
                return (left[None] @ right)[..., 0, :] if right.dim() > 1 else left.dot(right)
            if right.dim() == 1:
                return (left @ right[:, None])[..., 0]
        if getattr(func, "__name__", "") in ("rnn_tanh", "gru", "lstm"):
            *others, last = args
            if last and isinstance(args[3], bool):  # batch_first, and not packed
                output, *state = func(others[0].transpose(0, 1), *others[1:], False)
                return output.transpose(0, 1), *state
        return func(*args, **kwargs)


def _new(func, args: tuple, device=None, requires_grad=False, **kwargs) -> Tensor:
    if func is Tensor.new_tensor:
        like, *args = args
        func, device = torch.tensor, device or like.device
        kwargs["dtype"] = kwargs.get("dtype") or like.dtype
    made = func(*tree_map(_number, args), **kwargs)
    made = made if device is None else made.to(device)
    return made.requires_grad_() if requires_grad else made


@contextlib.contextmanager
def second_device() -> Iterator[torch.device]:
    """Let tensors on `META` hold numbers, and yield it."""
    with _Operations(), _Functions():
        yield META


def _run(func, args: tuple, kwargs: dict):
    values = tree_flatten((args, kwargs))[0]
    there = [value for value in values if isinstance(value, _There)]
    here = [v for v in values if isinstance(v, Tensor) and v.dim() and not isinstance(v, _There)]
    assert not any(v.is_meta for v in here), f"a tensor without numbers in {func}"
    asked = kwargs.get("device")
    to_there = bool(there) if asked is None else torch.device(asked) == META
    if func not in _BETWEEN_DEVICES and there and here:
        if func._schema.name not in _TAKES_FROM_CPU or not isinstance(args[0], _There):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cpu and meta! (in {func})"
            )
    if to_there and any(isinstance(value, torch.Generator) for value in values):
        raise RuntimeError("Expected a 'meta' device type for generator but found 'cpu'")
    if func is torch.ops.aten.copy_.default:
        to_there = isinstance(args[0], _There)
    wrappers = {id(value.numbers): value for value in there}
    args, kwargs = tree_map(_here, (args, kwargs))
    if asked is not None:
        kwargs["device"] = CPU
    if not to_there:
        return func(*args, **kwargs)
    is_free = func in _BREAKS_TIES and not kwargs.get("stable")
    run = functools.partial(_from_the_other_end, func) if is_free else func
    result = run(*args, **kwargs)
    if func is torch.ops.aten._pack_padded_sequence.default:
        return _There(result[0]), result[1]  # the sizes of batches stay in memory

    def lift(value):
        known = wrappers.get(id(value))  # changed in place
        if known is not None and known.shape == value.shape:
            return known
        return _There(value) if isinstance(value, Tensor) else value

    return tree_map(lift, result)


def _from_the_other_end(func, X: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
    """Sort, or take the largest; of equal numbers, the last comes first."""
    if not X.dim():
        return func(X, *args, **kwargs)
    dims = args[1:] if func is torch.ops.aten.topk.default else args
    dim = kwargs.get("dim", dims[0] if dims else -1)
    values, indices = func(X.flip(dim), *args, **kwargs)
    return values, X.shape[dim] - 1 - indices


def _number(value):
    return value.item() if isinstance(value, _There) and value.dim() == 0 else value


def _here(value):
    return value.numbers if isinstance(value, _There) else value
