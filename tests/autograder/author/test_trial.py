"""What the notebooks claim at other seeds is kept, with its seed, its commit and its code."""

import argparse
import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from autograder.assignment import Assignment, assignments
from autograder.author import trial
from autograder.author.execution import claims

LSTM = Assignment("02_lstm")


def runs(name: str, seeds: tuple[int, ...], code: str) -> list[trial.Run]:
    return [
        trial.Run(name, seed, claims=[{"what": "x", "holds": True, "margin": 1}], code=code)
        for seed in seeds
    ]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "_place", lambda assignment: tmp_path / "trial.json")
    return tmp_path / "trial.json"


def test_a_seed_that_is_kept_runs_again_only_for_other_code(place, monkeypatch):
    nb = nbformat.read(LSTM.solved, as_version=4)
    code = trial.code_of(nb, LSTM.topic)
    trial.keep(LSTM, [*runs(LSTM.name, (0, 2), code), *runs(LSTM.name, (1,), "of before")])
    assert [run.seed for run in trial.kept(LSTM)] == [0, 2]
    ran = []

    def run_with(assignment, seed):
        ran.append(seed)
        return runs(assignment.name, (seed,), code)[0]

    monkeypatch.setattr(trial, "run_with", run_with)
    parser = argparse.ArgumentParser()
    trial.add_arguments(parser)
    assert trial.main(parser.parse_args([LSTM.name, "--seeds", "0", "1", "3"])) == 0
    assert ran == [1, 3] and [run.seed for run in trial.kept(LSTM)] == [0, 1, 2, 3]
    trial.main(parser.parse_args([LSTM.name, "--seeds", "1", "--again"]))
    assert ran == [1, 3, 1] and [run.seed for run in trial.kept(LSTM)] == [0, 1, 2, 3]


def test_the_code_counts_and_comments_do_not():
    def code(source: str) -> str:
        cell = new_code_cell(source, metadata={"nbgrader": {"grade": False}})
        return trial.code_of(new_notebook(cells=[cell]), "lstm")

    assert code("seed = 0  # the usual") == code("seed = 0")
    assert code("seed = 0\nx = 1") != code("seed = 0\nx = 2")


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_what_is_kept_says_where_it_is_from_and_held(assignment):
    made = [claim["what"] for claim in claims(nbformat.read(assignment.solved, as_version=4))]
    for run in trial.kept(assignment):
        assert run.commit and run.date and run.processor and run.held, trial.problems(run)
        assert [claim["what"] for claim in run.claims] == made


@pytest.mark.parametrize("assignment", assignments(), ids=lambda assignment: assignment.name)
def test_no_run_of_other_code_is_kept(assignment):
    place = trial._place(assignment)
    stored = json.loads(place.read_text(encoding="utf-8")) if place.exists() else []
    assert len(stored) == len(trial.kept(assignment)), f"build {assignment.name}"


def test_no_claim_has_the_title_of_one_in_another_notebook():
    """Else what one notebook found at other seeds would hide what the other shows of its own."""
    titles = {
        assignment.name: {claim["what"] for run in trial.kept(assignment) for claim in run.claims}
        for assignment in assignments()
    }
    for name, own in titles.items():
        others = set().union(*(found for other, found in titles.items() if other != name))
        assert not own & others, f"{name} shares titles of claims: {sorted(own & others)}"


def test_runs_of_other_code_are_forgotten(place):
    nb = nbformat.read(LSTM.solved, as_version=4)
    code = trial.code_of(nb, LSTM.topic)
    trial.keep(LSTM, [*runs(LSTM.name, (0,), code), *runs(LSTM.name, (1,), "of before")])
    trial.forget_other_code(LSTM, nb)
    assert [run["seed"] for run in json.loads(place.read_text())] == [0]
    trial.keep(LSTM, runs(LSTM.name, (1,), "of before"))
    trial.forget_other_code(LSTM, nb)
    assert not place.exists()


def test_a_file_is_written_a_run_in_a_line(place):
    trial.keep(LSTM, runs(LSTM.name, (0, 1, 2), "x"))
    assert len(place.read_text().splitlines()) == 5 and len(json.loads(place.read_text())) == 3
