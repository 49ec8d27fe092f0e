"""Documentation to learn from: the docstrings of Python and of the packages of this course."""

import ast
import inspect
import sysconfig
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

STANDARD = "python"  # stands for the standard library
PACKAGES = (STANDARD, "numpy", "scipy", "sklearn", "matplotlib", "pandas", "torch")
_LEFT_OUT = {"test", "tests", "testing", "_vendor", "_pytest", "idlelib", "site-packages"}
_HELD_OUT = 20  # one module of so many is for testing


@dataclass(frozen=True)
class Page:
    """The documentation of one module.

    Attributes:
        module: its name.
        text: its docstring and those of its functions, classes and methods, each below a line
            such as "## numpy.linalg.norm(x, ord=None, axis=None, keepdims=False)".
        held_out: whether it is for testing; the name decides, so that it is so on every machine.
    """

    module: str
    text: str
    held_out: bool


@cache
def pages(packages: tuple[str, ...] = PACKAGES) -> tuple[Page, ...]:
    """Read the documentation of packages.

    Files are read, not imported. Paragraphs that have occurred before are left out, and so are
    private names and tests. What comes out depends on the versions that are installed.

    Args:
        packages: their names, or STANDARD; one that is not installed is left out.
    Returns:
        The pages, in the order of the modules' names within each package.
    """
    seen: set[str] = set()
    found = []
    for module, path in _modules(packages):
        text = "\n\n".join(_entries(module, path, seen))
        if text:
            held_out = zlib.crc32(module.encode()) % _HELD_OUT == 0
            found.append(Page(module, text + "\n", held_out))
    return tuple(found)


def _modules(packages: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """List modules and their files."""
    for package in packages:
        if package == STANDARD:
            yield from _below(Path(sysconfig.get_paths()["stdlib"]), "")
            continue
        spec = find_spec(package)
        if spec is not None and spec.origin is not None:
            yield from _below(Path(spec.origin).parent, f"{package}.")


def _below(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    paths = {path.relative_to(folder).with_suffix("").parts: path for path in folder.rglob("*.py")}
    for parts in sorted(paths):
        if not any(part in _LEFT_OUT or part.startswith(("test_", "lib2to3")) for part in parts):
            name = ".".join(part for part in parts if part != "__init__")
            yield (prefix + name).rstrip("."), paths[parts]


def _entries(module: str, path: Path, seen: set[str]) -> Iterator[str]:
    """Give the docstrings of a file, each below its heading."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for heading, node in [(module, tree), *_named(tree, module)]:
        paragraphs = [part for part in _paragraphs(node) if part not in seen]
        seen.update(paragraphs)
        if paragraphs:
            yield "\n\n".join([f"## {heading}", *paragraphs])


def _named(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """List functions, classes and methods that have public names, with their signatures."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.ClassDef) or child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        if isinstance(child, ast.ClassDef):
            yield name, child
            yield from _named(child, name)
        else:
            yield f"{name}({ast.unparse(child.args)})", child


def _paragraphs(node: ast.AST) -> list[str]:
    text = ast.get_docstring(node, clean=False) or ""
    return [part.strip("\n") for part in inspect.cleandoc(text).split("\n\n") if part.strip()]
