"""What `release` gives to students: complete, usable on its own, and without what they write."""

import ast
import shutil
import subprocess
import sys
import tomllib
from argparse import Namespace
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.classroom import release
from autograder.classroom.gradebook import opened
from autograder.grade.late.policy import ASSISTANTS, PolicyError, parse
from tests import course as toolbox

ATTENTION = Assignment("05_attention")
pytestmark = pytest.mark.xdist_group("release")


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course in which 05_attention is released."""
    root = tmp_path_factory.mktemp("course")
    config = (ROOT / "nbgrader_config.py").read_text()
    (root / "nbgrader_config.py").write_text(config)
    assert release.main(arguments(root)) == 0
    return root


def arguments(root: Path, name: str = ATTENTION.name, force: bool = False) -> Namespace:
    return Namespace(assignment=name, course=root, force=force)


@pytest.fixture(scope="module")
def bundle(course) -> Path:
    """The bundle, as a student fetches it from the exchange."""
    return course / toolbox.WORK / "exchange" / toolbox.COURSE / "outbound" / ATTENTION.name


@pytest.fixture(scope="module")
def site(bundle, tmp_path_factory) -> Path:
    """A clean folder into which the bundle's wheel is installed."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*command, *map(str, bundle.glob("*.whl"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def python(site: Path, program: str) -> str:
    """Run a program with the bundle's course_pkg, and without the graders."""
    guard = f"import sys; sys.modules['autograder'] = None; sys.path.insert(0, {str(site)!r})\n"
    done = subprocess.run([sys.executable, "-c", guard + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_exchange_holds_the_whole_bundle(course, bundle):
    wheel = "course_pkg-0.2.0+5-py3-none-any.whl"
    names = [f"{ATTENTION.name}.ipynb", f"{ATTENTION.topic}.svg", "environment.yml", "HOW_TO.md"]
    names += ["AGENTS.md", f"{ATTENTION.topic}_black_box.svg"]
    assert sorted(path.name for path in bundle.iterdir()) == sorted([*names, wheel])
    assert (bundle / names[0]).read_bytes() == ATTENTION.student.read_bytes()
    assert wheel in ATTENTION.student.read_text()  # its first cell installs that
    made = course / release.BUNDLES / ATTENTION.name
    assert {path.name for path in made.iterdir()} == {*names, wheel}


def test_assistants_are_told_what_the_class_allows(tmp_path):
    said = {}
    for allowed in ASSISTANTS:
        release.bundle(ATTENTION, tmp_path, assistants=allowed)
        said[allowed] = (tmp_path / "AGENTS.md").read_text(encoding="utf-8")
        assert f"`{ATTENTION.name}`" in said[allowed]
        metadata = nbformat.read(tmp_path / ATTENTION.student.name, as_version=4).metadata
        off = metadata.get("colab", {}).get("generative_ai_disabled", False)
        assert off == (allowed == "none")
    assert "open the hints" in said["explain"]
    assert "does not allow assistants" in said["none"]
    assert "in any way" in said["free"]


def test_a_policy_for_assistants_that_is_none_is_refused():
    assert parse({"assistants": "none"}, []).assistants == "none"
    assert parse({}, []).assistants == "explain"
    with pytest.raises(PolicyError, match="it should be one of 'explain', 'none', 'free'"):
        parse({"assistants": "some"}, [])


def test_the_page_says_when_the_assignment_is_due_and_what_being_late_costs():
    table = tomllib.loads((ROOT / "docs" / "policy.toml").read_text(encoding="utf-8"))
    policy = parse(table, [each.name for each in assignments()])
    assert release.when_due("02_lstm", policy) == (
        "It is due on 02 November 2026 at 23:59 (CET). What comes up to 15 minutes later is in "
        "time. Each day that begins after that costs 10% of the points earned, up to 50% of them. "
        "Over all assignments you have 3 late days that cost nothing. If you were given an "
        "extension, your own date counts."
    )
    assert release.when_due(ATTENTION.name, policy) == release.when_due("02_lstm", None) == ""


def test_the_environment_and_the_page_name_what_is_there(bundle):
    (wheel,) = bundle.glob("*.whl")
    found = yaml.safe_load((bundle / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in found["dependencies"] if isinstance(entry, dict)]
    assert pip == [f"./{wheel.name}[student]"]
    page = (bundle / "HOW_TO.md").read_text()
    assert f'pip install "./{wheel.name}[student]"' in page
    assert f"jupyter lab {ATTENTION.name}.ipynb" in page and "$" not in page


def test_course_pkg_has_no_reference_of_this_or_a_later_assignment(site):
    package = site / "course_pkg"
    for assignment in assignments():
        paths = [package / path.relative_to(ROOT / "course_pkg") for path in assignment.reference]
        if assignment.name < ATTENTION.name:
            for path, source in zip(paths, assignment.reference, strict=True):
                assert path.read_bytes() == source.read_bytes()
        elif assignment.name > ATTENTION.name:
            topic = assignment.topic
            assert not any(path.exists() for path in (*paths, package / topic))
            assert not (package / "checks" / f"{topic}.py").exists()
    stubs = ast.parse((package / "attention.py").read_text()).body
    functions = [node for node in stubs if isinstance(node, ast.FunctionDef)]
    assert len(functions) >= 8
    assert all(ast.unparse(f.body[-1]) == "raise NotImplementedError()" for f in functions)


def test_nothing_of_the_graders_is_installed(site):
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"course_pkg"}
    (info,) = site.glob("course_pkg-*.dist-info")
    assert not (info / "entry_points.txt").exists()
    wanted = [
        Requirement(line.removeprefix("Requires-Dist: "))
        for line in (info / "METADATA").read_text().splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    student = {r.name for r in wanted if r.marker and r.marker.evaluate({"extra": "student"})}
    linux = {"triton"} if sys.platform == "linux" else set()
    assert student == {"ipywidgets", "jsonschema", "jupyterlab", "nbgrader"} | linux


def test_the_imports_and_an_exercise_of_the_notebook_work(bundle, site):
    nb = nbformat.read(bundle / f"{ATTENTION.name}.ipynb", as_version=4)
    imports = next(cell.source for cell in nb.cells if "from course_pkg import" in cell.source)
    found = python(
        site,
        f"""{imports}
import course_pkg, course_pkg.attention
print(course_pkg.__file__)
try:
    check(course_pkg.attention.soft_lookup)
except AssertionError as error:
    print(error)
""",
    )
    place, message = found.strip().split("\n", 1)
    assert place == str(site / "course_pkg" / "__init__.py")
    assert "soft_lookup is not implemented yet" in message


def test_what_is_released_is_replaced_only_by_force(course, bundle, monkeypatch):
    """That it needs force is said before anything is made."""
    monkeypatch.setattr(release, "check", None)
    with pytest.raises(CourseError, match="05_attention is already released: --force replaces it"):
        release.main(arguments(course))
    monkeypatch.setattr(release, "check", lambda assignment: [])
    monkeypatch.setattr(release, "bundle", lambda assignment, folder, **said: None)
    (bundle / "HOW_TO.md").unlink()
    assert release.main(arguments(course, force=True)) == 0
    assert (bundle / "HOW_TO.md").exists()


def test_what_is_stale_is_not_released(tmp_path, monkeypatch):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    monkeypatch.setattr(release, "check", lambda assignment, **options: [assignment.student])
    message = r"05_attention.ipynb is stale: run `python -m autograder build 05_attention`"
    with pytest.raises(CourseError, match=message):
        release.main(arguments(tmp_path))
    assert not (tmp_path / release.BUNDLES).exists()


def test_what_the_gradebook_does_not_know_is_said_first(tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    said = []
    monkeypatch.setattr(release, "check", lambda assignment: said.append(capsys.readouterr().err))
    monkeypatch.setattr(release, "publish", lambda assignment, course, force: None)
    monkeypatch.setattr(release, "bundle", lambda a, folder, **said: folder.mkdir(parents=True))
    assert release.main(arguments(tmp_path)) == 0
    with opened(tmp_path) as gradebook:
        gradebook.add_assignment(ATTENTION.name)
    shutil.rmtree(tmp_path / release.BUNDLES)
    assert release.main(arguments(tmp_path)) == 0
    assert said == [
        "The gradebook does not know 05_attention: before you grade, run "
        "`nbgrader generate_assignment 05_attention`\n",
        "",
    ]


def test_what_was_built_without_hints_is_released(tmp_path, monkeypatch):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    (tmp_path / release.BUNDLES / ATTENTION.name).mkdir(parents=True)
    stale = [ATTENTION.student]
    monkeypatch.setattr(release, "check", lambda a, with_hints=True: stale if with_hints else [])
    monkeypatch.setattr(release, "bundle", lambda assignment, folder, **said: None)
    monkeypatch.setattr(release, "publish", lambda assignment, course, force: None)
    assert release.main(arguments(tmp_path)) == 0


def test_unknown_assignments_and_other_folders_are_clear_errors(tmp_path):
    with pytest.raises(
        CourseError, match=r"holds no nbgrader_config.py: name the course's folder with --course"
    ):
        release.main(arguments(tmp_path))
    (tmp_path / "nbgrader_config.py").touch()
    with pytest.raises(CourseError, match=r"there is no solutions/99_none.md; there is "):
        release.main(arguments(tmp_path, "99_none"))
