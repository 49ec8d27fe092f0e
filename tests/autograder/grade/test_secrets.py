"""Nothing that students receive holds a solution, a hidden check, a bug or a rubric."""

import ast
import functools
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from autograder.assignment import ROOT, Assignment, assignments
from autograder.author.master import Question, parts
from autograder.author.notebook import with_numbers
from autograder.handout.exercise import BEGIN, END, exercises
from autograder.handout.wheel import wheel
from autograder.hidden import folder as hidden_data

SHORTEST = 12  # characters; "return c" may stand anywhere


@functools.cache
def code_lines(path: Path) -> frozenset[str]:
    """The statements of a file, one by one and without their white space."""
    return frozenset(statements(path.read_text(encoding="utf-8")))


@functools.cache
def text_of(path: Path) -> str:
    """The text of a file without its white space."""
    return squeeze(path.read_text(encoding="utf-8"))


def statements(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom)):
            first = ast.unparse(node).splitlines()[0]
            if not first.startswith(("'", '"', "def ", "class ", "@")):
                yield squeeze(first)


def squeeze(text: str) -> str:
    return "".join(text.split()).replace('"', "'")


def split(source: str) -> tuple[list[str], list[str]]:
    """The lines between the solution markers of an exercise, and those that are given."""
    lines: tuple[list[str], list[str]] = [], []
    is_given = True
    for line in source.splitlines():
        if BEGIN in line or END in line:
            is_given = END in line
        else:
            lines[is_given].append(squeeze(line.partition("#")[0]))
    return lines


@functools.cache
def secrets(assignment: Assignment) -> dict[str, set[str]]:
    """Lines that students must not see, by where they come from."""
    topic = assignment.topic
    solutions = exercises(assignment.reference).values()
    written = [with_numbers(assignment, part) for part in parts(assignment.master)]
    questions = [part for part in written if isinstance(part, Question)]
    folder = ROOT / "autograder" / "assignments" / topic
    found = {
        "solution": {line for source in solutions for line in split(source)[0]},
        "hidden check": code_lines(folder / "hidden.py"),
        "bug": code_lines(folder / "mistakes.py"),
        "rubric": {squeeze(line) for part in questions for line in part.rubric.splitlines()},
    }
    # What students may read elsewhere is no secret: visible checks, earlier references, training,
    # and what is given in an exercise, outside of the marks.
    later = {other.topic for other in assignments() if other.name >= assignment.name}
    public = "\0".join(
        [
            *(line for source in solutions for line in split(source)[1]),
            *(
                text_of(path)
                for path in (ROOT / "course_pkg").rglob("*.py")
                if (path.name == f"{topic}.py" and path.parent.name == "checks")
                or not later & {path.stem, path.parent.name}
            ),
        ]
    )
    return {
        kind: {line for line in lines if len(line) >= SHORTEST and line not in public}
        for kind, lines in found.items()
    }


def alone(assignment: Assignment):
    """Keep the tests of an assignment in one worker, which makes its wheel once."""
    group = pytest.mark.xdist_group(f"secrets-{assignment.name}")
    return pytest.param(assignment, id=assignment.name, marks=group)


@pytest.fixture(scope="module", params=map(alone, assignments()))
def assignment(request) -> Assignment:
    return request.param


@pytest.fixture(scope="module")
def artefacts(assignment, tmp_path_factory) -> dict[str, str]:
    """The text of everything that students of an assignment receive."""
    nb = nbformat.read(assignment.student, as_version=4)
    found = {"notebook": assignment.student.read_text(encoding="utf-8")}
    found |= {f"cell {cell.id}": cell.source for cell in nb.cells}
    path = wheel(assignment, tmp_path_factory.mktemp("wheel"))
    with zipfile.ZipFile(path) as files:
        for name in files.namelist():
            is_text = not name.endswith((".npz", ".safetensors"))
            found[name] = files.read(name).decode("utf-8") if is_text else ""
    return found


def test_no_secret_line_reaches_a_student(assignment, artefacts):
    squeezed = {name: squeeze(text) for name, text in artefacts.items()}
    everything = "\0".join(squeezed.values())
    leaks = [
        f"{kind} in {[name for name, text in squeezed.items() if line in text]}: {line}"
        for kind, lines in secrets(assignment).items()
        for line in lines
        if line in everything
    ]
    assert not leaks, "\n".join(leaks)


def test_there_are_secrets_to_look_for(assignment):
    assert all(len(lines) >= 3 for lines in secrets(assignment).values())


def test_the_search_finds_what_a_careless_builder_would_leak(assignment):
    solved = nbformat.read(assignment.solved, as_version=4)
    text = squeeze("\n".join(cell.source for cell in solved.cells))
    found = secrets(assignment)
    assert all(line in text for line in found["solution"])
    assert all(line in text for line in found["rubric"])


def test_the_wheel_holds_no_part_of_the_graders(assignment, artefacts):
    names = [Path(name) for name in artefacts if name.endswith((".py", ".npz", ".json"))]
    assert {path.parts[0] for path in names} == {"course_pkg"}
    later = [other for other in assignments() if other.name > assignment.name]
    topics = {other.topic for other in later}
    names = [path for path in names if path.parent.name != "weights"]  # facts of models: lstm, gpt
    assert not [path for path in names if path.stem.lstrip("0123456789_") in topics]
    assert Path("course_pkg/checks/data", f"{assignment.name}.json") in names
    assert not [name for name in artefacts if topics & set(Path(name).parts)]  # weights
    hidden = hidden_data(assignment.topic) / f"{assignment.name}.npz"
    assert hidden.exists()
    assert not any("assignments" in path.parts for path in names)


def test_the_notebook_says_nothing_of_hidden_tests(artefacts):
    for word in ("BEGIN SOLUTION", "HIDDEN TESTS", "MARK SCHEME", "Rubric", "autograder"):
        assert word not in artefacts["notebook"]


def test_the_wheel_checks_solutions_on_its_own(tmp_path):
    path = wheel(Assignment("02_lstm"), tmp_path)
    program = f"""
import sys
sys.path.insert(0, "")
sys.modules["autograder"] = None  # students do not have it
import zipfile
zipfile.ZipFile({str(path)!r}).extractall({str(tmp_path / "site")!r})
sys.path[0] = {str(tmp_path / "site")!r}
import course_pkg.lstm
from course_pkg import check, progress
assert course_pkg.__file__.startswith(sys.path[0]), course_pkg.__file__
try:
    check(course_pkg.lstm.lstm_step)
except AssertionError as error:
    print(error)

def init_forget_bias(b, value=1.0):
    b = b.clone()
    b[: len(b) // 4] = value
    return b

for _ in range(3):
    try:
        check(init_forget_bias)
    except AssertionError as error:
        print(error)
print(progress())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lstm_step is not implemented yet" in done.stdout
    words = " ".join(done.stdout.split())
    assert "the input gates' biases are set instead of the forget gates'." in words
    assert 'Stuck? Unfold "Hint 1 of init_forget_bias" above check(init_forget_bias).' in words
    assert "○ lstm_step 0 of 5" in words
