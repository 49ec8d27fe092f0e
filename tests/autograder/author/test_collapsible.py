"""Hints, classic mistakes and what to expect are folded, and nothing else is."""

import pytest

from autograder.author.collapsible import hints, with_folded_expectations, with_folded_warnings

ONE = "<details><summary>The classic mistake: open it after a first attempt</summary>"
SEVERAL = "<details><summary>The classic mistakes: open them after a first attempt</summary>"


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("A table.\n\n## Gates\n\nNo warning.", "A table.\n\n## Gates\n\nNo warning."),
        (
            "A table.\n\n**The classic mistake:** x\nfirst.\n\n### After\n\nText.",
            f"A table.\n\n{ONE}\n\n**The classic mistake:** x\nfirst.\n\n</details>\n\n"
            "### After\n\nText.",
        ),
        (
            "S is 0. **The classic mistake** is to divide.",
            f"S is 0.\n\n{ONE}\n\n**The classic mistake** is to divide.\n\n</details>",
        ),
        (
            "**The classic mistakes:**\n\n- One\n  or two.\n\n- Three.\n\nAn end.",
            f"{SEVERAL}\n\n**The classic mistakes:**\n\n- One\n  or two.\n\n- Three.\n\n</details>"
            "\n\nAn end.",
        ),
    ],
    ids=["none", "a paragraph", "the rest of a paragraph", "a list"],
)
def test_a_warning_is_folded_to_its_end(text, folded):
    assert with_folded_warnings(text) == folded


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("What to expect is said below.", "What to expect is said below."),
        (
            "## Why\n\n**What to expect.** It falls\nas $0.5^d$.\n\nThen more.",
            "## Why\n\n<details><summary>What to expect</summary>\n\nIt falls\nas $0.5^d$.\n\n"
            "</details>\n\nThen more.",
        ),
        (
            "The corpus. **What to expect.** Three:\n\n- One.\n- Two.\n\n- Three.",
            "The corpus.\n\n<details><summary>What to expect</summary>\n\nThree:\n\n- One.\n"
            "- Two.\n\n- Three.\n\n</details>",
        ),
    ],
    ids=["none", "a paragraph", "the rest of a paragraph and a list"],
)
def test_what_to_expect_is_folded_to_its_end(text, folded):
    assert with_folded_expectations(text) == folded


def test_each_hint_has_the_name_that_a_check_gives_it():
    text = hints("step", ("Which sizes?", "$W x$"))
    assert text == (
        "<details><summary>Hint 1 of step</summary>\n\nWhich sizes?\n\n</details>\n\n"
        "<details><summary>Hint 2 of step</summary>\n\n$W x$\n\n</details>"
    )
