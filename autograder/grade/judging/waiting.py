"""Checks that can wait for the next ones below them: one fork of the kernel then serves both."""

import ast
from collections.abc import Iterable

from autograder.grade.judging.verdict import Step
from autograder.grade.submission.plan import Plan
from course_pkg.checking.rules import syntax

_PREDICT = "predict"  # of course_pkg: it shows what a student expects, and changes nothing
# With one of these, code finds what is defined without naming it.
_LOOKING = set("globals eval exec get_ipython sys gc inspect __import__".split())
_HOOKS = {"__init_subclass__", "metaclass"}  # run when somebody derives a class
_DECORATORS = set(
    """
    property staticmethod classmethod dataclass dataclasses.dataclass torch.no_grad
    torch.inference_mode cache lru_cache wraps functools.cache functools.lru_cache functools.wraps
    """.split()
)


def can_wait(steps: list[Step], plan: Plan) -> set[str]:
    """Name the checks that find the same when the cells up to the next check have run as well.

    These cells then only define things, under names that no cell above says: nothing that was there
    has changed, and nothing that was looked for and missed has come. Whatever cannot be read so
    does not wait.

    Args:
        steps: the code cells of a submission.
        plan: the cells of the assignment.
    """
    found: set[str] = set()
    said: set[str] = set()  # in all cells above
    own: set[str] = set()  # what students' cells have bound
    imports: set[str] = set()  # those of the assignment
    above: str | None = None  # the last check, if it can wait so far
    if not syntax.is_readable(step.source for step in steps):
        return found
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
            if tree is None:  # nobody knows what it says
                return found
            if is_own:
                own |= _bound(node for node in tree.body if not _repeats(node, imports))
                if _PREDICT in own or _LOOKING & _names(tree) or "__main__" in _said(tree):
                    return found
            new = None if syntax.has_magics(source) else _defined(tree, imports, own, said)
            if new is None or new & said:
                above = None
            said |= _said(tree)
            if not is_own:
                imports.update(*map(_imported, tree.body))
    return found


def _defined(tree: ast.Module, imports: set[str], own: set[str], said: set[str]) -> set[str] | None:
    """List what a cell defines; None if it does more than that, or imports something new."""
    names: set[str] = set()
    has_hooks = bool(said & _HOOKS or _said(tree) & _HOOKS)
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if has_hooks or not _is_pure(node, own):
                    return None
                names.add(node.name)
            case ast.Assign(targets, value) if _are_names(targets) and _is_literal(value):
                names |= _bound(targets)
            case ast.Expr(ast.Call(ast.Name(name), values, keywords)) if name == _PREDICT:
                if not all(map(_is_literal, [*values, *(each.value for each in keywords)])):
                    return None
            case _ if _repeats(node, imports):
                if _bound([node]) & own:
                    return None
            case _ if not _is_text(node):
                return None
    return names


def _is_pure(node: ast.stmt, own: set[str]) -> bool:
    """Tell whether a definition does no more than that; what is in its functions runs later.

    What is computed meanwhile calls nothing, and reads nothing of the student's: that may act when
    it is read, or be another thing by then. A class of the student's may be derived or named.
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            args, more = node.args, [node.returns]
            kinds = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
            more += [kind.annotation for kind in kinds if kind is not None]
            rest = [*args.defaults, *args.kw_defaults]
        case ast.ClassDef():
            if not all(_is_pure(part, own) for part in node.body):
                return False
            more, rest = [*node.bases], [keyword.value for keyword in node.keywords]
        case ast.Assign(targets=targets):
            return _are_names(targets) and _is_quiet(node.value, own)
        case ast.AnnAssign(target=target, annotation=annotation, value=value):
            return _are_names([target]) and all(_is_quiet(x, own) for x in (annotation, value) if x)
        case _:
            return isinstance(node, ast.Pass) or _is_text(node)
    return (
        all(isinstance(part, ast.Name) or _is_quiet(part, own) for part in more if part)
        and all(_is_quiet(part, own) for part in rest if part)
        and all(_is_known_decorator(part, own) for part in node.decorator_list)
    )


def _is_known_decorator(node: ast.expr, own: set[str]) -> bool:
    if isinstance(node, ast.Call):
        if not all(map(_is_literal, [*node.args, *(each.value for each in node.keywords)])):
            return False
        node = node.func
    return ast.unparse(node) in _DECORATORS and not _names(node) & own


def _is_quiet(node: ast.AST, own: set[str]) -> bool:
    """Tell whether an expression calls nothing and names nothing of the student's."""
    acting = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return not any(isinstance(part, acting) for part in ast.walk(node)) and not _names(node) & own


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _are_names(targets: list[ast.expr]) -> bool:
    return not any(
        isinstance(part, (ast.Attribute, ast.Subscript))
        for target in targets
        for part in ast.walk(target)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_literal(node: ast.AST) -> bool:
    if any(isinstance(part, ast.Call) for part in ast.walk(node)):  # set() is one to literal_eval
        return False
    try:
        ast.literal_eval(node)
    except Exception:  # {[1]} and the like fail when the cell runs, too
        return False
    return True


def _imported(node: ast.AST) -> set[str]:
    """List what is imported, each as a statement of its own."""
    match node:
        case ast.Import(names):
            return {ast.unparse(ast.Import([alias])) for alias in names}
        case ast.ImportFrom(module, names, level):
            return {ast.unparse(ast.ImportFrom(module, [alias], level)) for alias in names}
    return set()


def _repeats(node: ast.AST, imports: set[str]) -> bool:
    """Tell whether all that a statement does is to import what has been imported."""
    found = _imported(node)
    return bool(found) and found <= imports and not any(each.endswith("*") for each in found)


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """List the global names that are assigned, defined or imported, and those declared so."""
    found: set[str] = set()
    todo = list(nodes)
    while todo:
        match node := todo.pop():
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
                inner = [part.names for part in ast.walk(node) if isinstance(part, ast.Global)]
                found.update(name for names in inner for name in names)
                continue  # the others in it are its own
            case ast.Name(name, ast.Store() | ast.Del()):
                found.add(name)
            case ast.alias(name, other):
                found.add(other or name.partition(".")[0])
        todo += ast.iter_child_nodes(node)
    return found


def _said(tree: ast.AST) -> set[str]:
    """List names, those of attributes and in texts too: by all of these code finds things."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.Attribute(_, name) | ast.keyword(str(name)):
                found.add(name)
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                found.add(name)
            case ast.Constant(str(name)):
                found.update(name.split("."))
            case ast.alias(name, other):
                found.update([*name.split("."), other or ""])
    return found
