"""What a solution uses of what a rule forbids, found in the text of the notebook.

It is what an exercise's definition reaches, by whatever name. Who hides a name ("LS" + "TM" from a
file, say) is not found here, and calls what raises (see enforcement).
"""

import ast
import builtins
import functools
import re
import symtable
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from course_pkg.checking.registry import Exercise
from course_pkg.checking.rules.rules import rule_of
from course_pkg.checking.rules.syntax import is_readable, parse

# What lets other code, or another process, do the work unseen; and what enforces rules.
_WAYS_ROUND = (
    *("ctypes", "multiprocessing", "socket", "subprocess"),
    *("torch._dynamo", "torch._inductor", "torch.export", "torch.fx", "torch.jit", "torch.library"),
)
_KNOWING = ("course_pkg.checks", "course_pkg.checking")
_ENFORCING = (
    "course_pkg.checking.rules.enforcement",
    "course_pkg.checking.guard",
    "course_pkg.remote",
)
LONGEST = 200  # characters of a full name
_SKIPPED = ("annotation", "returns")  # fields that name types and call nothing
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.NamedExpr)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # what has names of its own


def breach(exercise: Exercise, sources: Sequence[str], given: Sequence[str] = ()) -> str | None:
    """Say which forbidden name a solution uses and where; None if it uses none.

    Every exercise forbids the checks themselves, which compute what is right. A notebook that is
    much longer than any should be is not read, and the sentence says so.

    Args:
        exercise: the exercise.
        sources: the cells that the student wrote, in order.
        given: the assignment's own cells, whose imports the student's code uses.
    """
    if not is_readable(sources):
        length = sum(map(len, sources))
        return f"The notebook has {length:,} characters of code: a grader will look at it."
    try:
        return _breach(exercise, _code(tuple(sources), tuple(given)))
    except RecursionError:
        return "The notebook's code is nested too deeply to be read: a grader will look at it."


def _breach(exercise: Exercise, code: "_Code") -> str | None:
    names = rule_of(exercise).names
    modules = (*_KNOWING, *_WAYS_ROUND) if names else _KNOWING
    for statement, text in code.reached_from(exercise.name):
        for number, path in code.paths(statement):
            if path in names or _is_in(path, modules):
                return _sentence(exercise.name, path, number, text)
    if not names:
        return None
    return None if code.interference is None else _sentence("The notebook", *code.interference)


def names_used(name: str, sources: Sequence[str], given: Sequence[str] = ()) -> set[str]:
    """List the names that a definition in a notebook uses, by itself or through others.

    Args:
        name: what is defined.
        sources: the cells that the student wrote, in order.
        given: the assignment's own cells.
    """
    if not is_readable(sources):
        return set()
    code = _code(tuple(sources), tuple(given))
    return {used for statement, _ in code.reached_from(name) for used in code.read_by(statement)}


def _is_in(path: str, modules: Sequence[str]) -> bool:
    return any(f"{path}.".startswith(f"{module}.") for module in modules)


def _sentence(who: str, path: str, number: int, text: str) -> str:
    line = text.splitlines()[number - 1].strip()
    return (
        f"{who} uses {path}, in line {number} of its cell, {line[:70]!r}: write it yourself; "
        "a grader will look at it."
    )


@functools.lru_cache(maxsize=4)  # all exercises of a submission ask about the same cells
def _code(sources: tuple[str, ...], given: tuple[str, ...]) -> "_Code":
    return _Code(sources, given)


class _Code:
    """The statements of a notebook and what their names stand for."""

    def __init__(self, sources: tuple[str, ...], given: tuple[str, ...]):
        self.statements: list[tuple[ast.stmt, str]] = []
        self._bindings: dict[str, list[tuple[ast.stmt, str]]] = {}
        self._names: dict[str, set[str]] = {}  # of the notebook
        self._locals: dict[int, dict[str, set[str]]] = {}  # of functions and classes
        self._reads: dict[int, set[str]] = {}
        self._paths: dict[int, list[tuple[int, str]]] = {}
        self._stars: list[str] = []
        self._resolved: dict[int, set[str]] | None = None  # by expression, once names are known
        self._trees = [parse(source) for source in (*given, *sources)]
        assignments: list[tuple[ast.AST, ast.stmt]] = []
        for number, (tree, source) in enumerate(zip(self._trees, (*given, *sources), strict=True)):
            for statement in tree.body if tree else []:
                self._reads[id(statement)] = globals_of(statement)
                nodes = list(ast.walk(statement))
                for node in nodes:
                    self._learn_imports(node, statement)
                if number >= len(given):
                    assignments += [(n, statement) for n in nodes if isinstance(n, _ASSIGNMENTS)]
                    self.statements.append((statement, source))
                    for name in _bound(statement) | _declared_global(statement):
                        self._bindings.setdefault(name, []).append((statement, source))
        for _ in range(4):  # names of names
            for node, statement in assignments:
                self._learn_assignment(node, statement)
        self._resolved = {}

    def reached_from(self, name: str) -> list[tuple[ast.stmt, str]]:
        """List the statements that give a name its value, and those that these depend on."""
        found: dict[int, tuple[ast.stmt, str]] = {}
        todo, seen = [(name, False)], set()
        while todo:
            item = todo.pop()
            if item in seen:
                continue
            seen.add(item)
            for statement, text in self._binding(*item):
                if id(statement) not in found:
                    found[id(statement)] = statement, text
                    is_definition = isinstance(statement, _SCOPES)
                    todo += [(used, not is_definition) for used in self._reads[id(statement)]]
        return list(found.values())

    def read_by(self, statement: ast.stmt) -> set[str]:
        """List the notebook's names that a statement reads."""
        return self._reads[id(statement)]

    def paths(self, statement: ast.stmt) -> list[tuple[int, str]]:
        """List the full names that a statement uses, with their lines."""
        if id(statement) not in self._paths:  # several exercises may reach it
            self._paths[id(statement)] = self._find_paths(statement)
        return self._paths[id(statement)]

    def _find_paths(self, statement: ast.stmt) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        todo: deque[ast.AST] = deque([statement])
        while todo:
            node = todo.popleft()
            if isinstance(node, ast.Import):
                continue
            if isinstance(node, ast.ImportFrom):
                line, module = node.lineno, node.module
                found += [(line, _plain(f"{module}.{alias.name}")) for alias in node.names]
                continue
            if isinstance(node, ast.expr):
                found += [(node.lineno, _plain(p)) for p in self._resolve(node, statement)]
            if _is_call_of(node, "eval", "exec"):
                inner = parse(_text(node.args[0]) or "")
                self._trees.append(inner)  # as long as it lives, nothing else has its nodes' ids
                for part in inner.body if inner else []:
                    self._reads[id(part)] = globals_of(part)
                    found += [(node.lineno, path) for _, path in self._find_paths(part)]
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

    @functools.cached_property
    def interference(self) -> tuple[str, int, str] | None:
        """What enforces rules, if the notebook names it: its full name, the line, the cell."""
        for statement, text in self.statements:
            for number, path in self.paths(statement):
                if _is_in(path, _ENFORCING):
                    return path, number, text
        return None

    def _binding(self, name: str, also_earlier: bool) -> list[tuple[ast.stmt, str]]:
        """List the statements that bind a name: from the last whole definition on, or all."""
        found = self._bindings.get(name, [])
        if also_earlier:
            return found
        last = [n for n, (s, _) in enumerate(found) if isinstance(s, _SCOPES)]
        return found[last[-1] :] if last else found

    def _known(self, statement: ast.stmt, name: str) -> set[str]:
        """What a name that a statement binds stands for, to be added to."""
        if isinstance(statement, _SCOPES) and name not in _declared_global(statement):
            return self._locals.setdefault(id(statement), {}).setdefault(name, set())
        return self._names.setdefault(name, set())

    def _learn_imports(self, node: ast.AST, statement: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                self._known(statement, name).add(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if alias.name == "*":
                    self._stars.append(node.module)
                else:
                    name = alias.asname or alias.name
                    self._known(statement, name).add(f"{node.module}.{alias.name}")

    def _learn_assignment(self, node: ast.AST, statement: ast.stmt) -> None:
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
            if isinstance(target, ast.Name) and (paths := self._resolve(value, statement)):
                known = self._known(statement, target.id)
                known |= {path for path in paths if len(path) < LONGEST and len(known) < 20}

    def _resolve(self, node: ast.AST, statement: ast.stmt) -> set[str]:
        """List the full names that an expression of a statement may stand for.

        It is found once, as all parts of a long expression are asked about.
        """
        if self._resolved is None:
            return self._find_names(node, statement)
        if id(node) not in self._resolved:
            self._resolved[id(node)] = self._find_names(node, statement)
        return self._resolved[id(node)]

    def _find_names(self, node: ast.AST, statement: ast.stmt) -> set[str]:
        resolve = functools.partial(self._resolve, statement=statement)
        match node:
            case ast.Name(name):
                found = set(self._locals.get(id(statement), {}).get(name, ()))
                if name in self._reads[id(statement)]:
                    found |= self._names.get(name, set())
                    if name not in self._bindings:
                        found |= {f"{m}.{name}" for m in self._stars if _may_have(m, name)}
                return found
            case ast.Attribute(value, attr):
                paths = resolve(value)
                return paths if attr == "__dict__" else _with(paths, attr)
            case ast.Call(ast.Name("getattr"), [value, name, *_]) if text := _text(name):
                return _with(resolve(value), text)
            case ast.Call(ast.Name("__import__"), [name, *_]) if text := _text(name):
                return {text.partition(".")[0]}
            case ast.Call(ast.Name("vars"), [value]):
                return resolve(value)
            case ast.Call(ast.Attribute(attr="import_module"), [name, *_]) if text := _text(name):
                return {text}
            case ast.Subscript(value, index) if text := _text(index):
                if isinstance(value, ast.Attribute) and value.attr == "modules":
                    return {text}  # sys.modules
                return _with(resolve(value), text)
        return set()


def _may_have(module: str, name: str) -> bool:
    """Whether `from module import *` can bind a name: no module of the course hides a builtin."""
    return not (hasattr(builtins, name) and module.partition(".")[0] == __name__.partition(".")[0])


def _with(paths: set[str], name: str) -> set[str]:
    """Add a name to full names, if these can be those of something."""
    return {f"{path}.{name}" for path in paths if len(path) < LONGEST}


def _plain(path: str) -> str:
    """Give a name as it is documented: classes of torch.nn live in torch.nn.modules."""
    if operator := re.match(r"torch\..*(?:_VF|_C|_VariableFunctions|ops\.aten)\.(\w+)", path):
        return f"torch.{operator[1]}"
    return re.sub(r"^torch\.nn\.modules\..*\.", "torch.nn.", path)


@functools.lru_cache(maxsize=64)
def _declared_global(statement: ast.stmt) -> set[str]:
    """List the names that functions in a statement declare to be the notebook's."""
    found = (node.names for node in ast.walk(statement) if isinstance(node, ast.Global))
    return {name for names in found for name in names}


def globals_of(statement: ast.stmt) -> set[str]:
    """List the notebook's names that a statement reads: neither parameters nor local names."""
    try:
        table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return set(_read_in(table))


def _read_in(table: symtable.SymbolTable) -> Iterator[str]:
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_top or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read_in(inner)


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
