"""Open JupyterLab for a student and for a grader, with a demo exchange and gradebook."""

import json
import os
import shutil
import socket
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIRST_PAGE = Path("notebooks") / "welcome.ipynb"
FEW = 3  # assignments that are prepared before JupyterLab starts; more are prepared meanwhile
DEMO_STUDENTS = {
    "ada": ("Ada", "Lovelace"),
    "alan": ("Alan", "Turing"),
    "grace": ("Grace", "Hopper"),
}


class LabProblem(Exception):
    """JupyterLab cannot be opened; the text says why and what to do."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `python -m autograder lab`."""
    parser.add_argument("--port", type=port_number, default=8888, help="of the server (8888)")
    parser.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="print the address instead of opening a browser",
    )


def port_number(text: str) -> int:
    """Read a port from the command line."""
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise ArgumentTypeError(f"a port is a number from 1024 to 65535, not {text!r}")
    return int(text)


def main(args: Namespace) -> int:
    """Serve JupyterLab until it is stopped; return the exit status."""
    try:
        serve(ROOT, args.port, args.browser)
    except LabProblem as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


def serve(root: Path, port: int, browser: bool) -> None:
    """Prepare the course in root, then become JupyterLab's process."""
    check_port(port)
    new = pending(root)
    if len(new) <= FEW:
        prepare(root)
    else:
        print(f"{len(new)} assignments are put into the exchange meanwhile.", flush=True)
        meanwhile = "from autograder.classroom import lab; lab.prepare_here()"
        subprocess.Popen([sys.executable, "-c", meanwhile], cwd=root, stdout=subprocess.DEVNULL)
    welcome(root)
    print(f"Starting JupyterLab on port {port}. Stop it with Ctrl-C.", flush=True)
    os.chdir(root)
    command = server_command(root, port, browser)
    os.execvpe(command[0], command, server_environment(root))


def check_port(port: int) -> None:
    """Raise LabProblem when another program listens on the port."""
    if not is_free(port):
        other = next((number for number in range(port + 2, port + 100) if is_free(number)), 0)
        raise LabProblem(
            f"Port {port} is taken by another program, perhaps another JupyterLab.\n"
            f"Stop that one, or choose another port: make lab PORT={other}"
        )


def is_free(port: int) -> bool:
    """Say whether a server can listen on the port."""
    with socket.socket() as candidate:
        # A server that has just stopped leaves its port waiting; Jupyter may use it again.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def prepare(root: Path) -> None:
    """Put every assignment that is new or has changed into the exchange and the gradebook.

    The versions that students receive are generated in a folder of their own, because a student
    of this checkout works in notebooks/.
    """
    new = pending(root)
    if not new:
        return
    # nbgrader takes seconds to import: too long for a start that has nothing to prepare.
    from nbgrader.apps.api import NbGraderAPI
    from nbgrader.utils import get_username
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    config.CourseDirectory.release_directory = "autograder/course/release"
    config.ExchangeReleaseAssignment.force = True
    grader = NbGraderAPI(config=config)
    for name in new:
        print(f"Preparing {name} ({new.index(name) + 1} of {len(new)}).", flush=True)
        for step in (grader.generate_assignment, grader.release_assignment):
            result = step(name)
            if not result["success"]:
                details = result.get("log", "") + result["error"]
                raise LabProblem(f"nbgrader could not prepare {name}:\n{details}")
    with grader.gradebook as gradebook:
        if not gradebook.students:
            students = DEMO_STUDENTS | {get_username(): ("(you)", get_username())}
            for student, (first, last) in students.items():
                gradebook.add_student(student, first_name=first, last_name=last)


def prepare_here() -> None:
    """Prepare the course of this process's folder, while JupyterLab runs; say what goes wrong."""
    try:
        prepare(Path.cwd())
    except LabProblem as problem:
        print(problem, file=sys.stderr)


def pending(root: Path) -> list[str]:
    """List the assignments that are new or have changed."""
    return [name for name in built_assignments(root) if not is_prepared(root, name)]


def welcome(root: Path) -> None:
    """Put the page that JupyterLab opens into notebooks/, unless it is there."""
    source, page = Path(__file__).with_name("welcome.ipynb"), root / FIRST_PAGE
    if not page.exists() or page.stat().st_mtime < source.stat().st_mtime:
        shutil.copyfile(source, page)


def built_assignments(root: Path) -> list[str]:
    """Return the names of the folders of notebooks/ that hold the notebook of their name."""
    found = sorted(
        path.parent.name
        for path in (root / "notebooks").glob("*/*.ipynb")
        if path.stem == path.parent.name
    )
    if not found:
        raise LabProblem(f"{root / 'notebooks'} holds no assignment. Build them: make build")
    return found


def is_prepared(root: Path, name: str) -> bool:
    """Say whether the released notebook is newer than the instructor's."""
    source = root / "solutions" / name / f"{name}.ipynb"
    if not source.exists():
        raise LabProblem(f"{source} is missing. Build it: make build")
    released = root / "autograder" / "course" / "release" / name / f"{name}.ipynb"
    return released.exists() and released.stat().st_mtime >= source.stat().st_mtime


def server_command(root: Path, port: int, browser: bool) -> list[str]:
    """Return JupyterLab's command line."""
    command = [
        sys.executable,
        *("-m", "jupyterlab"),
        f"--ServerApp.root_dir={root}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.contents_manager_class=autograder.classroom.contents.Contents",
        f"--LabApp.default_url=/lab/tree/{FIRST_PAGE}",
        "--log-level=WARN",
    ]
    if not browser:
        command.append("--no-browser")
    if os.geteuid() == 0:
        command.append("--allow-root")
    return command


def server_environment(root: Path) -> dict[str, str]:
    """Return the environment in which Jupyter leaves the user's own settings alone.

    JUPYTER_CONFIG_PATH lets nbgrader find nbgrader_config.py from every folder: its assignment
    list reads the configuration from inside notebooks/.
    """
    jupyter = root / "autograder" / "course" / "jupyter"
    page_config = jupyter / "config" / "labconfig" / "page_config.json"
    page_config.parent.mkdir(parents=True, exist_ok=True)
    # No question about news at the first start, and no look-up of newer versions. Assignments are
    # made by `make build`, and students need not see how nbgrader marks cells.
    disabled = (
        "@jupyterlab/apputils-extension:announcements",
        "@jupyter/nbgrader:create-assignment",
    )
    page_config.write_text(json.dumps({"disabledExtensions": dict.fromkeys(disabled, True)}))
    # The guides are for reading; "Open With" has the editor.
    viewers = {"defaultViewers": {"markdown": "Markdown Preview"}}
    page_config.with_name("default_setting_overrides.json").write_text(
        json.dumps({"@jupyterlab/docmanager-extension:plugin": viewers})
    )
    return {
        **os.environ,
        "JUPYTER_CONFIG_PATH": str(root),
        "JUPYTER_CONFIG_DIR": str(jupyter / "config"),
        "JUPYTER_DATA_DIR": str(jupyter / "data"),
        "JUPYTER_RUNTIME_DIR": str(jupyter / "runtime"),
    }
