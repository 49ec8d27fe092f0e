"""Open the gradebook that the course's nbgrader_config.py names."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import Gradebook
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import PyFileConfigLoader

from autograder.assignment import CourseError
from autograder.grade.batch.gradebook import sentence


@contextlib.contextmanager
def opened(root: Path) -> Iterator[Gradebook]:
    """Open the gradebook of a course.

    Args:
        root: the course's folder.
    Raises:
        CourseError: it cannot be used.
    """
    config = PyFileConfigLoader("nbgrader_config.py", path=str(root)).load_config()
    names = config.CourseDirectory
    try:
        with Gradebook(names.db_url, names.course_id) as gradebook:
            yield gradebook
    except SQLAlchemyError as error:
        raise CourseError(f"{names.db_url}: {sentence(error)}") from None
