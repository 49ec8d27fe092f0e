"""A moment in which the machine is slow does not change what the scoreboard says."""

import time

from autograder.author import score
from autograder.author.mutants import Mutant
from autograder.author.trials import exercises
from course_pkg.lstm import init_forget_bias


def slow(*given, **named):
    """Compute what the reference does, for longer than a mutant may take."""
    start = time.process_time()
    while time.process_time() - start < 2 * score.LEAST_PATIENCE:
        pass
    return init_forget_bias(*given, **named)


def row_of_slow_mutant(monkeypatch, excused: bool) -> score.Row:
    """Score one mutant that equals its reference and is slow."""
    exercise = next(e for e in exercises("lstm") if e.name == "init_forget_bias")
    monkeypatch.setattr(score, "mutants", lambda _: [Mutant("an equal one", slow, ())])
    excuses = {exercise: {"an equal one": "it is equal"}} if excused else {}
    monkeypatch.setattr(score, "EQUIVALENT", excuses)
    row = score.Row(exercise.name, checks=0)
    score._score_mutants(exercise, row, score.LEAST_PATIENCE)
    return row


def test_mutant_that_is_excused_is_not_killed_by_the_clock(monkeypatch):
    row = row_of_slow_mutant(monkeypatch, excused=True)
    assert (row.killed, row.excused, row.problems) == (0, 1, [])


def test_endless_mutant_is_killed(monkeypatch):
    row = row_of_slow_mutant(monkeypatch, excused=False)
    assert (row.killed, row.excused, row.survivors) == (1, 0, [])
