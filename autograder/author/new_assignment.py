"""`python -m autograder new-assignment`: the files of an assignment with one exercise, as stubs."""

import argparse
import re

from autograder.assignment import ROOT, Assignment, CourseError, assignments
from autograder.author.new_exercise import add, demand_name

_MASTER = """# {number} · {title}

What you will build, with a picture.

**Time:** … **You need:** …

```python
import torch
from jaxtyping import Float
from torch import Tensor, nn

from course_pkg import check, claim, plot, predict, ready, train

plot.style()
device = train.device()
seed = 0  # change it and run an experiment again: do you see the same?
```

## Questions

```question name="why" points=3
Why does …?
---
- What a good answer says.
```

## Go further

A question whose answer is not in the text, with a goal that can be measured. Not graded.

## Further reading

- Exact references.
"""
_NEW = {  # files of a new assignment, without its exercises
    "course_pkg/{topic}.py": '"""What this module is about.\n\nShapes: …\n"""\n\n'
    "from jaxtyping import Float\nfrom torch import Tensor\n",
    "course_pkg/checks/{topic}.py": '"""Checks of {name}. Oracles: …"""\n\n'
    "from course_pkg.checking.registry import check\nfrom course_pkg.{topic} import {exercise}\n",
    "autograder/assignments/{topic}/hidden.py": '"""Hidden checks of {name}: …"""\n\n'
    "from course_pkg.checking.registry import check\nfrom course_pkg.{topic} import {exercise}\n",
    "autograder/assignments/{topic}/mistakes.py": '"""Known wrong solutions of {name}."""\n\n'
    "from autograder.mistakes import mistakes  # noqa: F401, until the first is written\n"
    "from course_pkg.{topic} import {exercise}  # noqa: F401\n",
    "autograder/assignments/{topic}/alternatives.py": '"""Other correct solutions of {name}."""\n\n'
    "from autograder.alternatives import alternative  # noqa: F401, until the first is written\n"
    "from course_pkg.{topic} import {exercise}  # noqa: F401\n",
    "tests/submissions/{topic}.py": '"""A submission of {name} with mistakes."""\n\n'
    "# What the right solution says, and what this one says instead.\nCHANGES = {}\n\n"
    "# By the weight of the checks that pass; what is not named here gets all its points.\n"
    "SCORES = {}\n",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NN_topic")
    parser.add_argument("exercise", help="the first exercise; a capital letter makes it a class")


def main(arguments: argparse.Namespace) -> int:
    """Write the files of a new assignment, with one exercise."""
    name, exercise = arguments.name, arguments.exercise
    if not re.fullmatch(r"\d\d_[a-z][a-z_]*", name):
        raise CourseError(f"an assignment is called NN_topic, like 02_lstm, not {name!r}")
    assignment = Assignment(name)
    for other in assignments():
        if other.topic == assignment.topic or other.name[:2] == name[:2]:
            raise CourseError(f"{other.name} already has that number or topic")
    demand_name(exercise)
    names = {"name": name, "topic": assignment.topic, "exercise": exercise}
    for place, text in _NEW.items():
        path = ROOT / place.format(**names)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{}", "{{}}").format(**names), encoding="utf-8")
    title = assignment.topic.replace("_", " ").capitalize()
    text = _MASTER.format(number=name[:2], title=title)
    assignment.master.write_text(text, encoding="utf-8")
    return add(assignment, exercise)
