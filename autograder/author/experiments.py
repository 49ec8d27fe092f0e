"""Find the experiments of a notebook: cells on which nothing that is graded depends."""

import ast
import symtable

from nbformat import NotebookNode


def mark_experiments(cells: list[NotebookNode]) -> None:
    """Mark the locked code cells that grading may leave out, in their metadata.

    Cells stay if they bind a name that a solution or a graded cell uses, perhaps through another
    locked cell; so do those that only import and define, without an experiment's names, because
    solutions may use them too.
    """
    codes = [cell for cell in cells if cell.cell_type == "code" and "nbgrader" in cell.metadata]
    needed = {name for cell in codes if _is_graded_or_solution(cell) for name in used(cell.source)}
    rest = [cell for cell in codes if not _is_graded_or_solution(cell)]
    while found := [cell for cell in rest if bound(cell.source) & needed]:
        rest = [cell for cell in rest if not any(cell is other for other in found)]
        needed |= {name for cell in found for name in used(cell.source)}
    experiments = [cell for cell in rest if not _only_defines(cell.source)]
    rest = [cell for cell in rest if _only_defines(cell.source)]
    while found := [cell for cell in rest if used(cell.source) & _names(experiments)]:
        experiments += found
        rest = [cell for cell in rest if not any(cell is other for other in found)]
    for cell in experiments:
        cell.metadata["course"] = {"experiment": True}


def _names(cells: list[NotebookNode]) -> set[str]:
    return {name for cell in cells for name in bound(cell.source)}


def used(source: str) -> set[str]:
    """List the global names that code uses."""
    found, tables = set(), [symtable.symtable(source, "cell", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")
        }
    return found


def bound(source: str) -> set[str]:
    """List the global names that code gives a value."""
    symbols = symtable.symtable(source, "cell", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}


def _is_graded_or_solution(cell: NotebookNode) -> bool:
    return cell.metadata.nbgrader["solution"] or cell.metadata.nbgrader["grade"]


def _only_defines(source: str) -> bool:
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return all(isinstance(node, kinds) or _is_constant(node) for node in ast.parse(source).body)


def _is_constant(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.Tuple))
