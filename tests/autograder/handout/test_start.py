"""How a notebook starts: its links lead to files, and its first cell installs what is missing."""

import ast
import importlib.util
import re
import shutil
import subprocess

import nbformat
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell

from autograder.assignment import ROOT, Assignment, CourseError
from autograder.author.build import linked
from autograder.author.notebook import notebook
from autograder.handout import start, wheel
from autograder.handout.wheel import filename

LSTM = Assignment("02_lstm")
PUBLIC = "https://github.com/someone/sequence-models"
WHEEL = filename(LSTM)
ONLINE = f"{PUBLIC}/releases/download/wheels/{WHEEL}"


@pytest.fixture
def publish(monkeypatch, tmp_path):
    """Give the course an address."""

    def at(address: str) -> None:
        text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        text, count = re.subn(r'^Repository = ".*"$', f'Repository = "{address}"', text, flags=re.M)
        assert count == 1
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        monkeypatch.setattr(wheel, "ROOT", tmp_path)

    return at


def test_links_lead_to_the_students_notebook(publish):
    publish(PUBLIC)
    before = nbformat.read(LSTM.student, as_version=4)
    nb = nbformat.reads(linked(LSTM.student.read_bytes(), LSTM).decode(), as_version=4)
    nbformat.validate(nb)
    assert [cell.id for cell in nb.cells] == [cell.id for cell in before.cells]
    assert nb.cells[1:] == before.cells[1:]
    title, _, line = nb.cells[0].source.splitlines()[:3]
    assert title == before.cells[0].source.splitlines()[0]
    colab, binder = re.findall(r"\[Open in \w+\]\(([^)]*)\)", line)
    path = LSTM.student.relative_to(ROOT).as_posix()
    site = "https://colab.research.google.com/github/someone/sequence-models/blob/main/"
    assert colab == site + path
    site = "https://mybinder.org/v2/gh/someone/sequence-models/HEAD?urlpath=lab/tree/"
    assert binder == site + path


def test_no_link_is_dead(publish):
    publish("https://github.com/OWNER/REPOSITORY")
    data = LSTM.student.read_bytes()
    assert linked(data, LSTM) == data and start.links(LSTM) == ""
    assert "github.com" not in start.installing(LSTM)


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/someone/course",
        "https://github.com/someone",
        "someone/course",
        PUBLIC + "/tree/main",
    ],
)
def test_an_address_from_which_no_link_can_be_made_is_reported(publish, address):
    publish(address)
    message = rf'Repository is {address!r}, .*write "https://github.com/OWNER/REPOSITORY"'
    with pytest.raises(CourseError, match=message):
        start.links(LSTM)


def test_another_address_makes_no_output_stale(publish):
    here = notebook(LSTM)
    publish(PUBLIC)
    there = notebook(LSTM)
    assert here.metadata == there.metadata
    first, imports = [cell for cell in there.cells if cell.cell_type == "code"][:2]
    assert first.id == start.INSTALL and "from course_pkg import" in imports.source
    ast.parse(first.source)  # it has no magics


@pytest.fixture
def run(publish, monkeypatch, tmp_path, capsys):
    """Run the cell where course_pkg is missing; return what it prints and what pip is told."""
    publish(PUBLIC)
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    InteractiveShell.clear_instance()
    shell, told = InteractiveShell.instance(), []
    shell.register_magic_function(told.append, magic_name="pip")
    find = importlib.util.find_spec

    def without_the_course(name, package=None):
        return None if name == "course_pkg" else find(name, package)

    def run(is_missing: bool, wheel: str = "") -> tuple[str, list[str]]:
        if is_missing:
            monkeypatch.setattr(importlib.util, "find_spec", without_the_course)
        if wheel:
            shutil.copy(ROOT / "pyproject.toml", folder / wheel)
        shell.run_cell(start.installing(LSTM)).raise_error()
        return capsys.readouterr().out, told

    yield run
    InteractiveShell.clear_instance()


def test_where_the_course_is_installed_nothing_happens(run):
    assert run(is_missing=False) == ("", [])


@pytest.mark.parametrize(
    ("beside", "wheel"), [(WHEEL, WHEEL), ("", ONLINE), ("course_pkg-0.1.0.whl", ONLINE)]
)
def test_where_it_is_missing_its_wheel_is_installed(run, beside, wheel):
    said, (*packages, last) = run(is_missing=True, wheel=beside)
    assert said == f"Installing {wheel}. Packages that are here already, such as torch, stay.\n"
    assert last == f"install --quiet --no-deps {wheel}"
    # Without versions: pip then leaves alone what is there.
    names = " ".join(line.removeprefix("install --quiet ") for line in packages).split()
    assert names[:2] == ["torch", "numpy"] and "mlxtend" in names and "=" not in "".join(names)


def test_the_workflow_publishes_wheels_where_the_cell_looks_for_them():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text())
    job = workflow["jobs"]["publish"]
    script = "\n".join(step.get("run", "") for step in job["steps"])
    assert f"gh release upload {start.WHEELS} " in script
    assert workflow[True]["push"]["branches"] == ["main"]  # YAML reads `on` as True
    assert job["permissions"] == {"contents": "write"}


@pytest.mark.parametrize(
    ("repository", "said"),
    [("Someone/sequence-models", "is-here=true\n"), ("someone/sequence-models-2026", "")],
)
def test_only_the_repository_of_the_address_publishes(publish, tmp_path, repository, said):
    publish(PUBLIC)
    folder = ROOT / ".github" / "workflows"
    for name, job in (("wheels", "publish"), ("site", "build")):
        jobs = yaml.safe_load((folder / f"{name}.yml").read_text())["jobs"]
        assert jobs["address"] == {"uses": "./.github/workflows/address.yml"}
        assert jobs[job]["needs"] == "address"
        assert jobs[job]["if"] == "needs.address.outputs.is-here == 'true'"
    assert yaml.safe_load((folder / "site.yml").read_text())["jobs"]["publish"]["needs"] == "build"
    steps = yaml.safe_load((folder / "address.yml").read_text())["jobs"]["compare"]["steps"]
    output = tmp_path / "output"
    output.touch()
    names = {"GITHUB_REPOSITORY": repository, "GITHUB_OUTPUT": str(output)}
    subprocess.run(["bash", "-e", "-c", steps[-1]["run"]], cwd=tmp_path, env=names, check=True)
    assert output.read_text() == said


def test_a_wheel_holds_the_weights_of_its_notebook_and_facts_of_all(tmp_path):
    here = {"08_gpt": {"gpt"}, "10_kv_cache": {"gpt"}, "11_llama": {"gpt", "llama"}}
    for name, models in here.items():
        package = tmp_path / name
        shutil.copytree(ROOT / "course_pkg", package, ignore=shutil.ignore_patterns("*.npz"))
        wheel.drop_later(Assignment(name), package)
        weights = package / "data" / "weights"
        assert {path.name for path in weights.iterdir() if path.is_dir()} == models
        assert (weights / "target.json").exists() and (weights / "merges.json").exists()
