"""`python -m autograder verify ada.md --key transcript.pub`: is a page as it was signed?"""

import argparse
from pathlib import Path

from autograder.assignment import CourseError
from autograder.classroom.transcript import public_key, verified


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("transcript", type=Path, metavar="FILE")
    parser.add_argument("--key", type=Path, required=True, help="the course's public key")


def main(arguments: argparse.Namespace) -> int:
    """Print what was signed.

    Raises:
        CourseError: it was not signed with this key, or has been changed.
    """
    place = arguments.transcript
    try:
        page = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"{place} cannot be read: {error}") from None
    print(verified(page, public_key(arguments.key)))
    print("The signature fits this text and key.")
    return 0
