"""Automatic wrong solutions: the reference with one small change in what students write.

Each mutant changes one node of the syntax tree: another operator, comparison, constant, function,
order of a tuple or list, branch, a copy or a statement left out, a value that is kept from the
first call, or a tensor that is returned without its axes of size 1.
"""

import ast
import copy
import functools
import importlib
import inspect
import itertools
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from autograder.mistakes import SAMPLED
from course_pkg.checking.registry import Exercise

_BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NAMES = {
    "sigmoid": "tanh",
    "tanh": "sigmoid",
    "softmax": "sigmoid",
    "exp": "expm1",
    "log": "log1p",
    "sqrt": "square",
    "ones_like": "zeros_like",
    "zeros_like": "ones_like",
    "new_zeros": "new_ones",
    "new_ones": "new_zeros",
    "zeros": "ones",
    "ones": "zeros",
    "sum": "mean",
    "mean": "sum",
    "min": "max",
    "max": "min",
    "argmax": "argmin",
    "tril": "triu",
    "triu": "tril",
    "reshape": "view",
}
_COPIES = {"list", "dict", "set", "deque"}  # called with one argument
_GUARDS = {"clone", "copy", "detach", "contiguous", "clamp", "nan_to_num"}  # methods


@dataclass(frozen=True)
class Mutant:
    """A changed reference.

    Attributes:
        name: each changed line, before and after.
        solution: the changed function or class.
        numbers: of the changes.
    """

    name: str
    solution: Callable
    numbers: tuple[int, ...]


Edit = Callable[[], None]


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Make every mutant of an exercise's reference.

    Only the lines that students write are changed: those between the solution markers, or the whole
    body where there are none; never signatures, docstrings or the texts of errors. Some exercises
    ask for a sample only, see `sample_mutants`.
    """
    reference = _reference(exercise)
    count = sum(1 for _ in _edits(ast.parse(reference.source), reference))
    for number in range(0, count, SAMPLED.get(exercise, 1)):
        if mutant := changed(exercise, number):
            yield mutant


def changed(exercise: Exercise, *numbers: int) -> Mutant | None:
    """Make some of the changes in one solution; None where that changes nothing."""
    reference = _reference(exercise)
    new = ast.parse(reference.source)
    edits = list(itertools.islice(_edits(new, reference), max(numbers) + 1))
    chosen = [edits[number] for number in numbers]
    before = [ast.unparse(statement).splitlines()[0] for statement, _ in chosen]
    for _, edit in chosen:
        edit()
    text = ast.unparse(new)
    if text == reference.unparsed:  # two equal things were exchanged
        return None
    after = [ast.unparse(statement).splitlines()[0] for statement, _ in chosen]
    file = f"<mutant {numbers} of {exercise.name}>"
    namespace = {**reference.globals, "KEPT": {}}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)  # Triton reads the source of its kernels
    name = "; ".join(
        f"{b} → {a if a != b else '(left out)'}" for b, a in zip(before, after, strict=True)
    )
    return Mutant(name, namespace[exercise.name], numbers)


class Change(NamedTuple):
    """One small change of some code.

    Attributes:
        line: the number of the line, from 1.
        before, after: the statement, or its first line; after is empty where it is left out.
        source: the changed code.
    """

    line: int
    before: str
    after: str
    source: str


def changes(source: str, lines: set[int]) -> Iterator[Change]:
    """Make every small change of some lines that a person might have written so.

    Args:
        source: any code.
        lines: the numbers of the lines that may change.
    """
    unparsed = ast.unparse(ast.parse(source))
    code = _Reference(source, {}, unparsed, lines, set(), lines)  # nothing is kept between calls
    for number in itertools.count():
        tree = ast.parse(source)
        if (found := next(itertools.islice(_edits(tree, code), number, None), None)) is None:
            return
        statement, edit = found
        line, before = statement.lineno, ast.unparse(statement).splitlines()[0]
        edit()
        text = ast.unparse(_Plain().visit(tree))
        if text == unparsed:
            continue
        if statement in ast.walk(tree):
            after = ast.unparse(statement).splitlines()[0]
            if after != before:  # what changed is seen
                yield Change(line, before, after, text)
        elif not isinstance(statement, ast.Return):
            yield Change(line, before, "", text)


class _Reference(NamedTuple):
    """A reference, and what all its mutants need to know of it.

    Attributes:
        source: its text.
        globals: the names of the module that it is in.
        unparsed: the same, as `ast` writes it.
        lines: those that students write.
        in_methods: those of assignments in methods.
        in_kernels: those of assignments in Triton kernels, which keep nothing between calls.
    """

    source: str
    globals: dict[str, object]
    unparsed: str
    lines: set[int]
    in_methods: set[int]
    in_kernels: set[int]


@functools.cache
def _reference(exercise: Exercise) -> _Reference:
    """Read a reference, once for all its mutants: to find a class, its whole module is parsed."""
    module = importlib.import_module(f"course_pkg.{exercise.module}")
    reference = getattr(module, exercise.name)
    source = textwrap.dedent(inspect.getsource(reference))
    tree = ast.parse(source)
    return _Reference(
        source,
        vars(sys.modules[reference.__module__]),
        ast.unparse(tree),
        _lines_of_students(source),
        in_methods=_assignments(tree, lambda f: bool(f.args.args) and f.args.args[0].arg == "self"),
        in_kernels=_assignments(tree, lambda f: bool(f.decorator_list)),
    )


def _assignments(tree: ast.Module, is_meant: Callable[[ast.FunctionDef], bool]) -> set[int]:
    """The lines of the assignments in some of the functions."""
    return {
        node.lineno
        for function in _functions(tree)
        if is_meant(function)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
    }


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _own(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """A function and what is in it, without the functions in it: these have their own turn."""
    todo: list[ast.AST] = [function]
    for node in todo:
        yield node
        children = ast.iter_child_nodes(node)
        todo += [child for child in children if not isinstance(child, ast.FunctionDef)]


def _lines_of_students(source: str) -> set[int]:
    marked, inside = set(), False
    lines = source.splitlines()
    for number, line in enumerate(lines, start=1):
        if "### BEGIN SOLUTION" in line:
            inside = True
        elif "### END SOLUTION" in line:
            inside = False
        elif inside:
            marked.add(number)
    return marked or set(range(1, len(lines) + 1))


def _edits(tree: ast.Module, reference: _Reference) -> Iterator[tuple[ast.stmt, Edit]]:
    """Every change that can be made to a tree: the statement that it is in, and how to make it."""
    lines = reference.lines
    nodes = [(function, list(_own(function))) for function in _functions(tree)]
    blocks = [
        block
        for _, own in nodes
        for node in own
        for name in ("body", "orelse")
        if isinstance(block := getattr(node, name, None), list)
    ]
    for block in blocks:
        for position, statement in enumerate(block):
            if statement.lineno not in lines or _is_docstring(statement):
                continue
            yield statement, lambda b=block, p=position: b.__setitem__(p, ast.Pass())
            if not isinstance(statement, ast.Raise):
                for node in _parts(statement):
                    for edit in _edits_of(node):
                        yield statement, edit
    for statement in itertools.chain(*blocks):
        if isinstance(statement, ast.Assign) and statement.lineno in lines - reference.in_kernels:
            if _depends_on_the_call(statement):
                in_method = statement.lineno in reference.in_methods
                yield statement, lambda s=statement, m=in_method: _keep(s, m)
    for function, own in nodes:
        for node in own:
            if isinstance(node, ast.Return) and node.lineno in lines and node.value is not None:
                for value in _tensors(node.value, function.returns):
                    yield node, lambda v=value: _squeeze(v)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and the expressions in it, without the statements and the texts in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.JoinedStr)):
            yield from _parts(child)


def _edits_of(node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _BINARY:
            yield lambda: setattr(node, "op", _BINARY[type(node.op)]())
        case ast.Compare() if type(node.ops[0]) in _COMPARE:
            yield lambda: node.ops.__setitem__(0, _COMPARE[type(node.ops[0])]())
        case ast.Constant(value=bool()):
            yield lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int()):
            yield lambda: setattr(node, "value", node.value + 1)
        case ast.Constant(value=float()):
            yield lambda: setattr(node, "value", node.value * 2)
        case ast.UnaryOp(op=ast.USub()):
            yield lambda: setattr(node, "op", ast.UAdd())
        case ast.UnaryOp():
            yield lambda: setattr(node, "operand", ast.UnaryOp(node.op, node.operand))
        case ast.Attribute() if node.attr in _NAMES:
            yield lambda: setattr(node, "attr", _NAMES[node.attr])
        case ast.BoolOp():
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield lambda: setattr(node, "op", other())
        case ast.IfExp():
            yield lambda: _exchange(node, "body", "orelse")
        case ast.If() | ast.While():
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.Slice() if node.lower or node.upper:
            yield lambda: _exchange(node, "lower", "upper")
        case ast.Tuple() | ast.List():
            yield from _exchanges(node.elts)
        case ast.Call(func=ast.Name(name), args=[_], keywords=[]) if name in _COPIES:
            yield lambda: setattr(node, "func", _SAME)
        case ast.Call(func=ast.Attribute(attr=name)) if name in _GUARDS:
            yield lambda: _leave_out(node)
        case ast.Call():
            yield from _exchanges(node.args)
            for keyword in node.keywords:
                yield lambda keyword=keyword: node.keywords.remove(keyword)


_SAME = ast.parse("lambda same: same", mode="eval").body


class _Plain(ast.NodeTransformer):
    """Write x where a change has put the call that returns x."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return node.args[0] if node.func is _SAME else node


def _leave_out(call: ast.Call) -> None:
    """Turn x.clone() into x."""
    assert isinstance(call.func, ast.Attribute)
    call.args, call.keywords, call.func = [call.func.value], [], _SAME


def _depends_on_the_call(statement: ast.Assign) -> bool:
    """Tell whether a name gets a value that more than constants and attributes of self decide."""
    names = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    has_call = any(isinstance(node, ast.Call) for node in ast.walk(statement.value))
    is_own = names <= {"self"} and not has_call
    return isinstance(statement.targets[0], ast.Name) and bool(names) and not is_own


def _keep(statement: ast.Assign, in_method: bool) -> None:
    """Use the value of the first call, of an instance or of all, in the others too."""
    key = ast.unparse(statement.targets[0])
    place = "vars(self)" if in_method else "KEPT"
    first = ast.parse(f"{place}.setdefault({key!r}, 0)", mode="eval").body
    assert isinstance(first, ast.Call)
    first.args[1] = statement.value
    statement.value = first


def _tensors(value: ast.expr, annotation: ast.expr | None) -> Iterator[ast.expr]:
    """The parts of what is returned that the annotation says to be tensors with axes."""
    match annotation:
        case ast.Subscript(ast.Name("tuple"), ast.Tuple(parts)) if isinstance(value, ast.Tuple):
            for item, part in zip(value.elts, parts, strict=False):
                yield from _tensors(item, part)
        case ast.Subscript(ast.Name(), ast.Tuple([_, ast.Constant(str(axes))])):
            if any(axis.isidentifier() for axis in axes.split()):  # others, as 4*H, are never 1
                yield value


def _squeeze(value: ast.expr) -> None:
    """Turn x into x.squeeze(), in place."""
    inner = copy.copy(value)
    new = ast.Call(ast.Attribute(inner, "squeeze", ast.Load()), [], [])
    value.__class__, value.__dict__ = new.__class__, new.__dict__


def _exchange(node: ast.AST, first: str, second: str) -> None:
    a, b = getattr(node, first), getattr(node, second)
    setattr(node, first, b)
    setattr(node, second, a)


def _exchanges(items: list[ast.expr]) -> Iterator[Edit]:
    for n in range(len(items) - 1):
        yield lambda n=n: items.__setitem__(slice(n, n + 2), items[n : n + 2][::-1])
