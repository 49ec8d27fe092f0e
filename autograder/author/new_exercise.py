"""`python -m autograder new-exercise`: stubs of everything that an exercise needs, to be filled in.

Then `python -m autograder score NN_topic` says what is still missing, and in which file.
"""

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.handout.exercise import exercises

_REFERENCE = '''
{head}
    """Say in one line what it computes.

    y = …        (source: paper, year, section)

    Args:
        x: what it is, with its unit.
    Returns:
        What it is.
    Raises:
        ValueError: when.
    """
{body}
'''
_FUNCTION = 'def {name}(x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:'
_CLASS = "class {name}(nn.Module):"
_METHODS = """
    def __init__(self, D: int):
        super().__init__()
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        raise NotImplementedError"""
_CHECK = '''
@check({name}, see="{heading}", single="B")
def {check}(student, case):
    """agrees with … (an oracle that is not the reference)"""
    raise NotImplementedError
'''
_MISTAKES = '''
# At least 8. The sentence completes "Your output equals what you get when …".
# mistakes(
#     {name},
#     """
# WhatIsWrong: what is wrong
#     what the reference says, in one place → what this one says instead
# """,
# )
'''
_ALTERNATIVE = """
# At least 2: other algorithms, loops instead of einsum, another dtype.
# @alternative({name})
# def another_way(x):
#     return x
"""
_FENCE = """## {heading}

Equation, shape table, classic mistakes.

```hint
A question that gets a stuck student moving: which sizes meet here?
```

```hint
Facts, a pitfall and a way to test oneself; the decisive line stays open.
```

```python exercise="{name}" points=4
```

"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("exercise", help="its name; a capital letter makes it a class")


def main(arguments: argparse.Namespace) -> int:
    """Write stubs of everything that a new exercise of an assignment needs."""
    (assignment,) = assignments([arguments.assignment])
    demand_name(arguments.exercise)
    if arguments.exercise in exercises(assignment.reference):
        raise CourseError(f"{assignment.name} already has an exercise {arguments.exercise!r}")
    if len(assignment.reference) > 1:
        raise CourseError(f"course_pkg/{assignment.topic} is a package: add to a module by hand")
    return add(assignment, arguments.exercise)


def demand_name(exercise: str) -> None:
    """Refuse what cannot be the name of an exercise."""
    if not exercise.isidentifier() or exercise.startswith("_"):
        raise CourseError(f"an exercise has the name of its function or class, not {exercise!r}")


def add(assignment: Assignment, exercise: str) -> int:
    """Add an exercise to the files of an assignment, and say which these are."""
    topic, heading = assignment.topic, exercise.replace("_", " ").capitalize()
    is_class = exercise[:1].isupper()
    head = (_CLASS if is_class else _FUNCTION).format(name=exercise)
    body = _METHODS if is_class else "    raise NotImplementedError"
    texts = {
        f"course_pkg/{topic}.py": _REFERENCE.format(head=head, body=body),
        f"course_pkg/checks/{topic}.py": _CHECK.format(
            name=exercise, heading=heading, check="values"
        ),
        f"autograder/assignments/{topic}/hidden.py": _CHECK.format(
            name=exercise, heading=heading, check="gradients"
        ),
        f"autograder/assignments/{topic}/mistakes.py": _MISTAKES.format(name=exercise),
        f"autograder/assignments/{topic}/alternatives.py": _ALTERNATIVE.format(name=exercise),
    }
    for place, text in texts.items():
        path = ROOT / place
        source = path.read_text(encoding="utf-8")
        if path.parent.name != "course_pkg":
            source = _import(source, f"course_pkg.{topic}", exercise)
        elif is_class:
            source = _import(source, "torch", "nn")
        path.write_text(f"{source.rstrip()}\n\n{text}", encoding="utf-8")
    master = assignment.master.read_text(encoding="utf-8")
    before, questions, after = master.partition("## Questions\n")
    fence = _FENCE.format(heading=heading, name=exercise)
    assignment.master.write_text(before + fence + questions + after, encoding="utf-8")
    paths = [str(ROOT / place) for place in texts]
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *paths], check=True)
    for path in [*paths, str(assignment.master)]:
        print(Path(path).relative_to(ROOT))
    print(f"\nFill these in, then: python -m autograder score {assignment.name}")
    return 0


def _import(source: str, module: str, name: str) -> str:
    """Add a name to the import of a module, which is there."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == module:
            names = sorted({alias.name for alias in node.names} | {name}, key=_isort)
            lines = source.splitlines(keepends=True)
            comment = re.search(r"  # .*$", lines[node.end_lineno - 1].rstrip())
            new = f"from {module} import {', '.join(names)}{comment[0] if comment else ''}\n"
            return "".join([*lines[: node.lineno - 1], new, *lines[node.end_lineno :]])
    raise CourseError(f"nothing is imported from {module} where {name} should be")


def _isort(name: str) -> tuple[int, str]:
    """Ruff's order: CONSTANTS, Classes, functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2), name
