"""Make the files by which checks recognise known bugs: what each bug gives in each check."""

import contextlib
import importlib
import io
from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.bugs import BUGS
from autograder.hidden import load_hidden
from course_pkg.checking import naming
from course_pkg.checking.guard import Guarded
from course_pkg.checking.naming import Entry
from course_pkg.checking.registry import CHECKS
from course_pkg.checking.runner import run


def files(assignment: Assignment) -> dict[Path, list[Entry]]:
    """Compute the fingerprints of an assignment.

    Those of checks that cannot run here are taken from the files as they are.

    Returns:
        For each of its two files, of visible and of hidden checks, the entries that belong in it.
    """
    topic = assignment.topic
    for package in ("course_pkg.checks", "autograder.bugs"):
        importlib.import_module(f"{package}.{topic}")
    exercises = [exercise for exercise in CHECKS if exercise.module == topic]
    load_hidden(exercises[0])
    visible = ROOT / "course_pkg" / "checks" / "data" / f"{assignment.name}.npz"
    hidden = ROOT / "autograder" / "hidden" / "data" / f"{assignment.name}.npz"
    entries = {visible: [], hidden: []}
    for exercise in exercises:
        if all(check.why_not() for check in CHECKS[exercise].values()):
            for path, kept in entries.items():
                kept += [entry for entry in naming.load(path) if entry[0] == exercise.name]
            continue
        for bug in BUGS.get(exercise, []):
            if bug.told_by:
                continue
            with contextlib.redirect_stdout(io.StringIO()):
                report = run(exercise, Guarded(bug.solution, exercise.name), hidden=True)
            for outcome in report.outcomes:
                failure = outcome.failure
                if failure is None or failure.observed is None:
                    continue
                entry = naming.entry(outcome.check, bug.sentence, failure)
                if naming.identifies(entry.observed):
                    entries[hidden if outcome.check.hidden else visible].append(entry)
    return entries


def is_fresh(path: Path, entries: list[Entry]) -> bool:
    """Tell whether a file holds these entries, up to rounding."""
    return path.exists() and _same(naming.load(path), entries)


def _same(stored: list[Entry], entries: list[Entry]) -> bool:
    return len(stored) == len(entries) and all(
        a[:-1] == b[:-1] and naming.same(a, b) for a, b in zip(stored, entries, strict=True)
    )
