"""Texts that make patterns and parsers slow: all that reads submissions is done with them soon."""

import re
import threading
import time

import pytest
from nbformat import from_dict
from traitlets.config import PyFileConfigLoader

from autograder.assignment import ROOT, Assignment
from autograder.bounded import OutOfTime, bounded_time
from autograder.classroom import similar
from autograder.classroom.reports import diagnosis, feedback, filters
from autograder.classroom.reports.left import Left
from autograder.grade.submission import files, reading
from autograder.grade.submission.mend import mend
from autograder.grade.submission.plan import Plan
from autograder.grade.submission.reading import Submitted
from autograder.grade.submission.regrade_requests import request
from course_pkg.checking.registry import find
from course_pkg.checking.rules import syntax
from course_pkg.checking.rules.uses import breach

PLAN = Plan.read(Assignment("02_lstm").solved)
GIVEN = ["import torch\nfrom course_pkg import check\nfrom torch import nn"]
BOUND = 6.0  # seconds of the processor's time; what grows with the square takes many times as long

# One of each class of characters, and what patterns and parsers begin with.
PARTS = [*"a0_ \t\n\r\v\f\0\x1b\x85\u2028é漢😀-+*=#%!?@$^&|~\\/'\"`.,;:([{<"]
PARTS += ["\n ", "a ", "a.", "a(", "a=a\n", "%a\n", "#a\n", "# a\n", "magic( ", "def a():0\n"]
PARTS += ["class a:0\n", "import a\n", "from a import *\n", "global a\n", "a.b.c = a\n", "a = b\n"]
PARTS += ["a" + "['a']" * 150 + "\n", "a" + ".a" * 300 + "\n", "f'{", "'''", "not ", "lambda:"]
PARTS += ["<div>", "<a b='", "<!--", "![a", "[a](b", "**a ", "> ", "- ", "|a", "$a", "\\text{"]
PARTS += ["regrade request ", "✗ ", "took more than 1", 'See "a', "\x1b[1m", "&amp;", "check(a)\n"]
NESTED = [("(", ")"), ("[", "]"), ("{", "}"), ("a[", "]"), ("(a,", ")"), ("a+", ""), ("<b>", "")]


def texts(length: int) -> list[str]:
    found = [part * (length // len(part)) for part in PARTS]
    found += [f"a{text}b" for text in found[:40]]
    deep = [min(length // 2, depth) for depth in (90, 900, 5000)]
    return found + [a * depth + "a" + b * depth for a, b in NESTED for depth in deep]


def code(text: str) -> list[Submitted]:
    return [Submitted("code", text, name, None) for name in (None, "gru_step", None)]


def nodes(text: str):
    cell = {"cell_type": "markdown", "source": text, "metadata": {}}
    return from_dict({"cells": [cell]})


# How long texts are, and every how many of them is tried.
READERS = {
    "reading": (100_000, 1, lambda text: reading.read(text.encode("utf-8", "replace"))),
    "names of files": (100_000, 1, files.shown),
    "mending": (50_000, 1, lambda text: mend(code(text), PLAN)),
    "requests": (100_000, 1, lambda text: request([Submitted("markdown", text, None, None)])),
    "reports": (100_000, 1, lambda text: diagnosis.findings("gru_step", f"✗ {text}")),
    "incidents": (100_000, 1, diagnosis.incidents),
    "headings": (100_000, 1, lambda text: feedback._headings(nodes(text))),
    "names": (50_000, 2, lambda text: (syntax.names_in("a", [text]), syntax.bindings(text))),
    "rules": (20_000, 2, lambda text: breach(find("gru_step"), [text, "gru_step = a"], GIVEN)),
    "similar": (4_000, 8, lambda text: similar.pairs([similar.Work(s, {"a": text}) for s in "ab"])),
}


@pytest.mark.parametrize("name", READERS)
def test_no_text_takes_long(name):
    length, every, read = READERS[name]
    for text in texts(length)[::every]:
        try:
            with bounded_time(BOUND):
                read(text)
        except reading.Unreadable:
            pass
        except OutOfTime:
            pytest.fail(f"{name}: {text[:20]!r}, {len(text)} characters, took over {BOUND:g} s")


PAGES = {
    "spaces": ("markdown2html", "a" + " " * 16_000 + "b"),
    "elements": ("markdown2html", "<div>" * 4_000),
    "brackets": ("markdown2html", "[" * 20_000),
    "emphasis": ("markdown2html", "*a **a " * 5_000),
    "quotes": ("markdown2html", "> " * 5_000 + "a"),
    "formula": ("markdown2html", "$" + "{" * 5_000 + "}" * 5_000 + "$"),
    "output": ("clean_html", "<div>" * 4_900),
    "colours": ("ansi2html", "\x1b[1ma" * 100_000),
    "links": ("markdown2html", "[a](" * 20_000),
    "empty lines": ("highlight_code", "a" + "\n" * 300_000 + "b"),
    "stars": ("highlight_code", "*" * 100_000),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_as_it_is_what_takes_long(name, monkeypatch):
    monkeypatch.setattr(filters, "SECONDS", 1.0)
    which, text = PAGES[name]
    begin = time.process_time()
    shown = getattr(filters, which)({"resources": {}}, text)
    assert isinstance(shown, str) and time.process_time() - begin < 5.0


def test_the_pages_filters_are_ours():
    """nbconvert's are not bounded; what else its templates call is linear in a text's length."""
    config = PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config()
    bounded = {which for which, _ in PAGES.values()} | {"strip_files_prefix"}
    assert config.HTMLExporter.filters == {
        name: f"{filters.__name__}.{name}" for name in sorted(bounded)
    }
    brackets = "[a](" * 100_000
    assert filters.strip_files_prefix(brackets) == brackets


def test_a_page_has_a_bound_for_all_that_it_shows(monkeypatch):
    monkeypatch.setattr(filters, "SECONDS", 1.0)
    left = Left(seconds=1.5)
    context = {"resources": {"course_left": left}}
    slow = "a" + "\n" * 100_000 + "b"
    assert "<em>" in filters.markdown2html(context, "*a*")
    begin = time.process_time()
    for _ in range(20):
        assert filters.highlight_code(context, slow).startswith("<pre>")
    assert time.process_time() - begin < 5.0 and left.seconds <= 0
    assert filters.markdown2html(context, "*a*") == "<pre>*a*</pre>"


def test_a_bound_ends_patterns_and_what_catches_everything():
    def stubborn():
        while True:
            try:
                re.match("(a+)+$", "a" * 60 + "b")
            except Exception:
                pass

    begin = time.process_time()
    with pytest.raises(OutOfTime, match=r"more than 0\.3 s"), bounded_time(0.3):
        stubborn()
    assert time.process_time() - begin < 3.0
    with bounded_time(0.1):
        pass
    end = time.process_time() + 0.3
    while time.process_time() < end:  # no signal comes late
        pass


def test_other_threads_have_no_bound():
    found = []

    def work():
        with bounded_time(0.001):
            found.append(sum(range(10**6)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found
