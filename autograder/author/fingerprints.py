"""The files by which checks recognise known mistakes: what each gives in each check."""

from pathlib import Path

from autograder.assignment import ROOT, Assignment
from autograder.author.examination import exercises, trials
from autograder.hidden import folder
from course_pkg.checking.registry import CHECKS
from course_pkg.checking.telling import naming
from course_pkg.checking.telling.naming import Entry


def files(assignment: Assignment) -> dict[Path, list[Entry]]:
    """Compute the fingerprints of an assignment.

    Fingerprints of checks that cannot run here are taken from the files as they are. Mistakes that
    the messages of checks give away by themselves have none.

    Returns:
        For each of its two files, of visible and of hidden checks, the entries that belong in it.
    """
    visible = ROOT / "course_pkg" / "checks" / "data" / f"{assignment.name}.npz"
    hidden = folder(assignment.topic) / f"{assignment.name}.npz"
    entries = {visible: [], hidden: []}
    for exercise in exercises(assignment.topic):
        if all(check.why_not() for check in CHECKS[exercise].values()):
            for path, kept in entries.items():
                kept += [entry for entry in naming.load(path) if entry.exercise == exercise.name]
            continue
        for number, (bug, report) in enumerate(trials(exercise)):
            for outcome in report.outcomes:
                if outcome.failure is not None and not bug.told_by:
                    entry = naming.entry(outcome.check, outcome.failure, number, bug.sentence)
                    entries[hidden if outcome.check.hidden else visible].append(entry)
    return entries


def stale(assignment: Assignment) -> list[Path]:
    """List the files that are missing or hold other fingerprints, rounding aside."""
    return [path for path, entries in files(assignment).items() if not is_fresh(path, entries)]


def is_fresh(path: Path, entries: list[Entry]) -> bool:
    """Tell whether a file holds these entries, up to rounding."""
    return path.exists() and _same(naming.load(path), entries)


def _same(stored: list[Entry], entries: list[Entry]) -> bool:
    """Compare all but the type that values show: on another processor 0.5 may be 0.4999…"""
    return len(stored) == len(entries) and all(
        a[:6] == b[:6] and naming.same(a, b) for a, b in zip(stored, entries, strict=True)
    )
