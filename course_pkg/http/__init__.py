"""An engine of serving, over HTTP: the API that clients of language models speak."""

from course_pkg.http.server import background

__all__ = ["background"]
