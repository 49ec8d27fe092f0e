"""The files of a submission: what does not belong is set aside before anything follows it."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from datetime import UTC
from pathlib import Path

from nbgrader.utils import parse_utc

from autograder.grade.submission.reading import BYTES
from autograder.grade.submission.stamp import moment

FILE = 32 << 20  # bytes of a file
TOTAL = 64 << 20  # bytes of all files
COUNT = 200
TIMESTAMP = "timestamp.txt"
SECRET = "submission_secret.txt"  # nbgrader's, for returning feedback; each submission has another
SET_ASIDE = "set_aside.txt"  # in a submission: what was taken out of it, and why
NOT_WORK = (TIMESTAMP, SECRET, SET_ASIDE)  # no student has written these
NAME = 200  # bytes of the name of what was set aside; a file's may have 255
PATH = 1000  # bytes of a file's relative path
DEEPEST = 50  # folders within each other
_NEVER = (".ipynb_checkpoints", "__pycache__", ".git")


def clean(folder: Path, notebook: str, aside: Path) -> list[str]:
    """Turn a submission into one that nbgrader can handle; what is taken out is kept elsewhere.

    Links, devices, sockets, and files that are too large or too many are set aside; a file with
    several names becomes one of its own. A missing notebook is replaced by an empty one; which of
    the others is meant is not decided here. A malformed time stamp is replaced by the
    file's own.

    Args:
        folder: the submission.
        notebook: the name that its notebook must have, without the ending.
        aside: where to put what is taken out.
    Returns:
        What was done, in words.
    """
    path = folder / f"{notebook}.ipynb"
    done = _set_aside(folder, path, aside)
    done += _mend_timestamp(folder / TIMESTAMP, aside)
    if done:
        with open(folder / SET_ASIDE, "a", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in done)
    if not path.exists():
        path.touch()
        done.append(f"there is no {path.name}")
    return done


def is_notebook(path: Path) -> bool:
    """Say whether a file is called as notebooks are, also 02_lstm.IPYNB or 02_lstm.ipynb.txt."""
    return ".ipynb" in path.name.casefold()


def shown(name: str, most: int = 100) -> str:
    """Make a file's name, or a line about it, fit for a sentence: it may hold anything."""
    text = re.sub(r"[^\w .,:()+/-]", "_", os.fsencode(name).decode("utf-8", "replace"))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def files_of(*folders: Path) -> dict[str, Path]:
    """List the files that a notebook can read, by their relative names; later folders win."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(walk(folder)):
            name = str(path.relative_to(folder))
            is_file = stat.S_ISREG(path.lstat().st_mode)
            if is_file and not is_notebook(path) and name not in NOT_WORK:
                found[name] = path
    return dict(list(found.items())[:COUNT])


def walk(folder: Path) -> list[Path]:
    """List the files of a submission that its student has put there."""
    found = []
    for place, folders, files in os.walk(folder, followlinks=False):
        folders[:] = [name for name in folders if name not in _NEVER]
        found += [Path(place, name) for name in files]
    return found


def remove(folder: Path) -> None:
    """Remove a folder in which a student's code may have left anything, at any depth."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL)


def _set_aside(folder: Path, notebook: Path, aside: Path) -> list[str]:
    done, total, count, notebooks = [], 0, 0, 0
    for place, folders, files in os.walk(folder, followlinks=False):
        paths = [Path(place, name) for name in (*files, *folders)]
        for path in sorted(paths, key=lambda path: (path != notebook, path)):
            status = path.lstat()
            reason = None
            if stat.S_ISDIR(status.st_mode):
                if len(path.relative_to(folder).parts) <= DEEPEST:
                    continue
                reason = "a folder too deep within others"
            elif not stat.S_ISREG(status.st_mode):
                reason = "a link" if path.is_symlink() else "not a file"
            elif len(os.fsencode(path.relative_to(folder))) > PATH:
                reason = "its path is too long"
            elif is_notebook(path) and notebooks + status.st_size <= BYTES:
                notebooks += status.st_size
            elif status.st_size > FILE or total + status.st_size > TOTAL or count >= COUNT:
                reason = "too large, or one too many"
            else:
                total, count = total + status.st_size, count + 1
            if reason:
                _move(path, aside)
                done.append(f"{shown(path.name)} was set aside: {reason}")
            elif status.st_nlink > 1:
                _unlink_from_others(path)
        folders[:] = [name for name in folders if Path(place, name).is_dir()]
    return done


def _unlink_from_others(path: Path) -> None:
    """Put a copy in the place of a file with several names, as backups make them (cp -al)."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    os.close(descriptor)
    shutil.copy2(path, name, follow_symlinks=False)
    os.replace(name, path)


def _move(path: Path, aside: Path) -> None:
    aside.mkdir(parents=True, exist_ok=True)
    name = os.fsdecode(os.fsencode(path.name)[-NAME:])
    os.replace(path, aside / f"{time.time_ns():x}-{name}")


def _mend_timestamp(path: Path, aside: Path) -> list[str]:
    """Write a time stamp so that nbgrader reads what it says; one that cannot be read is replaced.

    In its place comes the time at which the file came.
    """
    if not path.exists():
        return []
    with contextlib.suppress(ValueError, OverflowError, OSError):
        text = path.read_text(encoding="utf-8").strip()
        if not text:
            return []
        meant = moment(text)
        with contextlib.suppress(ValueError, OverflowError):
            if parse_utc(text).replace(tzinfo=UTC) == meant:
                return []
        _move(path, aside)
        path.write_text(f"{meant:%Y-%m-%d %H:%M:%S} UTC", encoding="utf-8")
        return [f"the time stamp {shown(text)} was read as {meant:%Y-%m-%d %H:%M:%S} UTC"]
    came = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(path.stat().st_mtime))
    _move(path, aside)
    path.write_text(came, encoding="utf-8")
    return [f"the time stamp was malformed: the file came at {came}"]
