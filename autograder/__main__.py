"""`python -m autograder COMMAND`: what maintainers and teaching assistants do."""

import argparse
import importlib
import sys

from autograder.assignment import CourseError, use_this_checkout

COMMANDS = {
    "build": ("author.build", "make notebooks and fingerprints from the masters, or check them"),
    "score": ("author.score", "run bugs, mutants and alternatives through the graders"),
    "trial": ("author.trial", "run solved notebooks at ten seeds and keep which claims hold"),
    "sabotage": ("author.sabotage", "run experiments without their ideas: which claims still hold"),
    "black-box": (
        "author.black_box",
        "train with a mistake, and draw the curve that hides it",
    ),
    "new-exercise": ("author.new_exercise", "write stubs of everything that an exercise needs"),
    "new-assignment": ("author.new_assignment", "write the files of an assignment, as stubs"),
    "pretrain": ("author.pretrain", "train a language model on documentation"),
    "posttrain": ("author.posttrain", "train the target on its own answers, in several ways"),
    "release": ("classroom.release", "make the bundle of an assignment that students receive"),
    "collect-files": (
        "classroom.collect_files",
        "place submissions that came by hand: STUDENT.ipynb, STUDENT.zip",
    ),
    "grade": ("grade.batch.command", "grade submissions, in parallel and in a sandbox"),
    "regrade": ("classroom.regrade", "list regrade requests, or grade again and show the change"),
    "journal": ("classroom.journal", "show every change of a score: who, when, from, to, why"),
    "similar": ("classroom.similar", "list submissions that look alike"),
    "viva": ("classroom.viva", "ask five questions about a student's own code, with answers"),
    "challenge": (
        "classroom.challenge",
        "measure what was submitted for an open task, and rank it",
    ),
    "gradescope": ("classroom.gradescope", "make the archive with which Gradescope grades"),
    "report": ("classroom.reports.report", "show how a class did in an assignment"),
    "transcript": ("classroom.transcript", "sign a page of what a student has earned"),
    "verify": ("classroom.verify", "check a signed transcript, without the gradebook"),
    "policy": ("classroom.policy", "show who is late, what it costs and why"),
    "site": ("classroom.site.command", "make the course's site from docs and notebooks"),
    "lab": ("classroom.lab", "open JupyterLab on the course, as a student or as a TA"),
}


def main() -> int:
    """Run one command; an error that its user can mend is one clear message."""
    use_this_checkout()
    parser = argparse.ArgumentParser(prog="python -m autograder", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    made = {
        name: subparsers.add_parser(name, help=help, description=help)
        for name, (_, help) in COMMANDS.items()
    }
    name = next(iter(sys.argv[1:]), "")
    if name not in made:
        parser.parse_args()  # says which commands there are, and ends
    command = importlib.import_module(f"autograder.{COMMANDS[name][0]}")  # others take seconds
    command.add_arguments(made[name])
    # Options may stand anywhere: grade 02_lstm --force ada.
    arguments = made[name].parse_intermixed_args(sys.argv[2:])
    try:
        return command.main(arguments)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
