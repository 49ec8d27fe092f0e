"""What is left for a page: without a bound, one notebook could take all time and memory."""

from dataclasses import dataclass

from jinja2.runtime import Context


@dataclass
class Left:
    """What the rest of a page may take.

    Args:
        seconds: of the processor's time, for its texts.
        pictures: characters of its pictures.
    """

    seconds: float = 60.0
    pictures: int = 64 << 20


def left_for(context: Context | dict) -> Left:
    """Say what is left for the page of a template; nbconvert's resources are the page's own."""
    resources = context.get("resources")
    return Left() if resources is None else resources.setdefault("course_left", Left())
