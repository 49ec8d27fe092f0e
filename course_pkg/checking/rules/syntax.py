"""What submitted code names, found without running it."""

import ast
import functools
from collections.abc import Iterable

READABLE = 500_000  # characters of code; the longest solved notebook has 90 000
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_TARGETS = (ast.Name, ast.Tuple, ast.List, ast.Starred)
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
_PYTHON = ("%%time", "%%capture", "%%prun")  # magics below which a cell goes on as Python


def is_readable(sources: Iterable[str]) -> bool:
    """Say whether a notebook's code is short enough to be analysed: a lot of it takes minutes."""
    return sum(map(len, sources)) <= READABLE


@functools.lru_cache(maxsize=512)  # the same cells are asked about for every exercise
def parse(source: str) -> ast.Module | None:
    """Parse a cell without its magics and shell commands; None if it is not Python."""
    for text in (source, _without_magics(source)):
        try:
            return ast.parse(text)
        except _ERRORS:
            continue
    return None


def definition(name: str, sources: list[str]) -> Definition | None:
    """Find the last definition of a function or class at the top of a cell, if all is readable."""
    found = None
    for tree in map(parse, sources if is_readable(sources) else []):
        for node in tree.body if tree else []:
            if isinstance(node, Definition) and node.name == name:
                found = node
    return found


@functools.lru_cache(maxsize=512)
def bindings(source: str) -> dict[str, bool]:
    """List what a cell defines or assigns, and whether each is solved: more than a stub."""
    tree = parse(source)
    found: dict[str, bool] = {}
    todo: list[ast.AST] = list(reversed(tree.body)) if tree else []
    while todo:
        node = todo.pop()
        if isinstance(node, Definition):
            found[node.name] = not any(map(_is_missing, ast.walk(node)))
        elif isinstance(node, _TARGETS) and isinstance(node.ctx, ast.Store):
            found |= {n.id: True for n in ast.walk(node) if isinstance(n, ast.Name)}
        elif not isinstance(node, ast.expr) and getattr(node, "value", node) is not None:
            todo += reversed(list(ast.iter_child_nodes(node)))
    return found


def _is_missing(node: ast.AST) -> bool:
    """Say whether a statement is the one that stands in stubs: it raises without a message."""
    match node:
        case ast.Raise(ast.Name("NotImplementedError")):
            return True
        case ast.Raise(ast.Call(ast.Name("NotImplementedError"), [], [])):
            return True
    return False


def names_in(name: str, sources: list[str]) -> list[str]:
    """List the global names that a function or class uses, in order."""
    node = definition(name, sources)
    if node is None:
        return []
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


def has_magics(source: str) -> bool:
    """Say whether a cell has lines that are magics or shell commands, or look like them."""
    return _without_magics(source) != "\n".join(source.splitlines())


def _without_magics(source: str) -> str:
    lines = source.splitlines()
    if source.lstrip().startswith("%%") and not source.lstrip().startswith(_PYTHON):
        return ""
    return "\n".join("" if line.lstrip()[:1] in ("%", "!", "?") else line for line in lines)
