"""What a request to nbgrader's formgrader may do, and that points given there are written down.

A request may open its pages, whoever wrote the link to them.

nbgrader's own handlers load the configuration of any folder that an address names, which is code;
write names from an address into their pages as they are; and serve the files of a submission as
pages of the grader's server. Each would let a link, or the address of a picture, act as the grader.
jupyter_server_config.py makes this an extension of the grader's server.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from jupyter_server.serverapp import ServerApp
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import ErrorHandler

from autograder.grade.journal.by_hand import watch

_NAME = re.compile(r"[\w.@+ -]*")  # of a student, an assignment, a notebook, a file of nbgrader's
_MOVES = ("prev", "next", "prev_incorrect", "next_incorrect", "")


class Refused(Matcher):
    """Match the formgrader's addresses that do more than open a page.

    Args:
        base_url: where the server's addresses begin.
    """

    def __init__(self, base_url: str):
        self._place = unquote(base_url) + "formgrader"

    def match(self, request: HTTPServerRequest) -> dict | None:
        """Give a handler's arguments, of which there are none, if the request is refused."""
        path = unquote(request.path)
        if not path.startswith(self._place):
            return None
        names = path.removeprefix(self._place).split("/")
        is_file = names[1:2] == ["submissions"] and any(n not in _MOVES for n in names[3:])
        is_strange = not all(map(_NAME.fullmatch, names))
        return {} if is_file or is_strange or "path" in request.arguments else None


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: ServerApp) -> None:
    """Come before nbgrader: extensions are loaded in the order of their names.

    The server was started in the course's folder, or its configuration would not name this.
    """
    rule = Rule(Refused(app.web_app.settings["base_url"]), ErrorHandler, {"status_code": 404})
    app.web_app.add_handlers(".*$", [rule])
    watch(Path.cwd() / "autograder" / "course")
