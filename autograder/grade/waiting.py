"""Checks that can wait for the next ones below them: one fork of the kernel then serves both."""

import ast
from collections.abc import Iterable

from autograder.grade.plan import Plan
from autograder.grade.verdict import Step
from course_pkg.checking import syntax

_PREDICT = "predict"  # of course_pkg: it shows what a student expects, and changes nothing


def can_wait(steps: list[Step], plan: Plan) -> set[str]:
    """Name the checks that find the same when the cells up to the next check have run as well.

    These cells then only define things, under names that no cell above says: nothing that was there
    has changed, and nothing that was looked for and missed has come.

    Args:
        steps: the code cells of a submission.
        plan: the cells of the assignment.
    """
    found: set[str] = set()
    said: set[str] = set()  # in all cells above
    imports: set[str] = set()
    own: set[str] = set()  # what students' cells have bound
    above: str | None = None  # the last check, if it can wait so far
    for step in steps:
        planned = plan.cells.get(step.name or "")
        if planned is not None and planned.is_checked:
            if above is not None:
                found.add(above)
            above = planned.name
        elif planned is None or not planned.is_experiment:
            is_own = planned is None or planned.is_written_by_students
            source = step.source if planned is None or is_own else planned.source
            tree = syntax.parse(source)
            own |= _bound(tree) if is_own and tree else set()
            if tree is None or _PREDICT in own:  # nobody knows what it says
                return found
            new = None if syntax.has_magics(source) else _defined(tree, imports, own)
            if new is None or new & said:
                above = None
            said |= _said(tree)
            imports |= {ast.unparse(node) for node in tree.body if _is_import(node)}
    return found


def _defined(tree: ast.Module, imports: set[str], own: set[str]) -> set[str] | None:
    """List what a cell defines; None if it does more than that, or imports something new."""
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if _is_pure(node, own):
                names.add(node.name)
            case ast.Assign(targets, value) if _are_names(targets) and _is_literal(value):
                names |= _bound(node)
            case ast.Expr(ast.Call(ast.Name(name), values, keywords)) if name == _PREDICT:
                if not all(map(_is_literal, [*values, *(each.value for each in keywords)])):
                    return None
            case _ if not (_is_text(node) or (_is_import(node) and ast.unparse(node) in imports)):
                return None
    return names


def _is_pure(node: ast.stmt, own: set[str]) -> bool:
    """Tell whether a definition does no more than that; what is in its functions runs later.

    Decorators are called, but not those of students: one may note what it gets.
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if _act([node.args, *filter(None, [node.returns])]):  # defaults, and annotations
                return False
        case ast.ClassDef():
            if _act([*node.bases, *node.keywords]):
                return False
            if not all(_is_pure(part, own) for part in node.body):
                return False
        case ast.Assign(targets=targets):
            return _are_names(targets) and not _act([node])
        case ast.AnnAssign(target=target):
            return _are_names([target]) and not _act([node])
        case _:
            return isinstance(node, ast.Pass) or _is_text(node)
    return not any(own & _said(decorator) for decorator in node.decorator_list)


def _act(nodes: Iterable[ast.AST]) -> bool:
    acting = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return any(isinstance(part, acting) for node in nodes for part in ast.walk(node))


def _are_names(targets: list[ast.expr]) -> bool:
    return not any(
        isinstance(part, (ast.Attribute, ast.Subscript))
        for target in targets
        for part in ast.walk(target)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_literal(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _bound(tree: ast.AST) -> set[str]:
    """List the names that are assigned, defined or imported, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(name, ast.Store() | ast.Del()):
                found.add(name)
            case ast.alias(name, other):
                found.add(other or name.partition(".")[0])
    return found


def _said(tree: ast.AST) -> set[str]:
    """List names, those of attributes and in texts too: by all of these code finds things."""
    found = _bound(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(_, name) | ast.Constant(str(name)):
                found.add(name)
    return found
