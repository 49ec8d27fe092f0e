"""What the outputs of a solved notebook depend on: its code, and the files that it imports."""

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbformat import NotebookNode

from autograder.assignment import ROOT, reference

CELLS = "its cells"
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def outputs_depend_on(cells: list[NotebookNode], topic: str = "") -> dict[str, str]:
    """Hash the code that decides the outputs of a notebook, by the place where it stands.

    Comments, docstrings and the shapes in signatures decide nothing, and neither do functions and
    classes that nothing else mentions, such as an exercise that no experiment uses. Cells that
    check are left out, since their outputs are written by every build, and so are predictions,
    which are empty in a solved notebook.

    Args:
        cells: the notebook's cells.
        topic: the assignment's, whose checks count if another cell calls `check`.
    Returns:
        A hash of the cells' code, under CELLS, and one of each file of course_pkg that they import,
        or that such a file imports; the machinery of checks is not among them.
    """
    code = "\n".join(code_alone(cell.source) for cell in cells if _computes(cell))
    found = _mentioned({CELLS: code} | _imported(code))
    checks = ROOT / "course_pkg" / "checks" / f"{topic}.py"
    if re.search(r"\bcheck\(", code) and checks.exists():
        found |= _codes([checks])
    return {name: _hash(code) for name, code in sorted(found.items())}


def graders_depend_on(topic: str) -> str:
    """Hash the code that decides what known mistakes give in the checks of an assignment."""
    return _hash_of(_of_graders(topic))


def scores_depend_on(topic: str) -> str:
    """Hash the code that decides the figures of an assignment on the scoreboard."""
    own = ROOT / "autograder" / "assignments" / topic
    author = ROOT / "autograder" / "author"
    paths = [
        *_of_graders(topic),
        *own.glob("*.py"),
        *(ROOT / "autograder" / f"{name}.py" for name in ("alternatives", "black_boxes")),
        *(author / f"{name}.py" for name in ("score", "mutants", "names")),
    ]
    return _hash_of(paths)


def _of_graders(topic: str) -> list[Path]:
    own = ROOT / "autograder" / "assignments" / topic
    author = ROOT / "autograder" / "author"
    return [
        *reference(topic),
        ROOT / "course_pkg" / "checks" / f"{topic}.py",
        own / "hidden.py",
        own / "mistakes.py",
        *(ROOT / "autograder" / f"{name}.py" for name in ("hidden", "mistakes")),
        *(author / f"{name}.py" for name in ("examination", "fingerprints", "empty_solutions")),
        *(ROOT / "course_pkg" / "checking").rglob("*.py"),
    ]


def _hash_of(paths: Iterable[Path]) -> str:
    """Hash the code of files, and of all that they import."""
    found = _codes(path for path in paths if path.exists())
    found |= _imported(*found.values())
    return _hash("\n".join(f"{name}: {code}" for name, code in sorted(found.items())))


def _imported(*codes: str) -> dict[str, str]:
    """The code of the files that some code imports, and of those that they import."""
    found: dict[str, str] = {}
    todo = [*codes]
    while todo:
        new = _codes(_needed(todo.pop()))
        todo += [code for name, code in new.items() if name not in found]
        found |= new
    return found


def _mentioned(codes: dict[str, str]) -> dict[str, str]:
    """Leave out functions and classes whose names stand nowhere but in what is left out itself.

    Imports mention nothing, since what they bring may not be used; what is decorated stays, since
    a decorator may note it somewhere.
    """
    words: set[str] = set()
    kept: list[tuple[str, int, str]] = []  # the file, the line in it, what stands there
    waiting = []
    for name, code in codes.items():
        lines = code.splitlines()
        for node in ast.parse(code).body:
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(each.lineno for each in decorators)])
            found = (name, first, "\n".join(lines[first - 1 : node.end_lineno]))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not decorators:
                waiting.append((node.name, found))
                continue
            kept.append(found)
            if not isinstance(node, ast.Import | ast.ImportFrom):
                words |= _words(found[2])
    while needed := [found for name, found in waiting if name in words]:
        waiting = [each for each in waiting if each[0] not in words]
        kept += needed
        words |= {word for *_, text in needed for word in _words(text)}
    texts: dict[str, list[str]] = {name: [] for name in codes}
    for name, _, text in sorted(kept):
        texts[name].append(text)
    return {name: "\n".join(found) for name, found in texts.items()}


def _words(code: str) -> set[str]:
    return set(re.findall(r"\w+", code))


def _codes(paths: Iterable[Path]) -> dict[str, str]:
    """The code of files, by their places."""
    return {
        path.relative_to(ROOT).as_posix(): code_alone(path.read_text(encoding="utf-8"))
        for path in paths
    }


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def changes(stored: dict[str, str], now: dict[str, str]) -> list[str]:
    """Name the places whose code is not what stored outputs came from."""
    return [name for name in sorted(stored | now) if stored.get(name) != now.get(name)]


@functools.cache
def code_alone(source: str) -> str:
    """Leave comments, docstrings, shapes and blank lines out of some code; it still is valid."""
    lines = source.splitlines()
    nodes = list(ast.walk(ast.parse(source)))
    kept = set()  # rows of texts, in which a blank line counts
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or _is_text(node):
            kept |= set(range(node.lineno, node.end_lineno + 1))
    for node in nodes:
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno
            lines[first - 1 : last] = [
                " " * node.body[0].col_offset + "pass",
                *[""] * (last - first),
            ]
            kept -= set(range(first, last + 1))
    shapes = {shape for node in nodes for shape in _shapes(node)}
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        row, column = token.start
        if token.type == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column].rstrip()
        elif token.start in shapes:
            lines[row - 1] = lines[row - 1][:column] + '""' + lines[row - 1][token.end[1] :]
    return "\n".join(line for row, line in enumerate(lines, 1) if line.strip() or row in kept)


def _shapes(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Where the texts in the annotations of a signature begin, such as "B T D"."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    arguments = [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]
    annotations = [node.returns, *(each.annotation for each in arguments)]
    for each in (each for top in annotations if top for each in ast.walk(top)):
        if _is_text(each):
            yield each.lineno, each.col_offset


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _computes(cell: NotebookNode) -> bool:
    known = cell.metadata.get("nbgrader")
    return cell.cell_type == "code" and known is not None and not known.grade


@functools.cache
def _needed(code: str) -> set[Path]:
    """Find the files of the course that some code imports.

    A package passes on names of its modules: only modules whose names the code mentions count, so
    that a new data set does not make notebooks stale that do not use it.
    """
    words, found = _words(code), set[Path]()
    for path in {path for name in _imports(code) for path in _files(name)}:
        if path.name != "__init__.py":
            found.add(path)
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in words & {alias.name for alias in node.names}:
                    found |= {*_files(node.module), *_files(f"{node.module}.{name}")}
    return found


def _imports(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files(module: str) -> Iterator[Path]:
    """The file of a module of course_pkg, if `module` is one and no machinery of checks."""
    names = module.split(".")
    if names[0] == "course_pkg" and names[1:2] not in (["checking"], ["checks"]):
        base = ROOT.joinpath(*names)
        yield from (p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists())
