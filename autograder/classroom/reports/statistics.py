"""What scores say about exercises and students."""

from dataclasses import dataclass

import numpy as np

from autograder.classroom.reports.results import Classroom, Graded, Item

FEWEST = 10  # submissions; with fewer, a correlation says nothing


@dataclass(frozen=True)
class Statistics:
    """An exercise or a question in a class.

    Args:
        item: which one.
        mean: the mean share of its points: its difficulty index; None while answers wait for a
            grader, because only empty ones, which get nothing at once, would count.
        none, part, full: how many got no, some and all points.
        waiting: how many answers wait for a grader.
        discrimination: the correlation of its score with the points on the other exercises; None
            for too few submissions or when all are equal.
    """

    item: Item
    mean: float | None
    none: int
    part: int
    full: int
    waiting: int
    discrimination: float | None


def statistics(classroom: Classroom) -> list[Statistics]:
    """Describe each exercise and question."""
    return [_describe(item, classroom) for item in classroom.items]


def stuck(classroom: Classroom) -> list[tuple[Graded, list[str]]]:
    """List who has no points in more than half of the exercises, and in which; lowest first."""
    without = [
        (graded, [e.name for e in classroom.exercises if not graded.scores[e.name]])
        for graded in classroom.graded
    ]
    found = [(g, names) for g, names in without if len(names) > len(classroom.exercises) / 2]
    return sorted(found, key=lambda pair: pair[0].score)


def _describe(item: Item, classroom: Classroom) -> Statistics:
    known = [g for g in classroom.graded if g.scores[item.name] is not None]
    waiting = len(classroom.graded) - len(known)
    scores = np.array([g.scores[item.name] for g in known])
    others = [e.name for e in classroom.exercises if e is not item]
    rest = np.array([sum(g.scores[name] or 0 for name in others) for g in known])
    return Statistics(
        item,
        mean=None if waiting else float(scores.mean() / item.points),
        none=int((scores <= 0).sum()),
        part=int(((scores > 0) & (scores < item.points)).sum()),
        full=int((scores >= item.points).sum()),
        waiting=waiting,
        discrimination=None if waiting else _correlation(scores, rest),
    )


def _correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    if len(a) < FEWEST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
