"""The table of what was not tested."""

from tests.untested import table


def test_a_reason_is_said_once_with_its_remedy():
    skipped = [
        ("tests/browser/test_day.py", "Skipped: no Chromium: apt-get install chromium"),
        ("tests/browser/test_look.py", "Skipped: no Chromium: apt-get install chromium"),
        ("tests/browser/test_look.py", "Skipped: no Chromium: apt-get install chromium"),
        ("tests/gpu/test_all.py", "no GPU"),
    ]
    assert table(skipped) == [
        "    3 tests   no Chromium",
        "         in   test_day, test_look",
        "     get it   apt-get install chromium",
        "    1 test    no GPU",
        "         in   test_all",
    ]


def test_a_run_that_left_nothing_out_says_so():
    assert table([]) == ["everything: nothing was left out"]


def test_what_is_skipped_says_how_to_get_it(pytester):
    """As the suite's own conftest writes it, below all else but pytest's last line."""
    pytester.makeconftest("from tests.conftest import pytest_terminal_summary")
    pytester.makepyfile("import pytest\ndef test(): pytest.skip('no tea: make tea')")
    lines = pytester.runpytest("-p", "no:cacheprovider").outlines
    assert lines[-5:-2] == [
        "    1 test    no tea",
        "         in   test_what_is_skipped_says_how_to_get_it",
        "     get it   make tea",
    ]
    assert "not tested on this machine" in lines[-6]
