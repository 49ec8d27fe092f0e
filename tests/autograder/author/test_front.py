"""README's pictures and the notebook that `make lab` opens are what would be made now."""

import re

import nbformat
import pytest

from autograder.assignment import ROOT, assignments
from autograder.author import build, facts, front, welcome

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_what_belongs_to_no_assignment_is_up_to_date():
    for path, content in build._of_the_course().items():
        assert path.read_bytes() == content, f"{path} is stale: run `python -m autograder build`"


def test_readme_shows_each_picture_in_both_themes_and_says_what_it_shows():
    found = sorted(front.FOLDER.iterdir())
    assert len(found) == 4
    for path in found:
        assert README.count(path.relative_to(ROOT).as_posix()) == 1
        assert path.stat().st_size < 200_000
    assert front.said(front.named_mistake()) in README


@pytest.mark.parametrize("theme", front.THEMES)
def test_the_picture_of_a_check_holds_all_that_the_check_says(theme):
    report = front.named_mistake()
    drawn = re.sub(r"<[^>]*>", "", front.check_picture(report, theme)).replace("&#x27;", "'")
    for line in front.shown(report):
        assert line.strip() in drawn.replace("&quot;", '"')


def test_the_welcome_leads_to_every_assignment_and_nowhere_else():
    nb = nbformat.read(welcome.PATH, as_version=4)
    text = "\n".join(cell.source for cell in nb.cells)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    for target in targets:
        assert (ROOT / "notebooks" / target).exists(), target
    assert {f"{each.name}/{each.name}.ipynb" for each in assignments()} <= {*targets}


def test_the_syllabus_has_every_assignment_with_its_hours_and_sections_that_exist():
    text = (ROOT / "docs" / "syllabus.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\d) [^|]*\| ([^|]*) \|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    members = [each for part in facts.parts() for each in part.members]
    assert [number for number, _, _ in rows] == [each.assignment.name[:2] for each in members]
    for each, (_, hours, left_out) in zip(members, rows, strict=True):
        assert hours == "{} to {}".format(*each.hours), each.assignment.name
        master = each.assignment.master.read_text(encoding="utf-8")
        for heading in re.findall(r"\*([^*]+)\*", left_out):
            assert re.search(rf"^#+ {re.escape(heading)}$", master, re.MULTILINE), heading
    for way in facts.ways():
        assert "{} to {}".format(*way.hours) in text, way.title
