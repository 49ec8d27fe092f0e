"""What submitted code names, found without running it."""

import ast
import functools

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@functools.lru_cache(maxsize=512)  # the same cells are asked about for every exercise
def parse(source: str) -> ast.Module | None:
    """Parse a cell; lines of magics and shell commands do not count. None if it is not Python."""
    for text in (source, _without_magics(source)):
        try:
            return ast.parse(text)
        except _ERRORS:
            continue
    return None


def definition(name: str, sources: list[str]) -> Definition | None:
    """Find the last definition of a function or class at the top of a cell."""
    found = None
    for tree in map(parse, sources):
        for node in tree.body if tree else []:
            if isinstance(node, Definition) and node.name == name:
                found = node
    return found


def names_in(name: str, sources: list[str]) -> list[str]:
    """List the global names that a function or class uses, in the order in which they come."""
    node = definition(name, sources)
    if node is None:
        return []
    return list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))


def _without_magics(source: str) -> str:
    lines = source.splitlines()
    return "\n".join("" if line.lstrip()[:1] in ("%", "!", "?") else line for line in lines)
