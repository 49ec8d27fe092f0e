"""`python -m autograder site`: make build/site from docs, the notebooks and course_pkg."""

import argparse
import base64
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.author import front
from autograder.author.execution import claims
from autograder.author.facts import Part, parts, ways
from autograder.author.notebook import pictures
from autograder.author.trial import kept
from autograder.classroom.site import pages
from autograder.classroom.site.graph import drawing
from autograder.handout.exercise import exercises
from autograder.handout.start import links, repository

PAGES = ROOT / "docs" / "site"
SCOREBOARD = ROOT / "scoreboard.json"
EXTRA = ".extra"  # what pages of raw HTML show, which Sphinx does not see
# Shown beside docs/: what the guides link to.
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE")
BESIDE += ("LICENSE-texts", "tests/benchmarks/attention.md", "tests/benchmarks/attention_h200.md")
BESIDE += ("tests/benchmarks/serving.md",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--to", type=Path, default=ROOT / "build" / "site", help="default: build/site"
    )


def main(arguments: argparse.Namespace) -> int:
    """Write the sources, and let Sphinx make the site; return its exit status.

    Raises:
        CourseError: the site or its sources would replace something else.
    """
    target = arguments.to.resolve()
    _may_be_replaced(target, made_with=".buildinfo")
    sources = target.with_name(f"{target.name}-sources").resolve()
    _may_be_replaced(sources, made_with=".doctrees")
    for folder in (target, sources):
        if folder.exists():
            shutil.rmtree(folder)
    (sources / ".doctrees").mkdir(parents=True)  # first: what is left half-made is known by it
    write_sources(sources)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += ["--conf-dir", str(PAGES), "--doctree-dir", str(sources / ".doctrees")]
    command += ["--define", f"html_extra_path={sources / EXTRA}", str(sources), str(target)]
    status = subprocess.call(command, cwd=ROOT)
    if status == 0:
        print(f"The site is {target / 'index.html'}")
    return status


def _may_be_replaced(folder: Path, *, made_with: str) -> None:
    """Accept a folder that is missing, empty, or made by this command, which `made_with` tells."""
    if any(place.is_relative_to(folder) for place in (ROOT, Path.cwd())):
        raise CourseError(
            f"{folder} holds the course or the current folder, and the site would replace it: name "
            "another folder with --to"
        )
    if not folder.exists():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / made_with).exists()):
        raise CourseError(
            f"{folder} is no site of this command's, which would replace it: remove it, or name "
            "another folder with --to"
        )


def write_sources(folder: Path) -> None:
    """Write all pages as Sphinx reads them.

    Raises:
        CourseError: a master or a picture lacks what a page needs.
    """
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("site"))
    for name in BESIDE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "docs" / "pictures", folder / EXTRA / "docs" / "pictures")
    found = parts()
    for name in ("assignments", "figures", "api"):
        (folder / name).mkdir()
    for assignment in assignments():
        nbformat.write(
            pages.page(assignment, _links(assignment)),
            folder / "assignments" / f"{assignment.name}.ipynb",
        )
        for picture in pictures(assignment):
            shutil.copy(picture, folder / "assignments")
    _write_front(folder, found)
    _write_api(folder)
    _write_scoreboard(folder)


def _links(assignment: Assignment) -> str:
    """Buttons that open a student's notebook elsewhere, where the course is published."""
    if (public := repository()) is None:
        return ""
    place = f"main/{assignment.student.relative_to(ROOT)}"
    download = f"[Download](https://raw.githubusercontent.com/{public}/{place})"
    source = f"[On GitHub](https://github.com/{public}/blob/{place})"
    return f":::{{container}} start\n{links(assignment)} · {download} · {source}\n:::"


def _write_front(folder: Path, found: list[Part]) -> None:
    members = [each for part in found for each in part.members]
    by_topic = {each.assignment.topic: each for each in members}
    alts = []
    for number, part in enumerate(found, 1):
        picture, alt = pages.figure(by_topic[part.figure_in].assignment, part.figure)
        (folder / "figures" / f"part_{number}.png").write_bytes(base64.b64decode(picture))
        alts.append(alt)

    def linked(topics: tuple[str, ...]) -> str:
        names = [by_topic[topic].assignment.name for topic in topics]
        return ", ".join(
            f"[{name[:2]} · {by_topic[topic].title}](assignments/{name}.ipynb)"
            for topic, name in zip(topics, names, strict=True)
        )

    _write(
        folder / "index.md",
        parts=[{**vars(part), "alt": alt} for part, alt in zip(found, alts, strict=True)],
        assignments=len(members),
        exercises=sum(len(exercises(each.assignment.reference)) for each in members),
        fewest=sum(each.hours[0] for each in members),
        most=sum(each.hours[1] for each in members),
        shortest=min(each.hours[0] for each in members),
        longest=max(each.hours[1] for each in members),
        public=repository(),
        check=front.said(front.named_mistake()),
        blocks=front.BLOCKS,
    )
    _write(folder / "map.md", parts=found, svg=drawing(found), links=linked, ways=ways())


def _write_scoreboard(folder: Path) -> None:
    rows = json.loads(SCOREBOARD.read_text(encoding="utf-8")) if SCOREBOARD.exists() else []
    total = Counter({"exercises": len(rows)})
    for row in rows:
        total.update({name: value for name, value in row.items() if isinstance(value, int)})
    _write(folder / "graders.md", rows=rows, total=total, trials=_trials())


def _trials() -> list[dict[str, object]]:
    """For each assignment, how many claims its notebook makes, and at which seeds all hold."""
    rows = []
    for assignment in assignments():
        made = claims(nbformat.read(assignment.solved, as_version=4))
        runs = kept(assignment)
        rows.append(
            {
                "name": assignment.name,
                "claims": len(made),
                "beside": sum("beside" in each for each in made),
                "seeds": ", ".join(str(run.seed) for run in runs if run.held),
                "date": max((run.date for run in runs), default=""),
            }
        )
    return rows


def _write_api(folder: Path) -> None:
    """A page for each module that students write, and one for each package that they are given."""
    listed = {each.topic: list(map(_module, each.reference)) for each in assignments()}
    topics = list(listed)
    listed["checking"] = ["checking"]
    listed["tools"] = ["tools.plot", "tools.train"]
    for package in ("engine", "inference", "data"):
        paths = sorted((ROOT / "course_pkg" / package).glob("[a-z]*.py"))
        listed[package] = list(map(_module, paths))
    for page, modules in listed.items():
        lines = [f"# course_pkg.{page}"]
        for module in modules:
            lines += [f"## {module}"] if len(modules) > 1 else []
            lines += ["```{eval-rst}", f".. automodule:: course_pkg.{module}"]
            # What notebooks import comes from the package's modules.
            lines += ["   :imported-members:"] if module == "checking" else []
            lines += ["```"]
        (folder / "api" / f"{page}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups = {"What students write": topics, "What is given": [*listed][len(topics) :]}
    _write(folder / "api" / "index.md", template="api.md", groups=groups)


def _module(path: Path) -> str:
    """Name a file of course_pkg as one imports it from there: a package by its folder."""
    parts = path.relative_to(ROOT / "course_pkg").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def _write(path: Path, *, template: str = "", **values: object) -> None:
    environment = Environment(
        loader=FileSystemLoader(PAGES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # it is Markdown
    )
    text = environment.get_template(template or path.name).render(values)
    path.write_text(text, encoding="utf-8")
