"""`python -m autograder transcript ada`: a signed page of what a student has earned.

The course's key (Ed25519) signs all that stands above the page's last line. Whoever has the page
and the course's public key checks it with `python -m autograder verify`, without the gradebook.
"""

import argparse
import base64
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from nbgrader.api import Gradebook, MissingEntry, Student

from autograder.assignment import CourseError, commit, course_folder
from autograder.classroom.gradebook import opened
from autograder.classroom.marks import mark, submission_of
from autograder.grade.late.policy import read
from autograder.grade.late.settle import settle

KEY = Path("autograder") / "course" / "transcript.key"
PUBLIC = KEY.with_suffix(".pub")
SIGNATURE = "Signature: "
TITLE = "# Transcript: sequence models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("student")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: STUDENT.md")
    parser.add_argument("--course", type=Path, default=Path.cwd(), help="default: this folder")


def main(arguments: argparse.Namespace) -> int:
    """Write and sign a student's page.

    Raises:
        CourseError: the student is unknown or has no grade, some of the work still waits for a
            person, the key cannot be used, or the file exists.
    """
    root = course_folder(arguments.course)
    policy = read(root)
    with opened(root) as gradebook:
        if policy:
            settle(gradebook, policy)
        text = page(gradebook, arguments.student)
    key = course_key(root)
    place = arguments.to or Path(f"{arguments.student}.md")
    try:
        with open(place, "x", encoding="utf-8", newline="\n") as file:
            file.write(signed(text, key))
    except FileExistsError:
        raise CourseError(f"{place} exists: remove it, or name another file with --to") from None
    except OSError as error:
        raise CourseError(f"{place} cannot be written: {error.strerror}") from None
    print(f"{place} is signed. Whoever checks it needs {PUBLIC}:")
    print((root / PUBLIC).read_text(encoding="ascii").strip())
    return 0


def page(gradebook: Gradebook, name: str) -> str:
    """Say in Markdown what a student has earned.

    Args:
        gradebook: where it stands; penalties for being late are settled.
        name: the student's id.
    Raises:
        CourseError: the student is unknown or has no grade, or a grade is not final.
    """
    try:
        student = gradebook.find_student(name)
    except MissingEntry:
        known = ", ".join(sorted(each.id for each in gradebook.students)) or "nobody"
        raise CourseError(f"the gradebook does not know {name}; it knows {known}") from None
    found = list(_rows(gradebook, student))
    if not found:
        raise CourseError(f"{name} has no graded assignment, so there is nothing to certify")
    earned, most = sum(points for _, points, _ in found), sum(of for _, _, of in found)
    rows = [f"| {what} | {points:.2f} | {of:g} |" for what, points, of in found]
    full_name = " ".join(filter(None, (student.first_name, student.last_name))) or student.id
    return "\n".join(
        [
            TITLE,
            "",
            f"Student: {_one_line(full_name)} ({_one_line(student.id)})",
            f"Issued: {datetime.now(UTC):%Y-%m-%d}",
            f"Graders: commit {commit()} of the course",
            "",
            "| assignment | points | of |",
            "|---|--:|--:|",
            *rows,
            f"| **all {len(found)}** | **{earned:.2f}** | **{most:g}** |",
            "",
        ]
    )


def signed(text: str, key: Ed25519PrivateKey) -> str:
    """Put a signature of a text below it."""
    return f"{text}\n{SIGNATURE}{base64.b64encode(key.sign(text.encode())).decode()}\n"


def verified(page: str, key: Ed25519PublicKey) -> str:
    """Return the text of a signed page.

    Args:
        page: a page that `signed` has made; ends of lines may have become CR LF on the way.
        key: the course's public key.
    Raises:
        CourseError: nothing is signed, or the text is not the one that was signed with this key.
    """
    text, mark, signature = page.replace("\r\n", "\n").rpartition(f"\n{SIGNATURE}")
    if not mark:
        raise CourseError(f'the page has no line that begins with "{SIGNATURE.strip()}"')
    try:
        key.verify(base64.b64decode(signature.strip(), validate=True), text.encode())
    except (InvalidSignature, ValueError):
        raise CourseError(
            "the signature does not fit: the page has been changed, or another key has signed it"
        ) from None
    return text


def course_key(root: Path) -> Ed25519PrivateKey:
    """Read the key of a course, or make one and keep it where only its owner can read it.

    Raises:
        CourseError: the file holds no such key, or cannot be used.
    """
    place = root / KEY
    try:
        if not place.exists():
            _make(place)
        key = serialization.load_pem_private_key(place.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise CourseError(f"{KEY} cannot be used: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise CourseError(f"{KEY} should hold an Ed25519 key, it holds another kind")
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (root / PUBLIC).write_bytes(public)
    return key


def public_key(place: Path) -> Ed25519PublicKey:
    """Read a public key.

    Raises:
        CourseError: the file holds no such key, or cannot be read.
    """
    try:
        key = serialization.load_pem_public_key(place.read_bytes())
    except (OSError, ValueError) as error:
        raise CourseError(f"{place} holds no public key: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise CourseError(f"{place} should hold an Ed25519 key, it holds another kind")
    return key


def _make(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    private = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(private)


def _rows(gradebook: Gradebook, student: Student) -> Iterator[tuple[str, float, float]]:
    """Give name, points and most points of each assignment that was graded."""
    for assignment in sorted(gradebook.assignments, key=lambda each: each.name):
        found = submission_of(gradebook, assignment, student)
        if found is None:
            continue
        if found.needs_manual_grade:
            raise CourseError(
                f"{assignment.name} of {student.id} still waits for a person: grade it first"
            )
        yield assignment.name, mark(found), assignment.max_score


def _one_line(text: str) -> str:
    """Keep a name from being a line of its own, or a column."""
    return " ".join(text.split()).replace("|", "\\|")
