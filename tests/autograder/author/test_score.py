"""The scoreboard says the same on a slow machine, and that students could have found a mistake."""

import time
from dataclasses import replace

from autograder.author import score
from autograder.author.examination import exercises
from autograder.author.mutants import Mutant
from course_pkg.checking.registry import CHECKS
from course_pkg.lstm import init_forget_bias


def slow(*given, **named):
    """Compute what the reference does, for longer than a mutant may take."""
    start = time.process_time()
    while time.process_time() - start < 2 * score.LEAST_SECONDS:
        pass
    return init_forget_bias(*given, **named)


def row_of_slow_mutant(monkeypatch, excused: bool) -> score.Row:
    """Score one mutant that equals its reference and is slow."""
    exercise = next(e for e in exercises("lstm") if e.name == "init_forget_bias")
    monkeypatch.setattr(score, "mutants", lambda _: [Mutant("an equal one", slow, ())])
    excuses = {exercise: {"an equal one": "it is equal"}} if excused else {}
    monkeypatch.setattr(score, "EQUIVALENT", excuses)
    row = score.Row(exercise.name, checks=0)
    score._score_mutants(exercise, row, score.LEAST_SECONDS)
    return row


def test_mutant_that_is_excused_is_not_killed_by_the_clock(monkeypatch):
    row = row_of_slow_mutant(monkeypatch, excused=True)
    assert (row.killed, row.excused, row.problems) == (0, 1, [])


def test_endless_mutant_is_killed(monkeypatch):
    row = row_of_slow_mutant(monkeypatch, excused=False)
    assert (row.killed, row.excused, row.survivors) == (1, 0, [])


def test_a_mistake_that_only_the_grader_finds_is_a_problem(monkeypatch):
    exercise = next(e for e in exercises("lstm") if e.name == "init_forget_bias")
    checks = dict(CHECKS[exercise])
    checks["negative"] = replace(checks["negative"], hidden=True)
    monkeypatch.setitem(CHECKS, exercise, checks)
    monkeypatch.setattr(score, "trials", score.trials.__wrapped__)
    row = score.Row(exercise.name, checks=len(checks))
    score._score_bugs(exercise, row)
    (problem,) = row.problems
    assert problem.startswith("bug zero_is_none passes at home, and fails only negative:")
