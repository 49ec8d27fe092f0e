"""A claim shows where its value lies among those of other seeds, where such are kept."""

import json

import pytest

from course_pkg import claim
from course_pkg.checking.notebook import seeds


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keep runs; each assignment has a list of runs, each run its claims."""

    def keep(**assignments):
        for name, runs in assignments.items():
            claims = [
                {"claims": [{"what": what, "value": value} for what, value in run]} for run in runs
            ]
            (tmp_path / f"{name}.json").write_text(json.dumps(claims))
        seeds._stored.cache_clear()

    monkeypatch.setattr(seeds, "FOLDER", tmp_path)
    yield keep
    seeds._stored.cache_clear()


def test_the_values_of_other_seeds_stand_below_a_claim(kept, capsys):
    kept(one=[[("BLEU", 91.0)], [("BLEU", 95.5)], [("BLEU", 93.0)]])
    claim("BLEU", 94.0, above={"word by word": 71.4})
    assert capsys.readouterr().out.splitlines() == [
        "✓ BLEU: 94, above 71.4 (word by word)",
        "  at 3 seeds, with the reference: 91 to 95.5",
    ]


@pytest.mark.parametrize(
    "runs",
    [
        {},
        {"one": [[("BLEU", 91.0)]]},
        {"one": [[("BLEU", 91.0), ("BLEU", 2.0)], [("BLEU", 92.0), ("BLEU", 3.0)]]},
        {"one": [[("BLEU", 91.0)]] * 2, "two": [[("BLEU", 3.0)]] * 2},
        {"one": [[("BLEU", "nan")]] * 2},
        {"one": [[("BLEU", True)]] * 2},
    ],
)
def test_what_stands_in_several_places_or_has_no_numbers_is_not_shown(runs, kept, capsys):
    kept(**runs)
    claim("BLEU", 94.0, above=90)
    assert capsys.readouterr().out == "✓ BLEU: 94, above 90\n"


def test_the_strip_has_a_dot_in_the_bar_and_a_tick_outside():
    text, page = seeds.strip([2.0, 4.0], 3.0, [0.0, float("inf")])
    assert text.strip() == "at 2 seeds, with the reference: 2 to 4"
    assert "<circle cx='176.0'" in page and "<rect x='120.0'" in page
    assert "width='112.0'" in page and "<path d='M8.0 2v12'" in page and page.count("<path") == 1
    assert "<svg" not in seeds.strip([2.0, 2.0], 2.0, [2.0])[1]
    assert "<svg" not in seeds.strip([2.0, 3.0], float("nan"), [2.0])[1]


def test_values_that_no_seed_changes_do_not_read_like_a_replication():
    text, page = seeds.strip([4.03125, 4.03126], 4.0, [3.0])
    assert text.strip() == "no seed changes this: with the reference 4.031 at all 2"
    assert text.strip() in page
