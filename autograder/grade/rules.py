"""Rules about a solution: what would make its exercise empty must not be used.

Judged on the text of the submission: on what an exercise's definition reaches, by whatever name.
What only runs to hide a name ("LS" + "TM" from a file, say) meets a stub in the sandbox instead.
"""

import ast
import functools
from collections.abc import Sequence
from typing import TypeGuard

from autograder.grade.syntax import parse
from autograder.hidden import forbidden
from course_pkg.checking.registry import Exercise

_SKIPPED = ("annotation", "returns")  # fields that name types and call nothing


def breach(exercise: Exercise, sources: Sequence[str], given: Sequence[str] = ()) -> str | None:
    """Say which forbidden name a solution uses and where; None if it uses none.

    Args:
        exercise: the exercise.
        sources: the cells that the student wrote, in order.
        given: the assignment's own cells, whose imports the student's code uses.
    """
    names = set(forbidden(exercise))
    if not names:
        return None
    code = _code(tuple(sources), tuple(given))
    for statement, text in code.reached_from(exercise.name):
        for number, path in code.paths(statement):
            if path in names:
                line = text.splitlines()[number - 1].strip()
                return (
                    f"✗ {exercise.name} uses {path}, which does the exercise's work: write it "
                    f"yourself.\n  In line {number} of its cell: {line[:70]}"
                )
    return None


@functools.lru_cache(maxsize=4)  # all exercises of a submission ask about the same cells
def _code(sources: tuple[str, ...], given: tuple[str, ...]) -> "_Code":
    return _Code(sources, given)


class _Code:
    """The statements of a notebook and what their names stand for."""

    def __init__(self, sources: tuple[str, ...], given: tuple[str, ...]):
        self._statements: list[tuple[ast.stmt, str]] = []
        self._names: dict[str, set[str]] = {}
        self._stars: list[str] = []
        for number, source in enumerate([*given, *sources]):
            tree = parse(source)
            for node in ast.walk(tree) if tree else []:
                self._learn_imports(node)
            if tree is not None and number >= len(given):
                self._statements += [(statement, source) for statement in tree.body]
        for _ in range(4):  # names of names
            for statement, _text in self._statements:
                for node in ast.walk(statement):
                    self._learn_assignment(node)
        self._defined = {name for s, _ in self._statements for name in _bound(s)}

    def reached_from(self, name: str) -> list[tuple[ast.stmt, str]]:
        """List the statements that give a name its value, and those that these depend on."""
        found: list[tuple[ast.stmt, str]] = []
        todo, seen = [(name, False)], set()
        while todo:
            item = todo.pop()
            if item in seen:
                continue
            seen.add(item)
            for statement, text in self._binding(*item):
                if not any(statement is other for other, _ in found):
                    found.append((statement, text))
                is_definition = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                        todo.append((node.id, not is_definition))
        return found

    def paths(self, statement: ast.stmt) -> list[tuple[int, str]]:
        """List the full names that a statement uses, with their lines."""
        found: list[tuple[int, str]] = []
        todo: list[ast.AST] = [statement]
        while todo:
            node = todo.pop(0)
            if isinstance(node, ast.Import):
                continue
            if isinstance(node, ast.ImportFrom):
                line, module = node.lineno, node.module
                found += [(line, _plain(f"{module}.{alias.name}")) for alias in node.names]
                continue
            if isinstance(node, ast.expr):
                found += [(node.lineno, _plain(path)) for path in self._resolve(node)]
            if _is_call_of(node, "eval", "exec"):
                inner = parse(_text(node.args[0]) or "")
                for part in inner.body if inner else []:
                    found += [(node.lineno, path) for _, path in self.paths(part)]
            if _is_call_of(node, "isinstance", "issubclass"):
                todo.append(node.args[0])
                continue
            todo += [
                child
                for field, value in ast.iter_fields(node)
                if field not in _SKIPPED
                for child in (value if isinstance(value, list) else [value])
                if isinstance(child, ast.AST)
            ]
        return found

    def _binding(self, name: str, also_earlier: bool) -> list[tuple[ast.stmt, str]]:
        """List the statements that bind a name: from the last whole definition on, or all."""
        found = [(s, text) for s, text in self._statements if name in _bound(s)]
        if also_earlier:
            return found
        whole = (ast.FunctionDef, ast.ClassDef)
        last = [n for n, (s, _) in enumerate(found) if isinstance(s, whole)]
        return found[last[-1] :] if last else found

    def _learn_imports(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self._names.setdefault(name, set()).add(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name == "*":
                    self._stars.append(node.module)
                else:
                    path = f"{node.module}.{alias.name}"
                    self._names.setdefault(alias.asname or alias.name, set()).add(path)

    def _learn_assignment(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            pairs.append((node.target, node.value))
        for target, value in pairs:
            if isinstance(target, ast.Name) and (paths := self._resolve(value)):
                known = self._names.setdefault(target.id, set())
                known |= {path for path in paths if len(path) < 200 and len(known) < 20}

    def _resolve(self, node: ast.AST) -> set[str]:
        """List the full names that an expression may stand for."""
        match node:
            case ast.Name(id):
                found = set(self._names.get(id, ()))
                if id not in getattr(self, "_defined", {id}):
                    found |= {f"{module}.{id}" for module in self._stars}
                return found
            case ast.Attribute(value, attr):
                paths = self._resolve(value)
                return paths if attr == "__dict__" else {f"{path}.{attr}" for path in paths}
            case ast.Call(ast.Name("getattr"), [value, name, *_]) if text := _text(name):
                return {f"{path}.{text}" for path in self._resolve(value)}
            case ast.Call(ast.Name("__import__"), [name, *_]) if text := _text(name):
                return {text.partition(".")[0]}
            case ast.Call(ast.Name("vars"), [value]):
                return self._resolve(value)
            case ast.Call(ast.Attribute(attr="import_module"), [name, *_]) if text := _text(name):
                return {text}
            case ast.Subscript(value, index) if text := _text(index):
                if isinstance(value, ast.Attribute) and value.attr == "modules":
                    return {text}  # sys.modules
                return {f"{path}.{text}" for path in self._resolve(value)}
        return set()


def _plain(path: str) -> str:
    """Give a name as it is documented: classes of torch.nn live in torch.nn.modules."""
    parts = path.split(".")
    if parts[:3] == ["torch", "nn", "modules"]:
        return f"torch.nn.{parts[-1]}"
    if parts[:2] in (["torch", "_VF"], ["torch", "_C"]):
        return f"torch.{parts[-1]}"
    if parts[:4] == ["torch", "ops", "aten", *parts[3:4]]:
        return f"torch.{parts[3]}"
    return path


def _bound(statement: ast.stmt) -> set[str]:
    """List the names that a statement gives a value, or whose attributes or items it changes."""
    found: set[str] = set()
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
                continue
            case ast.Import() | ast.ImportFrom():
                found |= {a.asname or a.name.partition(".")[0] for a in node.names}
            case ast.Name(id, ast.Store()):
                found.add(id)
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            case ast.Call(ast.Name("setattr"), [target, *_]):
                found |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        todo += ast.iter_child_nodes(node)
    return found


def _text(node: ast.AST) -> str | None:
    """The string that an expression of constants is."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.BinOp(left, ast.Add(), right):
            first, second = _text(left), _text(right)
            return None if first is None or second is None else first + second
    return None


def _is_call_of(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in names
        and bool(node.args)
    )
