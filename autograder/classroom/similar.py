"""`python -m autograder similar`: which submissions have code in common, names and order aside.

copydetect compares code by winnowing, as MOSS does (Schleimer et al. 2003): it replaces every name
by a letter, drops comments and white space, and looks for passages of K characters that two texts
share, wherever they are. A high share is a reason to look, never a proof.
"""

import argparse
import ast
import io
import itertools
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from copydetect import CodeFingerprint, compare_files
from copydetect.utils import get_token_coverage
from markupsafe import Markup, escape

from autograder.assignment import assignments, course_folder
from autograder.bounded import OutOfTime, bounded_time
from autograder.classroom.reports.templates import template
from autograder.grade.errors import GradingError
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.submission import Course, Submission
from course_pkg.checking.rules import syntax

K = 25  # characters of a passage, after names have become letters
LISTED = 0.5  # the share from which a pair is listed
LONG = 150  # characters that both must have of their own; shorter solutions look alike
COMMON = 10  # a passage that more submissions have in common says nothing, as in MOSS
SHOWN, PRINTED = 50, 10  # pairs on the page and on the terminal
LONGEST = 200_000  # characters of code that are compared; the longest solved notebook has 90 000
SECONDS = 30.0  # of the processor's time for reading a submission
OTHER = "other cells"
BORDER = "\ue000"  # stands between cells; no code has it, and nothing is compared across it

Marks = list[tuple[int, int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("assignment", metavar="NN_topic")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Compare all submissions, write the page and list the most similar pairs."""
    assignments([arguments.assignment])  # an unknown one is an error
    course = Course(course_folder(arguments.course))
    try:
        works = _works(course, arguments.assignment)
    except GradingError as error:
        print(error, file=sys.stderr)
        return 1
    found = pairs(works)
    path = course.work / f"similar_{arguments.assignment}.html"
    text = page(arguments.assignment, len(works), found[:SHOWN])
    path.write_text(text, encoding="utf-8")
    print(f"{len(works)} submissions, {len(found)} pairs with {LISTED:.0%} or more in common")
    for pair in found[:PRINTED]:
        print(f"{pair.share:5.0%}  {pair.left.student} and {pair.right.student}: {pair.where}")
    print(path)
    return 0


def page(assignment: str, count: int, pairs: list["Pair"]) -> str:
    """Make a page, which needs no other file, of the most similar pairs among `count` works."""
    found = template("similar.html.j2", marked=_marked)
    return found.render(assignment=assignment, count=count, pairs=pairs, listed=LISTED)


def _marked(text: str, marks: Marks) -> Markup:
    """Mark what is in common, line by line and without the white space around it."""
    parts, position = [], 0
    for begin, end in marks:
        parts.append(escape(text[position:begin]))
        for line in text[begin:end].splitlines(keepends=True):
            left = line[: len(line) - len(line.lstrip())]
            core, right = line.strip(), line[len(line.rstrip()) :]
            parts.append(Markup("{}<mark>{}</mark>{}").format(left, core, right) if core else line)
        position = end
    return Markup().join([*parts, text[position:]])


class Work:
    """What a student has written, cell by cell and all together.

    Args:
        student: whose it is.
        cells: the code of each exercise, and the code elsewhere.
    """

    def __init__(self, student: str, cells: dict[str, str]):
        self.student = student
        self.cells = cells
        self.prints = {name: _fingerprint(text) for name, text in cells.items()}
        self.everything = _fingerprint("".join(f"{text}\n{BORDER}\n" for text in cells.values()))
        code, places = self.everything.filtered_code, self.everything.hash_idx
        self.forget({h for h, (n, *_) in places.items() if BORDER in code[n : n + K]})

    def forget(self, given: set[int]) -> None:
        """Leave out passages that are nobody's own."""
        for fingerprint in (self.everything, *self.prints.values()):
            fingerprint.hashes -= given
            kept = {k: v for k, v in fingerprint.hash_idx.items() if k not in given}
            fingerprint.hash_idx = kept
            length = len(fingerprint.filtered_code)
            fingerprint.token_coverage = get_token_coverage(kept, K, length)


@dataclass
class Pair:
    """Two works with code in common.

    Args:
        left, right: the works.
        everything: the share of all code in common, in the work where it is larger.
        shares: the same for each exercise long enough to tell.
        marks: what is in common, by side and cell: where it begins and ends.
    """

    left: Work
    right: Work
    everything: float
    shares: dict[str, float]
    marks: tuple[dict[str, Marks], dict[str, Marks]]

    @property
    def share(self) -> float:
        return max(self.everything, *self.shares.values(), 0.0)

    @property
    def where(self) -> str:
        """Say in words how much they have in common, and where."""
        most = sorted(self.shares.items(), key=lambda item: -item[1])
        parts = [f"{share:.0%} of {name}" for name, share in most if share >= LISTED]
        return ", ".join([f"{self.everything:.0%} of all code", *parts])

    @property
    def sides(self) -> list[tuple[Work, dict[str, Marks]]]:
        return list(zip((self.left, self.right), self.marks, strict=True))

    @property
    def shown(self) -> list[str]:
        """Name the cells that have something in common; those of both works come first."""
        names = [name for name in self.left.cells if name in self.right.cells]
        names += [n for work, _ in self.sides for n in work.cells if n not in names]
        return [name for name in names if any(marks.get(name) for marks in self.marks)]


def pairs(works: list[Work]) -> list[Pair]:
    """List the pairs with much in common, the most similar first."""
    counts = Counter(itertools.chain.from_iterable(work.everything.hashes for work in works))
    common = {passage for passage, count in counts.items() if count > COMMON}
    for work in works:
        work.forget(common)
    found = [_pair(*both) for both in itertools.combinations(works, 2)]
    listed = [pair for pair in found if pair.share >= LISTED]
    return sorted(listed, key=lambda pair: (-pair.share, -pair.everything, pair.left.student))


def _pair(left: Work, right: Work) -> Pair:
    shares = {}
    for name in sorted(left.prints.keys() & right.prints.keys() - {OTHER}):
        if (found := _compare(left.prints[name], right.prints[name])[0]) is not None:
            shares[name] = found
    everything, marks = _compare(left.everything, right.everything)
    sides = tuple(_by_cell(w.cells, m) for w, m in zip((left, right), marks, strict=True))
    return Pair(left, right, everything or 0.0, shares, sides)


def _compare(left: CodeFingerprint, right: CodeFingerprint) -> tuple[float | None, np.ndarray]:
    """Give the larger share in common, None if one text is too short to tell, and the places."""
    _, shares, slices = compare_files(left, right)
    is_long = min(left.token_coverage, right.token_coverage) >= LONG
    return min(1.0, float(max(shares))) if is_long else None, slices


def _by_cell(cells: dict[str, str], slices: np.ndarray) -> dict[str, Marks]:
    """Split what is marked in all code together into what is marked in each cell."""
    found: dict[str, Marks] = {name: [] for name in cells}
    begins, ends = slices if len(slices) else ((), ())
    position = 0
    for name, text in cells.items():
        for begin, end in zip(begins, ends, strict=True):
            begin, end = max(0, int(begin) - position), min(len(text), int(end) - position)
            if begin < end:
                found[name].append((begin, end))
        position += len(f"{text}\n{BORDER}\n")
    return found


def _fingerprint(text: str) -> CodeFingerprint:
    found = CodeFingerprint("cell.py", K, 1, fp=io.StringIO(text))
    # The number of characters that filtering has dropped grows; copydetect forgets it at classes.
    found.offsets[:, 1] = np.maximum.accumulate(found.offsets[:, 1])
    return found


def _works(course: Course, assignment: str) -> list[Work]:
    """Read all submissions; what the assignment gives counts as nobody's.

    Raises:
        GradingError: there is no such assignment, or there are no two submissions of it.
    """
    plan = course.plan(assignment)
    works = []
    for folder in sorted(course.submitted.glob(f"*/{assignment}")):
        student = folder.parent.name
        notebook = folder / f"{assignment}.ipynb"
        if notebook.is_symlink() or not notebook.is_file():
            print(f"{student}: there is no {notebook.name}", file=sys.stderr)
            continue
        try:
            with bounded_time(SECONDS):
                cells = _cells(Submission(course, assignment, student), plan)
                if (length := sum(map(len, cells.values()))) > LONGEST:
                    raise OutOfTime(f"it has {length:,} characters of code")
                works.append(Work(student, cells))
        except OutOfTime as error:
            print(f"{student} is not compared, read it: {error}", file=sys.stderr)
    if len(works) < 2:
        raise GradingError(f"there are {len(works)} submissions of {assignment}: collect more")
    code = [cell.released for cell in plan.cells.values() if cell.cell_type == "code"]
    given = set().union(*(_fingerprint(_without_docstrings(text)).hashes for text in code))
    for work in works:
        work.forget(given)
    return works


def _cells(submission: Submission, plan: Plan) -> dict[str, str]:
    """Collect what a student has written: solutions by exercise, the rest together."""
    found: dict[str, str] = {}
    for step in submission.steps():
        planned = plan.cells.get(step.name)
        if planned is None and _is_prediction(step.source):
            continue  # the question is the assignment's
        if planned is None or planned.is_written_by_students:
            name = step.name if planned is not None else OTHER
            text = _without_docstrings(step.source)
            found[name] = f"{found[name]}\n{text}" if name in found else text
    return found


def _is_prediction(source: str) -> bool:
    tree = syntax.parse(source)
    match tree.body if tree else []:
        # Two texts and nothing else: code can hide in other arguments.
        case [
            ast.Expr(ast.Call(ast.Name("predict"), [ast.Constant(str()), ast.Constant(str())], []))
        ]:
            return True
    return False


def _without_docstrings(source: str) -> str:
    """Drop the lines of docstrings, which are the assignment's; other code stays as it is."""
    lines = source.splitlines()
    tree = syntax.parse(source)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, syntax.Definition) and ast.get_docstring(node) and len(node.body) > 1:
            docstring, following = node.body[:2]
            # Unless something else is on its lines.
            if node.lineno < docstring.lineno and docstring.end_lineno < following.lineno:
                for number in range(docstring.lineno - 1, docstring.end_lineno):
                    lines[number] = None
    return "\n".join(line for line in lines if line is not None)
