"""What an exercise may call of earlier parts, as its docstrings say: a folded table above it."""

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import get_args, get_origin

from torch import nn

from autograder.author.collapsible import folded

PACKAGE = "course_pkg."


def needed(topic: str, name: str) -> str:
    """List the calls of other assignments and of given parts that the reference makes.

    Returns:
        Markdown; empty if there are none.
    """
    reference = getattr(importlib.import_module(PACKAGE + topic), name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(reference)))
    used = {node.id: None for node in ast.walk(tree) if isinstance(node, ast.Name)}
    asked = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    known = vars(sys.modules[reference.__module__])
    rows = []
    for word, each in ((n, known[n]) for n in used if n in known):
        if isinstance(each, (type, FunctionType)) and _is_from_elsewhere(each.__module__, topic):
            rows += _rows(each, asked)
        elif isinstance(each, (int, str)) and word in _imported(reference.__module__):
            rows.append(f"| `{word}` | | the constant {each!r} |")
    if not rows:
        return ""
    head = "| call | shapes | what it does |\n|---|---|---|\n"
    return folded(f"What {name} can use of earlier parts", head + "\n".join(rows))


def _imported(module: str) -> set[str]:
    """The names that a module takes from others of the course."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    return {a.name for n in found if str(n.module).startswith(PACKAGE) for a in n.names}


def _is_from_elsewhere(module: str, topic: str) -> bool:
    own = PACKAGE + topic
    return module.startswith(PACKAGE) and module != own and not module.startswith(f"{own}.")


def _rows(found: type | FunctionType, asked: set[str]) -> Iterator[str]:
    """The row of a function; those of a class, and of what of it is asked for."""
    yield _row(found.__name__, found)
    if not isinstance(found, type):
        return
    if issubclass(found, nn.Module):
        yield _row(f"{found.__name__}(…)", found.forward)
    own = {field.name for field in fields(found)} if is_dataclass(found) else set()
    for name in sorted(asked & (own | {n for n in dir(found) if n[0] != "_"})):
        member = inspect.getattr_static(found, name, None)
        member = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(member, FunctionType) and member.__module__.startswith(PACKAGE):
            is_called = not isinstance(inspect.getattr_static(found, name), property)
            yield _row(f"{found.__name__}.{name}", member, is_called=is_called)
        elif name in own:
            yield f"| `{found.__name__}.{name}` | | a field |"


def _row(name: str, found: type | FunctionType, *, is_called: bool = True) -> str:
    try:
        signature = inspect.signature(found)
    except ValueError:
        signature = inspect.Signature()
    given = [p for p in signature.parameters.values() if p.name != "self"]
    words = [
        ("*" * (p.kind == p.VAR_POSITIONAL) + "**" * (p.kind == p.VAR_KEYWORD))
        + p.name
        + ("" if p.default is p.empty else f"={p.default!r}")
        for p in given
    ]
    shapes = [f"{p.name} ({shape})" for p in given if (shape := _shape(p.annotation))]
    text = ", ".join(shapes)
    if result := _shapes(signature.return_annotation):
        text += f" → {result}"
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    called = f"{name}({', '.join(words)})" if is_called and not is_error else name
    what = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return f"| `{called}` | {text.strip()} | {what} |"


def _shapes(annotation: object) -> str:
    """The axes of what is returned: all of a tuple's, and of each kind of result."""
    if get_origin(annotation) is tuple:
        return ", ".join(filter(None, map(_shapes, get_args(annotation))))
    if hasattr(annotation, "dim_str"):
        return f"({', '.join(annotation.dim_str.split())})"
    return " or ".join(filter(None, map(_shapes, get_args(annotation))))


def _shape(annotation: object) -> str:
    """The axes of an annotation such as Float[Tensor, "B T D"], or that or None."""
    found = [annotation, *getattr(annotation, "__args__", ())]
    axes = next((each.dim_str for each in found if hasattr(each, "dim_str")), "")
    return ", ".join(axes.split())
