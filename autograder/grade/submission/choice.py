"""Find the notebook that a student means to submit, whatever it is called and wherever it lies."""

import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograder.grade.submission.files import COUNT, NOT_WORK, SET_ASIDE, is_notebook, shown, walk
from autograder.grade.submission.mend import mend, recognise, squeeze
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import BYTES, Notebook, Unreadable, read
from course_pkg.checking.rules.syntax import bindings, is_readable

_ZIP = b"PK\x03\x04"
_ZIP_ENTRY = b"PK\x01\x02"
_BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    ValueError,  # a name that is not the UTF-8 that it says it is
)
_NAMED = 3  # files that a sentence names
ARCHIVES = 3  # within each other
NOTEBOOKS = 100  # of a submission; with BYTES for all of them together


@dataclass
class _Left:
    """What is left for a submission's notebooks, in archives or not, that have yet to be read."""

    size: int = BYTES
    number: int = NOTEBOOKS
    is_over: bool = False  # since one did not fit

    def takes(self, size: int) -> bool:
        """Say whether one of this size is read, and count it."""
        self.size, self.number = self.size - size, self.number - 1
        self.is_over = self.is_over or min(self.size, self.number) < 0
        return not self.is_over


def choose(folder: Path, assignment: str, plan: Plan) -> Notebook:
    """Read the notebook of a submission: of several, the one in which most is solved.

    A person should look if another one holds work that the chosen one does not.

    Args:
        folder: the submission.
        assignment: its name, which the notebook should have too.
        plan: the assignment's cells.
    Returns:
        The notebook; one without cells, and the reason, if there is none.
    """
    right = f"{assignment}.ipynb"
    left = _Left()
    found, broken = _read_all(folder, right, left)
    fitting = {name: nb for name, nb in found.items() if recognise(nb.cells, plan)}
    aside = _set_aside(folder)
    if left.is_over:
        aside.append(
            f"not all notebooks were read: more than {NOTEBOOKS}, or {BYTES >> 20} MB together"
        )
    if not fitting:
        return _unfitting(folder, found, broken.get(right, ""), right, aside)
    works = {name: _work(nb, plan) if len(fitting) > 1 else set() for name, nb in fitting.items()}
    best = max(fitting, key=lambda name: (len({n for n, _ in works[name]}), name == right))
    chosen = fitting[best]
    chosen.doubts += aside
    if best != right:
        chosen.remarks.append(f"{best} was graded")
    if others := [name for name in fitting if works[name] - works[best]]:
        chosen.doubts.append(f"{best} was graded, and there is other work in {_listed(others)}")
    if best != right and right in broken and (folder / right).stat().st_size:
        chosen.doubts.append(f"{best} was graded, because of {right}: {broken[right]}")
    return chosen


def _read_all(folder: Path, right: str, left: _Left) -> tuple[dict[str, Notebook], dict[str, str]]:
    """Read all notebooks, the one of the right name first; say what is wrong with the others."""
    found, broken = {}, {}
    for name, data, doubts in _candidates(folder, right, left):
        while name in found or name in broken:  # names may differ in what is not shown
            name += "_"
        try:
            found[name] = read(data)
            found[name].doubts += doubts
        except Unreadable as error:
            broken[name] = str(error)
    return found, broken


def _unfitting(
    folder: Path, found: dict[str, Notebook], reason: str, right: str, aside: list[str]
) -> Notebook:
    """Say why nothing of the assignment is there; take the only notebook all the same."""
    only = right if right in found else next(iter(found), "")
    if only and (only == right or len(found) == 1):
        found[only].doubts += [f"{only} holds no cell of this assignment", *aside]
        return found[only]
    others = [p.name for p in walk(folder) if p.name not in (right, *NOT_WORK)]
    only_others = [f"there is only {_listed(sorted(map(shown, others)))}"] if others else []
    return Notebook([], [reason or "there is no notebook", *only_others, *aside])


def _work(nb: Notebook, plan: Plan) -> set[tuple[str, str]]:
    """List what a student has written: exercises and questions, with the texts."""
    found = set()
    readable = is_readable(cell.source for cell in nb.cells if cell.cell_type == "code")
    for cell in mend(nb.cells, plan).cells:
        text = squeeze(cell.source)
        planned = plan.cells.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if planned is None and cell.cell_type == "code" and readable:
            solved = {name for name, is_solved in bindings(cell.source).items() if is_solved}
            found |= {(name, text) for name in solved & set(plan.exercises)}
        elif planned is not None and planned.is_written_by_students:
            if text not in ("", squeeze(planned.released)):
                found.add((planned.name, text))
    return found


def _candidates(folder: Path, right: str, left: _Left) -> Iterator[tuple[str, bytes, list[str]]]:
    """Give what may be a notebook: its name, what it holds, and doubts about it."""
    paths = sorted(walk(folder), key=lambda path: (path != folder / right, path))
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > BYTES:
            continue
        name = shown(str(path.relative_to(folder)))
        with open(path, "rb") as file:
            start = file.read(16)
            if start.startswith(_ZIP):
                yield from _in_zip(start + file.read(), name, left)
            elif is_notebook(path) or start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                if left.takes(path.stat().st_size):
                    yield name, start + file.read(), []


def _in_zip(
    data: bytes, name: str, left: _Left, depth: int = ARCHIVES
) -> Iterator[tuple[str, bytes, list[str]]]:
    """Give the notebooks in an archive, up to a size, whatever it says about itself.

    Those in archives that it holds too, up to a depth.
    """
    if data.count(_ZIP_ENTRY) > COUNT:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = [info for info in archive.infolist() if _counts(info)]
            doubts = [f"of {name} only notebooks were read"] if len(files) > 1 else []
            for info in files:
                if left.is_over or not _is_named(info):
                    continue
                with archive.open(info) as file:
                    found = file.read(left.size + 1)
                if not left.takes(len(found)):
                    continue
                inner = f"{name}/{shown(info.filename)}"
                if not found.startswith(_ZIP):
                    yield inner, found, doubts
                elif depth > 1:
                    for nested, text, more in _in_zip(found, inner, left, depth - 1):
                        yield nested, text, doubts + more
    except _BROKEN_ZIP:
        return


def _is_named(info: zipfile.ZipInfo) -> bool:
    """Say whether a file in an archive is called as notebooks or archives are."""
    return is_notebook(Path(info.filename)) or info.filename.casefold().endswith(".zip")


def _counts(info: zipfile.ZipInfo) -> bool:
    hidden = ("__MACOSX", ".ipynb_checkpoints")
    return not info.is_dir() and not any(part in hidden for part in Path(info.filename).parts)


def _set_aside(folder: Path) -> list[str]:
    """Tell what was taken out of the submission."""
    try:
        with open(folder / SET_ASIDE, encoding="utf-8", errors="replace") as file:
            lines = file.read(10_000).splitlines()
    except OSError:
        return []
    more = [f"and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
    return [shown(line, 200) for line in lines[:_NAMED]] + more


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
