"""How a notebook starts: links that open it elsewhere, and a cell that installs course_pkg."""

import re
import textwrap

from autograder.assignment import Assignment, CourseError
from autograder.handout.wheel import filename, project

INSTALL = "install-course-pkg"  # the cell's name
WHEELS = "wheels"  # the release of the repository that has the wheels; see wheels.yml
_PLACEHOLDER = "https://github.com/OWNER/REPOSITORY"
_COLAB = "https://colab.research.google.com/github/{repository}/blob/main/{path}"
_BINDER = "https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/{path}"
# Python without magics: what parses or runs the code of a notebook can read it.
_CELL = """\
# Where course_pkg is missing, as on Colab, this cell installs it. Elsewhere it does nothing.
from importlib.util import find_spec

if find_spec("course_pkg") is None:
    {imports}from IPython import get_ipython

    wheel = "{wheel}"  # beside this notebook{online}
    print(f"Installing {{wheel}}. Packages that are here already, such as torch, stay.")
    for packages in (
{packages}
        f"--no-deps {{wheel}}",
    ):
        get_ipython().run_line_magic("pip", f"install --quiet {{packages}}")"""
_IMPORTS = """\
from pathlib import Path

    """
_ONLINE = """, or else
    if not Path(wheel).exists():
        wheel = "https://github.com/{repository}/releases/download/{release}/" + wheel"""


def repository() -> str | None:
    """Read where the course is published, OWNER/REPOSITORY on GitHub; None if it is not.

    Raises:
        CourseError: pyproject.toml has another address.
    """
    address = project().get("urls", {}).get("Repository", _PLACEHOLDER)
    if address == _PLACEHOLDER:
        return None
    if not (found := re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+)", address)):
        raise CourseError(
            f"pyproject.toml: Repository is {address!r}, from which no link can be made; write "
            f'"{_PLACEHOLDER}" with your own names, or as it stands for no links'
        )
    return found[1]


def links(assignment: Assignment) -> str:
    """Write, in Markdown, the links that open a student's notebook; empty if it is not public."""
    if (public := repository()) is None:
        return ""
    path = f"notebooks/{assignment.name}/{assignment.name}.ipynb"
    sites = {"Colab": _COLAB, "Binder": _BINDER}
    return " · ".join(
        f"[Open in {site}]({address.format(repository=public, path=path)})"
        for site, address in sites.items()
    )


def installing(assignment: Assignment) -> str:
    """Write the cell that installs an assignment's wheel where course_pkg is missing.

    The wheel is taken from the notebook's folder or from the repository. Only packages that are
    missing come with it: on Colab another torch would take minutes, and lose the GPU.
    """
    needed = [re.match(r"[\w-]+", line)[0] for line in project()["dependencies"]]
    lines = textwrap.wrap(" ".join(needed), width=80, break_on_hyphens=False)
    packages = "\n".join(f'        "{line}",' for line in lines)
    names = {"wheel": filename(assignment), "packages": packages}
    if (public := repository()) is None:
        return _CELL.format(**names, imports="", online="")
    online = _ONLINE.format(repository=public, release=WHEELS)
    return _CELL.format(**names, imports=_IMPORTS, online=online)
