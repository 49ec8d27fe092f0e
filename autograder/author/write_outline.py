"""What course_pkg knows of a notebook: its exercises in order, with their points and hints."""

import json
from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.author.master import ExerciseFence, parts


def table(assignment: Assignment, *, with_hints: bool = True) -> dict[Path, bytes]:
    """Make the file from which checks know how many hints there are, and progress the points."""
    found = {
        part.name: {"points": part.points, "hints": len(part.hints)}
        for part in parts(assignment.master, with_hints=with_hints)
        if isinstance(part, ExerciseFence)
    }
    path = ROOT / "course_pkg" / "checks" / "data" / f"{assignment.name}.json"
    return {path: (json.dumps(found, indent=1) + "\n").encode()}
