"""Turn a reference in course_pkg into the text of its solution cell, and a module into its stub."""

import ast
from pathlib import Path

from nbformat.v4 import new_code_cell
from nbgrader.preprocessors import ClearSolutions

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def exercises(reference: list[Path]) -> dict[str, str]:
    """Read the exercises of a reference: the public functions and classes of its modules.

    Returns:
        For each name its source with solution markers around what students write: where the
        reference has none, around every body.
    Raises:
        ValueError: an exercise has no docstring.
    """
    found = {}
    for module in reference:
        text = module.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                if not ast.get_docstring(node):
                    raise ValueError(f"{module}:{node.lineno}: {node.name} has no docstring")
                found[node.name] = _marked(text.splitlines(), node)
    return found


def stub(module: Path) -> str:
    """Give the text of a module with every solution cleared, as nbgrader clears it."""
    text = module.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first, last = _span(lines, node)
            lines[first:last] = cleared(_marked(text.splitlines(), node)).splitlines()
    return "\n".join(lines) + "\n"


def cleared(source: str) -> str:
    """Replace what is between solution markers by nbgrader's stub."""
    cell = new_code_cell(source)
    ClearSolutions()._replace_solution_region(cell, "python")
    return cell.source


def _span(lines: list[str], node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    """The lines of a definition, with its decorators and the comments at its end."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    last = node.end_lineno
    while last < len(lines) and lines[last].startswith((" ", "\t")):
        last += 1
    return first - 1, last


def _marked(lines: list[str], node: ast.FunctionDef | ast.ClassDef) -> str:
    first, last = _span(lines, node)
    source = lines[first:last]
    if not any(BEGIN in line for line in source):
        methods = [node] if isinstance(node, ast.FunctionDef) else node.body
        for method in reversed(methods):
            if isinstance(method, ast.FunctionDef):
                has_docstring = ast.get_docstring(method) is not None
                start = method.body[0].end_lineno if has_docstring else method.body[0].lineno - 1
                indent = " " * (method.col_offset + 4)
                source.insert(method.end_lineno - first, indent + END)
                source.insert(start - first, indent + BEGIN)
    return "\n".join(source)
