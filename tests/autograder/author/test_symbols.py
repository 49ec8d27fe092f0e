"""Each symbol of docs/symbols.md occurs in the assignments that the page names."""

import re
from functools import cache

import pytest

from autograder.assignment import ROOT, assignments
from autograder.author.master import Text, parts

PAGE = ROOT / "docs" / "symbols.md"
MASTERS = {assignment.name[:2]: assignment.master for assignment in assignments()}

SHAPE = r"\((?:[^\s(),]+, )*[^\s(),]+,?\)"
SPANS = re.compile(rf"\$\$.+?\$\$|\$[^$]+\$|`[^`\n]+`|{SHAPE}", re.DOTALL)
WORDS = re.compile(r"\\(?:begin|end|mathrm|operatorname|text)\*?\{[^}]*\}")


def symbols(text: str) -> set[str]:
    r"""Read the symbols in formulas, code and shapes: h and h_t in $h_{t-1}$, D_h, \gamma."""
    found = set()
    for span in SPANS.findall(text):
        bare = WORDS.sub(" ", span)
        found |= set(re.findall(r"\\[A-Za-z]+", bare))
        letters = re.sub(r"\\[A-Za-z]+", " ", bare)
        if span.startswith("$"):
            found |= set(re.findall(r"[A-Za-z]", letters))
        names = re.findall(r"(?<![A-Za-z])[A-Za-z]\w*", letters.replace("_{", "_"))
        found |= set(names)
    return found


@cache
def symbols_of(number: str) -> set[str]:
    prose = (part.source for part in parts(MASTERS[number]) if isinstance(part, Text))
    return symbols("\n".join(prose))


def numbers(where: str) -> list[str]:
    """Read "01, 03–05": ranges name all assignments between."""
    found = []
    for part in where.split(", "):
        first, _, last = part.partition("–")
        found += [f"{n:02}" for n in range(int(first), int(last or first) + 1)]
    return found


ROWS = re.findall(r"^\| ([^|]*) \| [^|]* \| ([\d–, ]+) \|$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize(("symbol", "where"), ROWS)
def test_a_symbol_occurs_in_the_assignments_that_are_named(symbol, where):
    wanted = symbols(symbol)
    assert wanted
    for number in numbers(where):
        assert wanted <= symbols_of(number), f"{symbol}: {wanted - symbols_of(number)} in {number}"


def test_each_row_is_read_and_stands_once():
    table = PAGE.read_text(encoding="utf-8").partition("|---|---|---|\n")[2].splitlines()
    assert len(table) == len(ROWS) == len(set(table)) > 100


def test_every_assignment_is_named():
    assert {number for _, where in ROWS for number in numbers(where)} == set(MASTERS)
