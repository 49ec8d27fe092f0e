"""A machine on which a university runs the course, as a view of this one.

bubblewrap shows other folders in the places of some, and other accounts; only what is started in
the view sees them. So nothing has to be installed and removed, and no account is ever made. In it:

    /srv/sequence_models    the course, which belongs to the account of that name, with .venv
    /srv/nbgrader/exchange  where everybody may write
    /opt/sequence_models    the students' environment, with the wheel of the released assignment
    /home                   of ada, a student; tess, who grades; and the course's account
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.grade.kernel.sandbox import prefixes
from autograder.handout.wheel import wheel as build_wheel

COURSE = "sequence_models"
FOLDER = Path("/srv") / COURSE
PASSWORD = "correct horse"
# Numbers that no account of a machine has; each is also the number of the account's own group.
ACCOUNTS = {COURSE: 61_101, "ada": 61_102, "tess": 61_103}
GROUPS = {f"nbgrader-{COURSE}": (61_104, "ada"), f"formgrade-{COURSE}": (61_105, "tess")}
_CARRIED = ("autograder", "course_pkg", "notebooks", "solutions", "nbgrader_config.py")
_CARRIED += ("jupyter_server_config.py", "pyproject.toml")
_PACKAGES = Path("/opt/packages")  # the course's environment, where students may read it
_EXCHANGE = '\nc.Exchange.root = "/srv/nbgrader/exchange"\n'


class Machine:
    """The view.

    Args:
        folder: where its files lie.
        assignment: what the students' environment is for.
    """

    def __init__(self, folder: Path, assignment: Assignment):
        self._folder = folder
        self._write_accounts()
        self._write_course()
        self._write_students_environment(assignment)
        for path in ("srv", "opt", "home", "etc"):
            (folder / path).chmod(0o755)

    def command(self, argv: list[str], user: str | None = None) -> list[str]:
        """Make the command that runs another one in the view, as root or as an account."""
        options = ["bwrap", "--dev-bind", "/", "/", "--cap-add", "ALL", "--die-with-parent"]
        for name in ("srv", "opt", "home"):
            options += ["--bind", str(self._folder / name), f"/{name}"]
        for name in ("passwd", "group", "shadow"):
            options += ["--ro-bind", str(self._folder / "etc" / name), f"/etc/{name}"]
        for place in (FOLDER / ".venv", _PACKAGES):
            options += ["--ro-bind", str(ROOT / ".venv"), str(place)]
        options += _python()
        options += ["--chdir", str(FOLDER)]
        if user is not None:
            number = str(ACCOUNTS[user])
            options += ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"]
            options += ["env", f"HOME=/home/{user}", f"USER={user}"]
        return [*options, *argv]

    def _write_accounts(self) -> None:
        etc = self._folder / "etc"
        etc.mkdir()
        crypt = ["openssl", "passwd", "-6", "-stdin"]
        done = subprocess.run(crypt, input=PASSWORD, capture_output=True, text=True, check=True)
        lines = {name: Path("/etc", name).read_text() for name in ("passwd", "group", "shadow")}
        for name, number in ACCOUNTS.items():
            lines["passwd"] += f"{name}:x:{number}:{number}::/home/{name}:/bin/bash\n"
            lines["group"] += f"{name}:x:{number}:\n"
            lines["shadow"] += f"{name}:{done.stdout.strip()}:20000:0:99999:7:::\n"
            home = self._folder / "home" / name
            home.mkdir(parents=True)
            os.chown(home, number, number)
        for name, (number, member) in GROUPS.items():
            lines["group"] += f"{name}:x:{number}:{member}\n"
        for name, text in lines.items():
            (etc / name).write_text(text)
        (etc / "shadow").chmod(0o600)

    def _write_course(self) -> None:
        course = self._folder / "srv" / COURSE
        course.mkdir(parents=True)
        ignore = shutil.ignore_patterns("__pycache__", "course")
        for name in _CARRIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, course / name, ignore=ignore)
            else:
                shutil.copy(ROOT / name, course)
        with (course / "nbgrader_config.py").open("a") as config:
            config.write(_EXCHANGE)
        (course / ".venv").mkdir()
        number = ACCOUNTS[COURSE]
        for path in (course, *course.rglob("*")):
            os.chown(path, number, number)
        course.chmod(0o750)
        exchange = self._folder / "srv" / "nbgrader" / "exchange"
        exchange.mkdir(parents=True)
        exchange.chmod(0o777)

    def _write_students_environment(self, assignment: Assignment) -> None:
        """Make what README says, with packages that are there already."""
        place = self._folder / "opt" / COURSE
        (self._folder / "opt" / _PACKAGES.name).mkdir(parents=True)
        venv.create(place, symlinks=True)
        (site,) = place.glob("lib/python*/site-packages")
        (site / "packages.pth").write_text(f"{_PACKAGES / site.relative_to(place)}\n")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        made = build_wheel(assignment, self._folder)
        subprocess.run([*install, "--target", str(site), str(made)], check=True)
        shutil.copytree(ROOT / ".venv" / "etc", place / "etc")
        (place / "share").symlink_to(_PACKAGES / "share")
        deploy = ROOT / "autograder" / "classroom" / "deploy"
        shutil.copy(deploy / "nbgrader_config.py", place / "etc" / "jupyter")
        (place / "etc" / "jupyter" / "labconfig").mkdir(exist_ok=True)
        shutil.copy(deploy / "page_config.json", place / "etc" / "jupyter" / "labconfig")
        program = place / "bin" / "jupyterhub-singleuser"
        program.write_text(
            f"#!/opt/{COURSE}/bin/python\nfrom jupyterhub.singleuser import main\nmain()\n"
        )
        program.chmod(0o755)


def _python() -> list[str]:
    """Show Python where accounts can reach it, even if its folder is root's, or covered."""
    options = []
    for prefix in [Path(path) for path in prefixes() if Path(path) != ROOT / ".venv"]:
        covered = [path for path in prefix.parents if str(path) in ("/srv", "/opt", "/home")]
        closed = [path for path in reversed(prefix.parents) if not path.stat().st_mode & 0o001]
        if not covered + closed:
            continue
        top = (covered + closed)[0]
        if not covered:
            options += ["--perms", "0755", "--tmpfs", str(top)]
        for parent in reversed(prefix.relative_to(top).parents[:-1]):
            options += ["--perms", "0755", "--dir", str(top / parent)]
        options += ["--ro-bind", str(prefix), str(prefix)]
    return options
