"""What the masters say about their assignments: titles, hours, and what one needs before."""

import re
import tomllib
from dataclasses import dataclass

from autograder.assignment import ROOT, Assignment, CourseError, assignments

PARTS = ROOT / "docs" / "site" / "parts.toml"
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_OPENING = re.compile(r"# ([^\n]+)\n\n(?!\*\*Time:)(\S.*?)\n\n", re.DOTALL)
_HOURS = re.compile(r"\*\*Time:\*\*\s+(\w+)\s+to\s+(\w+)\s+hours")
_NEEDS = re.compile(r"\*\*You\s+need:\*\*(.*?)(?=\n\n)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.;])\s+")
_HELPFUL = re.compile(
    r"\bhelps?\b|\bcompare\b|nothing here depends|that you need from it is repeated"
)
_TOPIC = re.compile(r"\[\[(\w+)\]\]")


@dataclass(frozen=True)
class Facts:
    """An assignment as its master introduces it.

    Attributes:
        title: the heading.
        build: the paragraph below it: what the reader builds.
        hours: the fewest and the most that it takes.
        needs: topics that it builds on.
        helps: topics that help, but are not needed.
    """

    assignment: Assignment
    title: str
    build: str
    hours: tuple[int, int]
    needs: tuple[str, ...]
    helps: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A part of the course: its assignments, and the figure that shows best what it is about."""

    title: str
    about: str
    figure_in: str
    figure: str
    members: tuple[Facts, ...]


@dataclass(frozen=True)
class Way:
    """A way through the course: an assignment a week."""

    title: str
    members: tuple[Facts, ...]

    @property
    def hours(self) -> tuple[int, int]:
        return sum(each.hours[0] for each in self.members), sum(e.hours[1] for e in self.members)


def facts(assignment: Assignment) -> Facts:
    """Read what the master of an assignment says about it.

    Raises:
        CourseError: a master does not say what one builds, how long it takes, or what one needs.
    """
    text = assignment.master.read_text(encoding="utf-8")
    if (opening := _OPENING.match(text)) is None:
        raise CourseError(
            f"{assignment.master}:1: the site needs a heading, '# …', and below it a paragraph on "
            "what one builds"
        )
    hours, needed = _HOURS.search(text), _NEEDS.search(text)
    if hours is None or needed is None or not {*hours.groups()} <= {*_NUMBERS}:
        raise CourseError(
            f"{assignment.master}:1: the site needs a line such as '**Time:** four to five hours. "
            "**You need:** …'"
        )
    needs, helps = [], []
    for sentence in _SENTENCE.split(needed[1]):
        (helps if _HELPFUL.search(sentence) else needs).extend(_TOPIC.findall(sentence))
    return Facts(
        assignment,
        title=opening[1],
        build=" ".join(opening[2].split()),
        hours=(_NUMBERS.index(hours[1]) + 1, _NUMBERS.index(hours[2]) + 1),
        needs=tuple(dict.fromkeys(needs)),
        helps=tuple(topic for topic in dict.fromkeys(helps) if topic not in needs),
    )


def parts() -> list[Part]:
    """List the parts of the course; each begins with the topic that parts.toml names.

    Raises:
        CourseError: parts.toml names a topic that does not exist.
    """
    found = [facts(assignment) for assignment in assignments()]
    topics = [each.assignment.topic for each in found]
    written = tomllib.loads(PARTS.read_text(encoding="utf-8"))["part"]
    for part in written:
        for key in ("from", "figure_in"):
            if part[key] not in topics:
                raise CourseError(f"{PARTS}: {key} = {part[key]!r} is no topic of the course")
    starts = [topics.index(part.pop("from")) for part in written]
    return [
        Part(**part, members=tuple(found[start:end]))
        for part, start, end in zip(written, starts, [*starts[1:], None], strict=True)
    ]


def ways() -> list[Way]:
    """List the ways through the course.

    Raises:
        CourseError: parts.toml names a topic that does not exist, or leaves out what one builds on.
    """
    known = {each.assignment.topic: each for part in parts() for each in part.members}
    found = []
    for way in tomllib.loads(PARTS.read_text(encoding="utf-8"))["path"]:
        for topic in way["topics"]:
            needed = (topic, *(known[topic].needs if topic in known else ()))
            if missing := [t for t in needed if t not in known or t not in way["topics"]]:
                raise CourseError(f"{PARTS}: the path {way['title']!r} needs {missing[0]!r}")
        found.append(Way(way["title"], tuple(known[topic] for topic in way["topics"])))
    return found
