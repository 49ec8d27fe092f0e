"""A solution that computes nothing earns nothing, whatever its shapes and errors are."""

import pytest

from autograder.assignment import assignments
from autograder.author.hollow import hollow
from autograder.author.trials import examine, exercises
from autograder.grade.points import earned, is_hollow
from autograder.hidden import unearned
from course_pkg.attention import scaled_dot_attention
from course_pkg.checking.registry import CHECKS, Exercise
from course_pkg.positions import LearnedPositions

EXERCISES = [exercise for a in assignments() for exercise in exercises(a.topic)]
FUNCTIONS = [exercise for exercise in EXERCISES if not exercise.is_class]


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda e: f"{e.module}.{e.name}")
def test_results_without_content_earn_nothing(exercise: Exercise):
    if all(check.why_not() for check in CHECKS[exercise].values()):
        pytest.skip(next(iter(CHECKS[exercise].values())).why_not())
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

    def never_refuses(q, X):
        return scaled_dot_attention(q[: X.shape[1]], X[:, : len(q)])

    assert 0 < earned(10, examine(exercise, never_refuses)) < 10


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: f"{e.module}.{e.name}")
def test_some_checks_demand_a_computation(exercise: Exercise):
    assert unearned(exercise) < set(CHECKS[exercise])
