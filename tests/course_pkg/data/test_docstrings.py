"""Documentation is read from files, without importing them."""

import zlib

from course_pkg.data import docstrings

SOURCE = '''"""What it is for. An example:

    indented

And more.
"""

raise RuntimeError("this file must not be imported")


def measure(x, *, unit: str = "m") -> float:
    """Measure something.

    The same paragraph twice.
    """


def _hidden():
    """Nobody sees this."""


class Ruler:
    """A ruler.

    The same paragraph twice.
    """

    def extend(self, by):
        """Make it longer."""
'''
PAGE = """## rulers.wood

What it is for. An example:

    indented

And more.

## rulers.wood.measure(x, *, unit: str='m')

Measure something.

The same paragraph twice.

## rulers.wood.Ruler

A ruler.

## rulers.wood.Ruler.extend(self, by)

Make it longer.
"""


def test_a_package_is_read(tmp_path, monkeypatch):
    folder = tmp_path / "rulers"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "wood.py").write_text(SOURCE)
    (folder / "broken.py").write_text("def (")
    (folder / "tests" / "more.py").write_text('"""Tests are left out."""')
    monkeypatch.syspath_prepend(tmp_path)
    (page,) = docstrings.pages(("rulers", "not_there"))
    assert (page.module, page.text) == ("rulers.wood", PAGE)
    assert page.held_out == (zlib.crc32(b"rulers.wood") % 20 == 0)
