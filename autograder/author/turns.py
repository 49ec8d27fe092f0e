"""What is slow, and has not changed since it was proven, is proven again in its turn."""

import datetime
import os

from autograder.assignment import Assignment

DAYS = 4  # in which everything has its turn
EVERYTHING = "COURSE_TEST_ALL"  # set to 1, everything is proven, in turn or not


def is_due(assignment: Assignment, day: datetime.date | None = None) -> bool:
    """Tell whether an assignment has its turn on a day; today when None is given."""
    if os.environ.get(EVERYTHING, "") not in ("", "0"):
        return True
    day = day or datetime.datetime.now(datetime.UTC).date()
    return (int(assignment.name[:2]) + day.toordinal()) % DAYS == 0
