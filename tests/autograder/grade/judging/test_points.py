"""A solution that computes nothing earns nothing, whatever its shapes and errors are."""

import pytest

from autograder.assignment import assignments
from autograder.author.empty_solutions import ARGUMENTS, hollow, passed_by_hollow
from autograder.author.examination import examine, exercises
from autograder.grade.judging import points
from autograder.grade.judging.points import earned, is_hollow
from autograder.hidden import unearned
from course_pkg.attention import scaled_dot_attention
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.positions import LearnedPositions

EXERCISES = [exercise for a in assignments() for exercise in exercises(a.topic)]
# The other assignments' lists are made in the same way, and the build finds out if one is stale.
FUNCTIONS = [exercise for exercise in exercises("attention") if not exercise.is_class]


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda e: e.name)
def test_results_without_content_earn_nothing(exercise: Exercise):
    for what, solution in hollow(exercise).items():
        report = examine(exercise, solution)
        if report.passed:  # NaN has no place in its results
            assert what == "NaN"
        else:
            assert earned(10, report) == 0, what


def test_a_constructor_alone_earns_what_it_is_worth():
    class Silent(LearnedPositions):
        def forward(self, *args):
            raise RuntimeError

    report = examine(Exercise.of(LearnedPositions), Silent)
    assert earned(10, report) > 0 and not is_hollow(report)


def test_what_is_right_earns_all_and_a_part_earns_its_share():
    exercise = Exercise.of(scaled_dot_attention)
    assert earned(10, examine(exercise, scaled_dot_attention)) == 10

    def never_refuses(Q, K, V):
        D, N = min(Q.shape[-1], K.shape[-1]), min(K.shape[-2], V.shape[-2])
        return scaled_dot_attention(Q[..., :D], K[..., :N, :D], V[..., :N, :])

    assert 0 < earned(10, examine(exercise, never_refuses)) < 10


def test_in_every_exercise_some_checks_demand_a_computation():
    assert not [e for e in EXERCISES if not unearned(e) < set(CHECKS[e])]


@pytest.mark.parametrize("name", ["lstm_step", "gru_step", "chrono_bias", "delta_rule"])
def test_an_argument_of_the_right_shape_earns_nothing(name, monkeypatch):
    monkeypatch.setattr(points, "unearned", passed_by_hollow)  # as the build writes it down
    exercise = next(exercise for exercise in EXERCISES if exercise.name == name)
    given_back = {n: s for n, s in hollow(exercise).items() if n.startswith("argument")}
    assert len(given_back) == ARGUMENTS
    for solution in given_back.values():
        assert earned(10, examine(exercise, solution)) == 0
