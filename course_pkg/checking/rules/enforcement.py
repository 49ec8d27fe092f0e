"""Rules at run time: what is forbidden raises, by whatever name or way a solution calls it.

A function may have been kept under another name, or be called from C++ or TorchScript. So operators
are replaced where torch dispatches them, and Python functions get other code: whoever has kept one
has what raises.
"""

import contextlib
import functools
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

import torch
from torch._decomp import decompositions  # torch's operators once more, in Python
from torch.library import Library

from course_pkg.checking.rules.rules import Rule, all_rules

# Where torch looks for what an operator does: first for what it does by way of other operators,
# else, on the way to any device, here; vmap has ways of its own.
_COMPOSITE, _ON_ANY_DEVICE = "CompositeImplicitAutograd", "BackendSelect"
_OF_VMAP = "FuncTorchBatched", "FuncTorchBatchedDecomposition", "FuncTorchVmapMode"


@contextlib.contextmanager
def enforced(rule: Rule) -> Iterator[None]:
    """Let what a rule forbids raise RuntimeError within the block."""
    with contextlib.ExitStack() as stack:
        for name, function in _functions(rule):
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _raising(name, function.__code__.co_freevars)
        if rule.operators is not None:
            _warn_once()
            stack.enter_context(_replaced(_operators(rule.operators)))
        yield


def prepare() -> None:
    """Look up what known rules forbid, before other code can put something else in its place."""
    for rule in all_rules():
        with enforced(rule):
            pass


@functools.cache
def _functions(rule: Rule) -> list[tuple[str, FunctionType]]:
    """List the Python functions that a rule forbids: by name, methods, or instead of operators."""
    found = []
    for name in rule.names:
        with contextlib.suppress(ImportError, AttributeError):  # what is not there does no harm
            owner = pkgutil.resolve_name(name)
            members = vars(owner).values() if inspect.isclass(owner) else [owner]
            found += [(name, member) for member in members if isinstance(member, FunctionType)]
    if rule.operators is not None:
        for name, member in vars(decompositions).items():
            if isinstance(member, FunctionType) and re.search(rule.operators, name):
                found.append((f"torch.{name}", member))
    return found


@functools.cache
def _raising(name: str, free: tuple[str, ...]) -> CodeType:
    """Compile a function that only raises, with the free variables of the one that it is for."""
    source = f"def raising(*args, **kwargs):\n    raise RuntimeError({_message(name)!r})"
    program = compile(source, __file__, "exec")
    code = next(constant for constant in program.co_consts if isinstance(constant, CodeType))
    return code.replace(co_freevars=free)


def _message(name: str) -> str:
    return f"{name} must not be used in this exercise"


@functools.cache
def _operators(pattern: str) -> list[tuple[str, str]]:
    """List the operators whose names match, each with a place where it is to be replaced.

    They are torch's own and those of its libraries, such as mkldnn.
    """
    found = []
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in torch._C._dispatch_get_all_op_names():
        if re.search(pattern, name):
            is_composite = has_kernel(name, _COMPOSITE)
            found.append((name, _COMPOSITE if is_composite else _ON_ANY_DEVICE))
            found += [(name, place) for place in _OF_VMAP if has_kernel(name, place)]
    return found


@contextlib.contextmanager
def _replaced(operators: Iterable[tuple[str, str]]) -> Iterator[None]:
    libraries: dict[str, Library] = {}
    try:
        for name, place in operators:
            space = name.partition("::")[0]
            if space not in libraries:
                libraries[space] = Library(space, "IMPL")
            libraries[space].impl(name, _refusal(name), place, allow_override=True)
        yield
    finally:
        for library in libraries.values():
            library._destroy()


@functools.cache
def _refusal(operator: str):
    space, _, name = operator.partition(".")[0].partition("::")
    name = f"torch.{name}" if space == "aten" else f"torch.ops.{space}.{name}"

    def refuse(*args, **kwargs):
        raise RuntimeError(_message(name))

    return refuse


@functools.cache
def _warn_once() -> None:
    """Replace one operator in silence: torch warns when a process does so for the first time."""
    with warnings.catch_warnings(action="ignore"), _replaced([("aten::gru_cell", _COMPOSITE)]):
        pass
