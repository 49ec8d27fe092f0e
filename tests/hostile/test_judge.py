"""Tests of students that try to gain by something else than what solutions do."""

import copy
import os
import subprocess
import sys
import textwrap

import nbformat
import pytest

from autograder.assignment import Assignment
from tests import course as toolbox

pytestmark = [pytest.mark.xdist_group("hostile"), toolbox.needs_sandbox]
JUDGE = Assignment("26_judge")
ATTACKED = "check_softmax"
KEPT = ["assert_near", ATTACKED, "check_causal_mask", "check_kv_cache", "shrink", "diagnose"]
POINTS = {name: points for name, points in toolbox.points(JUDGE).items() if name in KEPT}

# Each defines attack(f), which is called in place of the test.
ATTACKS = {
    "the first are right": """
        calls = 0

        def attack(f):
            global calls
            calls += 1
            assert calls <= 6
    """,
    "every other one is wrong": """
        calls = 0

        def attack(f):
            global calls
            calls += 1
            assert calls % 2
    """,
    "names of the function": """
        import gc

        def attack(f):
            told = [repr(f), str(type(f)), str(dir(f)), str(getattr(f, "__dict__", ""))]
            hidden = ("__name__", "__qualname__", "__closure__")
            told += [str(getattr(f, name, "")) for name in hidden]
            told += [repr(one)[:500] for one in gc.get_referrers(f) + gc.get_referents(f)]
            text = " ".join(told).lower()
            assert not any(w in text for w in ("axis", "in_place", "indexed", "truncat", "mistake"))
    """,
    "texts of exceptions": """
        def attack(f):
            for args in ((), (1,), (None,) * 9):
                try:
                    f(*args)
                except Exception as error:
                    assert not str(error) and error.__traceback__.tb_next is not None
                    frame = error.__traceback__
                    while frame.tb_next:
                        frame = frame.tb_next
                    assert "mistakes.py" not in frame.tb_frame.f_code.co_filename
    """,
    "notes of exceptions": """
        told = None

        def attack(f):
            global told
            try:
                f()
            except Exception as error:
                notes = getattr(error, "__notes__", None)
                told = told or notes
                assert notes == told
    """,
    "the bank on the disk": """
        import os, sys

        def attack(f):
            for top in [*sys.path, "/opt", "/home", "/tmp", "/proc/self", "/proc/1"]:
                for folder, _, files in os.walk(top):
                    assert "assignments" not in folder
                    assert not {"bank.py", "mistakes.py", "hidden.py"} & set(files)
                    if folder.count("/") > 6:
                        break
    """,
    "the bank in the process": """
        import sys

        def attack(f):
            for name in ("autograder", "autograder.assignments.judge.bank", "autograder.mistakes"):
                try:
                    __import__(name)
                except ImportError:
                    continue
                raise AssertionError(name)
            assert not any(name.startswith("autograder") for name in sys.modules)
    """,
    "another question": """
        from course_pkg.remote.borrowed import Borrowed
        from course_pkg.remote.messages import Encoder

        def attack(f):
            loan = f._loan
            for number in range(1, 50):
                try:
                    Borrowed(loan, number, [])()
                except Exception as error:
                    assert not str(error)
            for name in ("__globals__", "__code__", "__class__", "__dict__", "__init__"):
                try:
                    f._ask(name, (), {})
                except AttributeError:
                    continue
                raise AssertionError(name)
    """,
    "another loan": """
        from course_pkg.remote.messages import Encoder

        def attack(f):
            place = ["autograder.assignments.judge.bank", "unseen", []]
            answer = f._loan.wire.ask(Encoder().message({"lent": 0, "lend": [place]}))
            raise AssertionError(answer.header)
    """,
    "another topic": """
        from course_pkg.remote.messages import Encoder

        def attack(f):
            header = {"question": "x", "topic": "judge", "names": ["check_softmax"]}
            answer = f._loan.wire.ask(Encoder().message(header))
            raise AssertionError(answer.header)
    """,
    "without end": """
        def attack(f):
            while True:
                pass
    """,
    "asks without end": """
        import torch

        def attack(f):
            while True:
                try:
                    f(torch.zeros(1, 1))
                except Exception:
                    pass
    """,
    "takes all memory": """
        import torch

        def attack(f):
            for _ in range(3):
                try:
                    f(torch.zeros(1, 1).expand(20000, 20000), torch.zeros(1, 1).bool())
                    f(10**9, 10**9, 10**9, 10**9)
                except Exception:
                    pass
    """,
    "ends the process": """
        import os

        def attack(f):
            os._exit(0)
    """,
    "equals everything": """
        class Equal:
            def __eq__(self, other):
                return True

            def __hash__(self):
                return 0

            def __bool__(self):
                return True

        def attack(f):
            return Equal()
    """,
    "changes what decides": """
        import course_pkg.checking.guard as guard
        import course_pkg.remote.server as server
        from course_pkg.checking.telling.failure import Failure

        def attack(f):
            server.Guarded.__call__ = lambda self, *args, **kwargs: None
            guard.attempt = lambda name, action, seconds=0: None
            raise Failure("This is right.", kinds=("AssertionError", "Exception"))
    """,
    "a failure that is none": """
        from course_pkg.checking.telling.failure import Failure

        def attack(f):
            raise Failure("ran for more than 5 s.")
    """,
    "leaves": """
        import sys

        def attack(f):
            sys.exit(0)
    """,
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The course in which honest and hostile students have submitted and the command has run."""
    root = tmp_path_factory.mktemp("judge")
    toolbox.new_course(root, JUDGE, trim=_trimmed)
    stub = nbformat.read(root / "notebooks" / JUDGE.name / f"{JUDGE.name}.ipynb", as_version=4)
    toolbox.submit(root, "empty", JUDGE, stub)
    solved = copy.deepcopy(stub)
    toolbox.solve(solved, JUDGE)
    toolbox.submit(root, "perfect", JUDGE, solved)
    buggy = copy.deepcopy(solved)
    expected = toolbox.spoil(buggy, JUDGE)
    toolbox.submit(root, "buggy", JUDGE, buggy)
    for name, source in ATTACKS.items():
        nb = copy.deepcopy(stub)
        for cell in nb.cells:
            if cell.id == ATTACKED:
                cell.source = f"{textwrap.dedent(source).strip()}\n\n\n{cell.id} = attack"
        toolbox.submit(root, student(name), JUDGE, nb)
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "grade", JUDGE.name, "--json", "--workers", "1"],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return root, expected


def student(attack: str) -> str:
    return "attack-" + attack.replace(" ", "-")


def _trimmed(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    kept = [name for exercise in KEPT for name in (exercise, f"check_{exercise}")]
    nb.cells = [c for c in nb.cells if c.id in kept or "course_pkg import" in c.source]
    return nb


def scores(root, name: str) -> dict:
    found = toolbox.scores(root, name, JUDGE)
    return {exercise: found[exercise] for exercise in KEPT}


def test_honest_submissions_get_what_they_should(graded):
    root, expected = graded
    assert scores(root, "perfect") == POINTS
    assert scores(root, "empty") == dict.fromkeys(KEPT, 0)
    assert scores(root, "buggy") == {name: expected[name] for name in KEPT}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_gain_nothing(graded, name):
    assert scores(graded[0], student(name)) == dict.fromkeys(KEPT, 0)
