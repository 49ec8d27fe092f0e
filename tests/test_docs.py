"""README, CONTRIBUTING and docs name only what there is: files, headings, targets, commands."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from autograder.__main__ import COMMANDS
from autograder.assignment import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 120
# What a text stands for, or what is made when it is needed.
MADE = ("autograder/course", "build", "NN_topic", "topic", "22_topic")
PACKAGES = (ROOT, ROOT / "autograder", ROOT / "course_pkg")  # under which a text may name a file

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[str]:
    """The calls of our own command in a page: in code spans and in indented lines."""
    text = re.sub(r"\\\n\s*", " ", text_of(page))
    spans = [" ".join(span.split()) for span in re.findall(r"`(python -m autograder [^`]*)`", text)]
    return spans + re.findall(r"^ {4,}(python -m autograder .*)$", text, re.M)


@pages
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text_of(page)):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), anchor


@pages
def test_files_exist(page):
    for name in re.findall(r"`([a-z_]+/[\w./-]*)`", text_of(page)):
        if not any(part in name for part in MADE):
            assert any((folder / name).exists() for folder in PACKAGES), name


@pages
def test_targets_exist(page):
    targets = re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.M)
    for name in re.findall(r"(?:`|^ {4})make\s+([a-z-]+)", text_of(page), re.M):
        assert name in targets, name


@pages
def test_commands_can_be_given(page):
    for command in commands(page):
        name, *arguments = shlex.split(command.removeprefix("python -m autograder "), comments=True)
        parser = argparse.ArgumentParser(exit_on_error=False)
        importlib.import_module(f"autograder.{COMMANDS[name][0]}").add_arguments(parser)
        found = [argument for argument in arguments if argument.startswith("--")]
        known = {option for action in parser._actions for option in action.option_strings}
        assert set(found) <= known, command


def test_there_is_something_to_test():
    assert sum(len(commands(page)) for page in PAGES) >= 15


def test_readme_is_short():
    assert len(text_of(ROOT / "README.md").splitlines()) <= README_LINES


def test_every_formal_algorithm_is_something_of_ours():
    rows = re.findall(r"^\| (\d+) .*$", text_of(ROOT / "docs" / "formal_algorithms.md"), re.M)
    assert [int(number) for number in rows] == list(range(1, 16))


@pages
def test_dotted_names_can_be_imported(page):
    for name in re.findall(r"`(course_pkg(?:\.\w+)+)`", text_of(page)):
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name
