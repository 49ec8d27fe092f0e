"""A submission whose work is that of the one before keeps its time.

So a regrade request, which is one more submission, makes nobody late.
"""

import hashlib
import json
import os
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.utils import parse_utc

from autograder.grade.judging.verdict import write
from autograder.grade.submission.files import TIMESTAMP, files_of, is_notebook, walk
from autograder.grade.submission.regrade_requests import is_request
from autograder.grade.submission.submission import Submission


def keep_time(submission: Submission, nb: NotebookNode) -> str | None:
    """Give a submission the time at which its work first came.

    Args:
        submission: it has been cleaned; its time stamp may be replaced.
        nb: its mended notebook.
    Returns:
        What was done, in words; None if nothing was.
    """
    stamp = submission.folder / TIMESTAMP
    time = stamp.read_text(encoding="utf-8").strip() if stamp.exists() else ""
    if not time:
        return None
    place = _place(submission)
    now = {"work": _work(submission, nb), "time": time}
    known = _read(place)
    if known.get("work") == now["work"] and parse_utc(known["time"]) < parse_utc(time):
        write(stamp, known["time"])
        return f"the work is that of {known['time']}, which stays its time"
    if known != now:
        write(place, json.dumps(now))
    return None


def _place(submission: Submission) -> Path:
    folder = submission.course.work / "times" / submission.assignment
    return folder / f"{submission.student}.json"


def _work(submission: Submission, nb: NotebookNode) -> str:
    """Hash what is graded, the files and all cells but given ones and requests; others too.

    Another notebook is hashed as a file: a person may credit what is in it.
    """
    cells = submission.plan.cells
    own = []
    for cell in nb.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        is_graded = cells[name].is_written_by_students if name in cells else not is_request(cell)
        if is_graded:
            own.append([name, cell.source, cell.get("attachments")])
    digest = hashlib.sha256(json.dumps(own).encode())
    right = submission.folder / f"{submission.assignment}.ipynb"
    others = [path for path in walk(submission.folder) if is_notebook(path) and path != right]
    files = files_of(submission.folder) | {str(path): path for path in others}
    for name, path in sorted(files.items()):
        digest.update(os.fsencode(name) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _read(place: Path) -> dict[str, str]:
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
