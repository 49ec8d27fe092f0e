"""An engine of serving behind a door: the HTTP API that clients of language models speak."""

from course_pkg.serve.door import background

__all__ = ["background"]
