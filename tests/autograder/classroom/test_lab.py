"""`make lab`: one server for a student and a grader, on a course of one small assignment."""

import asyncio
import json
import os
import platform
import shutil
import socket
import time
from argparse import ArgumentParser, Namespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.assignment import ROOT
from autograder.classroom import contents, lab
from tests.server import TEACHER, serving


@pytest.fixture
def course(tmp_path):
    """A course folder with our configuration and one assignment, 01_double, of five points."""
    cells = [
        new_code_cell(
            "def double(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
            metadata=nbgrader("double", solution=True),
        ),
        new_code_cell(
            "assert double(2) == 4\n"
            "### BEGIN HIDDEN TESTS\nassert double(3) == 6\n### END HIDDEN TESTS",
            metadata=nbgrader("double_test", grade=True, locked=True, points=2),
        ),
        new_markdown_cell(
            "Why?\n<!-- BEGIN MARK SCHEME -->\nSays why.\n<!-- END MARK SCHEME -->",
            metadata=nbgrader("why_question", locked=True),
        ),
        new_markdown_cell(
            "Therefore.", metadata=nbgrader("why", grade=True, solution=True, points=3)
        ),
    ]
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": python})
    for folder in ("solutions", "notebooks"):
        path = tmp_path / folder / "01_double" / "01_double.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    return tmp_path


def nbgrader(grade_id, *, grade=False, solution=False, locked=False, points=None):
    """Return the metadata with which nbgrader recognises a cell."""
    metadata = {
        "grade_id": grade_id,
        "grade": grade,
        "solution": solution,
        "locked": locked,
        "task": False,
        "schema_version": 3,
    }
    return {"nbgrader": metadata if points is None else metadata | {"points": points}}


@pytest.fixture
def server(course):
    """A running server for the course: its folder, and a function that gets a page."""
    with serving(course) as page:
        yield course, page


def test_one_server_serves_a_student_and_a_grader(server):
    course, page = server
    assert "<title>JupyterLab</title>" in page("lab/tree/notebooks")
    assert "nbgrader" in page("formgrader/manage_assignments")

    (assignment,) = json.loads(page("formgrader/api/assignments"))
    assert assignment["status"] == "released"
    assert assignment["max_score"] == 5
    students = {student["id"] for student in json.loads(page("formgrader/api/students"))}
    assert students > set(lab.DEMO_STUDENTS)

    listed = json.loads(page("assignments?course_id=sequence_models"))
    assert listed["success"]
    assert [entry["path"] for entry in listed["value"]] == ["notebooks/01_double"]
    assert not list((course / "home").rglob("*jupyter*"))


def test_the_second_start_reuses_the_exchange_and_the_gradebook(course, capsys):
    lab.prepare(course)
    assert "Preparing 01_double (1 of 1)" in capsys.readouterr().out
    before = snapshot(course)
    lab.prepare(course)
    assert capsys.readouterr().out == ""
    assert snapshot(course) == before


def test_many_assignments_are_prepared_while_the_server_runs(course):
    with serving(course, f"lab.FEW = 0; {TEACHER}") as page:
        assert "are put into the exchange meanwhile" in (course / "server.log").read_text()
        assert "<title>JupyterLab</title>" in page("lab/tree/notebooks")
        until = time.monotonic() + 120
        while not list(course.glob("autograder/course/exchange/*/outbound/*/*.ipynb")):
            assert time.monotonic() < until
            time.sleep(0.2)


def test_what_goes_wrong_meanwhile_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab.prepare_here()
    assert "holds no assignment. Build them: make build" in capsys.readouterr().err


def test_an_assignment_that_was_built_anew_is_prepared_again(course, capsys):
    lab.prepare(course)
    source = course / "solutions" / "01_double" / "01_double.ipynb"
    os.utime(source, (time.time() + 10, time.time() + 10))
    capsys.readouterr()
    lab.prepare(course)
    assert "Preparing 01_double" in capsys.readouterr().out


def test_preparing_releases_no_secrets_and_leaves_the_work_in_notebooks_alone(course):
    notebook = course / "notebooks" / "01_double" / "01_double.ipynb"
    before = notebook.read_bytes()
    lab.prepare(course)
    assert notebook.read_bytes() == before
    (released,) = course.glob("autograder/course/exchange/*/outbound/*/*.ipynb")
    text = released.read_text()
    assert "double(2)" in text
    for secret in ("return 2", "double(3)", "Says why", "Therefore"):
        assert secret not in text


def test_a_taken_port_is_reported_and_another_one_named(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert lab.main(Namespace(port=taken, browser=False)) == 1
    message = capsys.readouterr().err
    assert f"Port {taken} is taken" in message
    assert "make lab PORT=" in message


def test_a_checkout_without_notebooks_is_reported(tmp_path):
    with pytest.raises(lab.LabProblem, match="make build"):
        lab.prepare(tmp_path)


def test_a_notebook_without_a_solution_is_reported(course):
    shutil.rmtree(course / "solutions")
    with pytest.raises(lab.LabProblem, match=r"01_double\.ipynb is missing.*make build"):
        lab.prepare(course)


def test_what_nbgrader_refuses_is_shown(course):
    source = course / "solutions" / "01_double" / "01_double.ipynb"
    source.write_text("not a notebook")
    with pytest.raises(lab.LabProblem, match="could not prepare 01_double"):
        lab.prepare(course)


def test_root_is_allowed_only_for_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "--allow-root" not in lab.server_command(ROOT, 8888, browser=True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-root" in lab.server_command(ROOT, 8888, browser=True)


def test_the_options_of_the_command():
    parser = ArgumentParser()
    lab.add_arguments(parser)
    assert vars(parser.parse_args([])) == {"port": 8888, "browser": True}
    options = parser.parse_args(["--port", "8890", "--no-browser"])
    assert vars(options) == {"port": 8890, "browser": False}


@pytest.mark.parametrize("port", ["80", "70000", "-1", "lab"])
def test_an_impossible_port_is_reported(port, capsys):
    parser = ArgumentParser()
    lab.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--port={port}"])
    assert "a number from 1024 to 65535" in capsys.readouterr().err


def snapshot(course):
    """Return when each file under autograder/course was last changed."""
    folder = course / "autograder" / "course"
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_page_that_opens_first_is_put_beside_the_notebooks_and_kept_as_it_is(course):
    lab.welcome(course)
    page = course / lab.FIRST_PAGE
    assert page.exists()
    page.write_text(page.read_text() + "\n")  # as JupyterLab saves it, with outputs
    before = page.read_bytes()
    lab.welcome(course)
    assert page.read_bytes() == before
    assert f"--LabApp.default_url=/lab/tree/{lab.FIRST_PAGE}" in lab.server_command(
        course, 8888, browser=False
    )


def test_a_notebook_is_served_with_what_its_kernel_says_of_itself(course):
    """JupyterLab writes that into it; where nothing changes, the notebook is not unsaved."""
    files = contents.Contents(root_dir=str(course))
    path = course / "notebooks" / "mine.ipynb"
    nbformat.write(
        new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}), path
    )
    before = path.read_bytes()
    model = asyncio.run(files.get("notebooks/mine.ipynb"))
    assert model["content"]["metadata"]["kernelspec"]["display_name"] == "Python 3 (ipykernel)"
    assert model["content"]["metadata"]["language_info"]["version"] == platform.python_version()
    assert path.read_bytes() == before
    assert asyncio.run(files.get("notebooks/mine.ipynb", content=False))["content"] is None


def test_a_notebook_of_another_language_is_served_as_it_is(course):
    files = contents.Contents(root_dir=str(course))
    written = {"kernelspec": {"name": "ir", "display_name": "R"}, "language_info": {"name": "R"}}
    nbformat.write(new_notebook(metadata=written), course / "notebooks" / "r.ipynb")
    assert asyncio.run(files.get("notebooks/r.ipynb"))["content"]["metadata"] == written
