"""The files of a submission: what does not belong is set aside before anything follows it."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import dateutil.parser

from autograder.grade.reading import BYTES, Unreadable, read

FILE = 32 << 20  # bytes of a file
TOTAL = 64 << 20  # bytes of all files
COUNT = 200
TIMESTAMP = "timestamp.txt"
_NEVER = (".ipynb_checkpoints", "__pycache__", ".git")


def clean(folder: Path, notebook: str, aside: Path, known: set[str]) -> list[str]:
    """Turn a submission into one that nbgrader can handle; what is taken out is kept elsewhere.

    Links, devices, sockets, and files that are too large or too many are set aside; a file with
    several names becomes one of its own. A notebook of
    another name takes the right one when it is the only one, or the only one with the assignment's
    cells; when there is none, an empty one takes its place. A malformed time stamp is replaced
    by the file's own.

    Args:
        folder: the submission.
        notebook: the name that its notebook must have, without the ending.
        aside: where to put what is taken out.
        known: the names of the assignment's cells.
    Returns:
        What was done, in words.
    """
    done = _set_aside(folder, aside)
    done += _mend_timestamp(folder / TIMESTAMP, aside)
    path = folder / f"{notebook}.ipynb"
    if not path.exists():
        others = sorted(p for p in folder.rglob("*.ipynb") if not set(p.parts) & set(_NEVER))
        fitting = [p for p in others if _count(p, known)]
        candidates = fitting or others
        if len(candidates) == 1:
            shutil.copyfile(candidates[0], path)
            done.append(f"the notebook is called {candidates[0].name}")
        else:
            path.touch()
            done.append("there is no notebook" if not others else "there are several notebooks")
    return done


def files_of(*folders: Path) -> dict[str, Path]:
    """List the files that a notebook can read, by their relative names; later folders win."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(_walk(folder)):
            name = str(path.relative_to(folder))
            is_file = stat.S_ISREG(path.lstat().st_mode)
            if is_file and path.suffix != ".ipynb" and path.name != TIMESTAMP:
                found[name] = path
    return dict(list(found.items())[:COUNT])


def _walk(folder: Path) -> list[Path]:
    found = []
    for place, folders, files in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name not in _NEVER]
        found += [Path(place, name) for name in files]
    return found


def _set_aside(folder: Path, aside: Path) -> list[str]:
    done, total, count = [], 0, 0
    for place, folders, files in os.walk(folder, followlinks=False):
        for name in sorted([*files, *folders]):
            path = Path(place, name)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            reason = None
            if not stat.S_ISREG(status.st_mode):
                reason = "a link" if path.is_symlink() else "not a file"
            elif path.suffix == ".ipynb" and status.st_size <= BYTES:
                pass
            elif status.st_size > FILE or total + status.st_size > TOTAL or count >= COUNT:
                reason = "too large, or one too many"
            else:
                total, count = total + status.st_size, count + 1
            if reason:
                _move(path, aside)
                done.append(f"{name} was set aside: {reason}")
            elif status.st_nlink > 1:
                _unlink_from_others(path)
        folders[:] = [name for name in folders if not Path(place, name).is_symlink()]
    return done


def _unlink_from_others(path: Path) -> None:
    """Put a copy in the place of a file with several names, as backups make them (cp -al)."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    os.close(descriptor)
    shutil.copy2(path, name, follow_symlinks=False)
    os.replace(name, path)


def _move(path: Path, aside: Path) -> None:
    aside.mkdir(parents=True, exist_ok=True)
    os.replace(path, aside / f"{time.time_ns():x}-{path.name}")


def _mend_timestamp(path: Path, aside: Path) -> list[str]:
    """Replace a malformed time stamp by the time at which the file came."""
    if not path.exists():
        return []
    with contextlib.suppress(ValueError, OverflowError, OSError):
        text = path.read_text(encoding="utf-8").strip()
        if not text or dateutil.parser.parse(text):
            return []
    came = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(path.stat().st_mtime))
    _move(path, aside)
    path.write_text(came, encoding="utf-8")
    return [f"the time stamp was malformed; the file came at {came}"]


def _count(path: Path, known: set[str]) -> int:
    try:
        return sum(cell.name in known or cell.id in known for cell in read(path))
    except Unreadable:
        return 0
