"""What a sandbox needs of the course: the students' wheel, unpacked, and a few small files."""

import compileall
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.grade.kernel import checks_without_oracles
from autograder.handout.wheel import wheel

KITS = ROOT / "autograder" / "course" / "kits"
_ETC = {
    "passwd": "student:x:1000:1000:student:/home/student:/bin/sh\n",
    "group": "student:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
}


@functools.cache
def sandbox_files(assignment: Assignment) -> Path:
    """Make the folder that sandboxes of an assignment mount, or find it.

    It holds `site` (course_pkg as students have it, without oracles), `etc`, `matplotlib` (its
    cache of fonts, which takes seconds to make) and `empty`, a file.

    Raises:
        CourseError: the wheel cannot be built.
    """
    folder = KITS / f"{assignment.name}-{kit_hash(assignment)[:16]}"
    if folder.exists():
        return folder
    KITS.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=KITS, prefix=".staging-"))
    try:
        _fill(assignment, staging)
        staging.chmod(0o755)
        os.rename(staging, folder)
    except OSError:
        if not folder.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


@functools.cache
def kit_hash(assignment: Assignment) -> str:
    """Hash what a folder of sandbox files is made from: files, by a Python."""
    return hashlib.sha256(f"{sys.version} {sources_hash(assignment)}".encode()).hexdigest()


@functools.cache
def sources_hash(assignment: Assignment) -> str:
    """Hash the files of this repository that a folder of sandbox files is made from."""
    digest = hashlib.sha256(assignment.name.encode())
    files = [ROOT / "pyproject.toml", Path(__file__), Path(checks_without_oracles.__file__)]
    files += (ROOT / "autograder" / "handout").glob("*.py")
    package = ROOT / "course_pkg"
    kinds = (".py", ".npz", ".json", ".mplstyle")
    files += [path for path in package.rglob("*") if path.suffix in kinds]
    for path in sorted(files):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    masters = sorted(path.name for path in (ROOT / "solutions").glob("[0-9][0-9]_*.md"))
    digest.update(" ".join(masters).encode())
    return digest.hexdigest()


def _fill(assignment: Assignment, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels:
        with zipfile.ZipFile(wheel(assignment, Path(wheels))) as files:
            files.extractall(folder / "site")
    _without_oracles(folder / "site" / "course_pkg" / "checks")
    compileall.compile_dir(folder / "site", quiet=2)
    (folder / "empty").touch()
    (folder / "etc").mkdir()
    for name, text in _ETC.items():
        (folder / "etc" / name).write_text(text)
    (folder / "matplotlib").mkdir()
    subprocess.run(
        [sys.executable, "-c", "import matplotlib.font_manager"],
        env={**os.environ, "MPLCONFIGDIR": str(folder / "matplotlib")},
        capture_output=True,
    )
    for path in (folder / "matplotlib").iterdir():
        if path.suffix != ".json":
            path.unlink()


def _without_oracles(checks: Path) -> None:
    """Leave in the modules of checks what runs beside a student's object, and no known outputs."""
    modules = {path.stem: path for path in checks.glob("*.py")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items()}
    for name, text in checks_without_oracles.reduced(texts).items():
        modules[name].write_text(text, encoding="utf-8")
    for path in (checks / "data").glob("*.npz"):
        path.unlink()
