"""What the site's pages are made of: facts of masters, cells of notebooks, docstrings, scores."""

import json
import re
from argparse import Namespace
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from autograder.assignment import Assignment, CourseError, assignments
from autograder.author import facts
from autograder.author.notebook import pictures
from autograder.classroom.reports.formulas import mathml
from autograder.classroom.site import command, pages
from autograder.classroom.site.extension import readable
from autograder.classroom.site.graph import arrows, drawing
from autograder.handout import start
from autograder.handout.exercise import exercises

LSTM = Assignment("02_lstm")
ROW = {"exercise": "lstm_step", "checks": 6, "bugs": 9, "caught": 9, "named": 9, "at_home": 8}
ROW |= {"mutants": 40, "killed": 39, "excused": 1, "alternatives": 3, "accepted": 3}
ROW |= {"seconds": 1.5, "why_not": None, "survivors": [], "problems": []}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Two topics, of which the second builds on the first."""
    monkeypatch.setattr("autograder.assignment.ROOT", tmp_path)
    (tmp_path / "solutions").mkdir()
    master = tmp_path / "solutions" / "02_second.md"
    master.write_text(
        "# Second\n\nYou build\nit.\n\n**Time:** four to five hours. **You need:** a step\n"
        "(Assignment [[first]]). It helps to know [[zeroth]]. Everything runs on a CPU.\n\nMore.\n"
    )
    return master


def test_facts_are_what_the_master_says(written):
    found = facts.facts(Assignment("02_second"))
    assert (found.title, found.build, found.hours) == ("Second", "You build it.", (4, 5))
    assert (found.needs, found.helps) == (("first",), ("zeroth",))


def test_a_master_without_hours_is_refused(written):
    written.write_text("# Second\n\nText.\n\n**You need:** nothing.\n\nMore.\n")
    with pytest.raises(CourseError, match=r"02_second\.md:1: the site needs a line such as"):
        facts.facts(Assignment("02_second"))


@pytest.mark.parametrize(
    "opening", ["# Second", "# Second\nYou build it.", "You build it.\n\nMore."]
)
def test_a_master_that_does_not_say_what_one_builds_is_refused(written, opening):
    written.write_text(
        f"{opening}\n\n**Time:** four to five hours. **You need:** nothing.\n\nMore.\n"
    )
    with pytest.raises(CourseError, match=r"02_second\.md:1: the site needs a heading, '# …'"):
        facts.facts(Assignment("02_second"))


def test_a_master_of_one_paragraph_is_refused(written):
    written.write_text("# Second. **Time:** four to five hours. **You need:** nothing.")
    with pytest.raises(CourseError, match=r"02_second\.md:1: the site needs a heading, '# …'"):
        facts.facts(Assignment("02_second"))


@pytest.mark.parametrize(
    ("topic", "needs", "helps"),
    [
        ("rnn", (), ()),
        ("attention", (), ("seq2seq",)),  # "…, but nothing here depends on it"
        ("paged_attention", ("attention", "gpt"), ("kv_cache",)),  # "It helps to know …"
        ("mae", ("vit", "positions"), ("bert",)),  # "BERT … helps"
    ],
)
def test_what_one_needs_is_told_from_what_helps(topic, needs, helps):
    (found,) = [facts.facts(each) for each in assignments() if each.topic == topic]
    assert (found.needs, found.helps) == (needs, helps)


def test_parts_hold_every_assignment_once_and_build_on_earlier_ones():
    members = [each for part in facts.parts() for each in part.members]
    topics = [each.assignment.topic for each in members]
    assert topics == [assignment.topic for assignment in assignments()]
    for number, each in enumerate(members):
        assert {*each.needs, *each.helps} <= set(topics[:number]), each.assignment.name


def test_the_map_leaves_out_what_follows_and_leads_to_every_page():
    parts = facts.parts()
    members = [each for part in parts for each in part.members]
    found = arrows(members)
    assert ("rnn", "lstm") in found and ("paged_attention", "serving") in found
    assert ("gpt", "serving") not in found  # paged attention builds on it
    for each in members:
        assert f"assignments/{each.assignment.name}.html" in drawing(parts)


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_pages_show_no_output_of_exercises(assignment):
    names = exercises(assignment.reference)
    open_ones, checked = set(), set()
    for cell in pages.page(assignment).cells:
        if found := re.match(rf"(def|class|check\() ?({'|'.join(names)})\b", cell.source):
            if (
                found[1] == "check(" or "NotImplementedError" in cell.source
            ):  # not an example of ours
                assert not cell.get("outputs"), cell.source
                (checked if found[1] == "check(" else open_ones).add(found[2])
        for output in cell.get("outputs", []):
            assert not re.search(rf"^✓ ({'|'.join(names)}) · ", output.get("text", ""), re.M)
    assert open_ones <= checked <= set(names) and open_ones


def test_each_picture_has_a_cell_with_its_text_and_words_follow_their_picture():
    outputs = [
        new_output("stream", name="stdout", text="loss 1"),
        new_output(
            "display_data", {"image/png": "AAAA"}, metadata={"image/png": {"alt": "It falls."}}
        ),
        new_output("display_data", {"text/html": "<b>✓</b>", "text/plain": "✓ error: 0.1"}),
        new_output("stream", name="stderr", text="warning"),
    ]
    first, second = pages._with_outputs("train()", outputs)
    assert [output.text for output in first.outputs] == ["loss 1"]
    assert second.metadata["mystnb"]["image"]["alt"] == "It falls."
    assert [output.get("text") for output in second.outputs] == [None, "✓ error: 0.1\n"]


def test_figures_are_found_by_their_titles(tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.assignment.ROOT", tmp_path)
    picture = new_output(
        "display_data", {"image/png": "AAAA"}, metadata={"image/png": {"alt": "It falls. x axis."}}
    )
    LSTM.solved.parent.mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_code_cell("x", outputs=[picture])]), LSTM.solved)
    assert pages.figure(LSTM, "It falls") == ("AAAA", "It falls. x axis.")
    with pytest.raises(CourseError, match="no figure has a title that begins 'It rises'"):
        pages.figure(LSTM, "It rises")


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_every_picture_says_what_it_shows(assignment):
    for picture in pictures(assignment):
        assert len(pages.description(picture).split()) >= 8, picture
    text = assignment.master.read_text(encoding="utf-8")
    for alt in re.findall(r"!\[([^\]]*)\]", text):
        assert len(alt.split()) >= 1, assignment.master
    for cell in nbformat.read(assignment.solved, as_version=4).cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                alt = output.metadata["image/png"].get("alt", "")
                assert len(alt.split()) >= 4, f"{assignment.solved}: {cell.id}: {alt!r}"


def test_equations_of_docstrings_keep_their_lines_and_names_their_underscores():
    lines = ["Step.", "", "h_t = a *", "  b_t", "", "See h_ and `x_`.", "", "Returns:"]
    lines += ["    keep: one", "        line.", "    rest: more."]
    assert readable(lines) == [
        "Step.",
        "",
        ".. code-block:: text",
        "",
        "   h_t = a *",
        "     b_t",
        "",
        r"See h\_ and `x_`.",
        "",
        "Returns:",
        "    keep: one line.",
        "",
        "    rest: more.",
    ]
    assert readable(["Find.", "", "Returns:", "    A path or: nothing."])[-2:] == [
        "    A",
        "    path or: nothing.",
    ]


def test_bars_of_a_norm_grow_only_where_they_are_told_to():
    plain = mathml(r"\lVert x \rVert^2", "inline")
    assert plain.count('stretchy="false">&#x02016;') == 2
    assert 'stretchy="true"' in mathml(r"\left\lVert \frac12 \right\rVert", "inline")
    assert mathml(r"\frac", "inline") is None


def test_the_scoreboard_is_a_table_or_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "SCOREBOARD", tmp_path / "scoreboard.json")
    command._write_scoreboard(tmp_path)
    assert "python -m autograder score" in (tmp_path / "graders.md").read_text()
    not_run = ROW | {"exercise": "triton_flash_forward", "why_not": "Triton is not installed"}
    command.SCOREBOARD.write_text(json.dumps([ROW, not_run]))
    command._write_scoreboard(tmp_path)
    page = (tmp_path / "graders.md").read_text()
    assert "| `lstm_step` | 6 | 9 of 9 | 9 | 39 of 40 | 1 | 3 of 3 |" in page
    assert "| `triton_flash_forward` | 6 | not run: Triton is not installed | | | | |" in page


@pytest.fixture
def make(monkeypatch):
    """Make a site in a folder, without Sphinx; only what it writes is there."""

    def sphinx(call: list[str], cwd: Path) -> int:
        Path(call[-1]).mkdir()
        Path(call[-1], ".buildinfo").touch()
        return 0

    monkeypatch.setattr(command, "write_sources", lambda folder: (folder / "new").touch())
    monkeypatch.setattr(command.subprocess, "call", sphinx)
    return lambda to: command.main(Namespace(to=to))


def test_a_site_replaces_an_older_one(make, tmp_path):
    target = tmp_path / "site"
    target.mkdir()  # an empty one
    assert make(target) == 0
    (target / "old").touch()
    (tmp_path / "site-sources" / "old").touch()
    assert make(target) == 0
    assert sorted(path.name for path in target.iterdir()) == [".buildinfo"]
    names = sorted(path.name for path in (tmp_path / "site-sources").iterdir())
    assert names == [".doctrees", "new"]


@pytest.mark.parametrize("taken", ["site", "site-sources"])
def test_a_site_replaces_nothing_else(make, tmp_path, taken):
    mine = tmp_path / taken / "mine"
    mine.parent.mkdir()
    mine.touch()
    with pytest.raises(CourseError, match=rf"/{taken} is no site .*: remove it, or name another"):
        make(tmp_path / "site")
    assert mine.exists()


def test_a_site_replaces_no_file(make, tmp_path):
    (tmp_path / "site").write_text("mine")
    with pytest.raises(CourseError, match=r"/site is no site of this command's"):
        make(tmp_path / "site")
    assert (tmp_path / "site").read_text() == "mine"


def test_a_site_removes_neither_the_course_nor_the_current_folder(make, tmp_path, monkeypatch):
    within = tmp_path / "site" / "within"
    within.mkdir(parents=True)
    (tmp_path / "site" / ".buildinfo").touch()
    monkeypatch.chdir(within)
    for folder in (Path(".."), Path("."), command.ROOT, command.ROOT.parent, Path("/")):
        with pytest.raises(CourseError, match="holds the course or the current folder"):
            make(folder)
    assert within.exists()


def test_buttons_open_a_notebook_elsewhere_once_the_course_has_an_address(monkeypatch):
    assert command._links(LSTM) == ""
    for module in (command, start):
        monkeypatch.setattr(module, "repository", lambda: "ada/course")
    found = command._links(LSTM)
    for place in (
        "https://colab.research.google.com/github/ada/course/blob/main/",
        "https://raw.githubusercontent.com/ada/course/main/",
        "https://github.com/ada/course/blob/main/",
    ):
        assert f"({place}notebooks/02_lstm/02_lstm.ipynb)" in found
    source = pages.page(LSTM, found).cells[0].source
    assert source.startswith(f"# 02 · LSTM and GRU\n\n{found}")


def test_ways_through_the_course_leave_out_nothing_that_one_builds_on(monkeypatch, tmp_path):
    assert [len(way.members) for way in facts.ways()] == [6, 10, 14]
    text = facts.PARTS.read_text(encoding="utf-8").replace('"rnn", "lstm", ', '"rnn", ')
    monkeypatch.setattr(facts, "PARTS", tmp_path / "parts.toml")
    facts.PARTS.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match="needs 'lstm'"):
        facts.ways()
