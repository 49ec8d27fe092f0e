"""A template has imported what its kernels would import, and looked up what exercises forbid."""

import subprocess
import sys

import pytest

from autograder.assignment import Assignment, assignments
from autograder.grade.kernel.warm_imports import imports

FORBIDDEN = "sklearn.linear_model"  # in an exercise of 18


@pytest.mark.parametrize("name", [assignment.name for assignment in assignments()])
def test_what_kernels_of_an_assignment_import(name):
    assignment = Assignment(name)
    found = imports(assignment)
    assert {"torch", "course_pkg", f"course_pkg.checks.{assignment.topic}"} <= {*found}
    assert not [module for module in found if module.startswith("autograder")]


def test_a_worker_without_notebooks_knows_the_module_of_checks():
    assert imports(Assignment("99_elsewhere")) == ["course_pkg.checks.elsewhere"]


def test_what_the_first_optimiser_imports_is_there_where_a_solution_makes_one():
    assert "torch._dynamo" in imports(Assignment("20_mae"))
    assert "torch._dynamo" not in imports(Assignment("02_lstm"))


def test_what_exercises_forbid_is_looked_up_before_any_kernel_starts():
    program = (
        "import sys, importlib; from course_pkg.checking.rules.enforcement import prepare\n"
        f"prepare(); print({FORBIDDEN!r} in sys.modules)\n"
        f"importlib.import_module('course_pkg.checks.mae'); print({FORBIDDEN!r} in sys.modules)\n"
        f"prepare(); print({FORBIDDEN!r} in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "False", "True"]
