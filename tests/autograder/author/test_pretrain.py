"""Models are trained the same way each time, in one go or in several, and stored."""

import json

import pytest
import torch

from autograder.assignment import CourseError
from autograder.author import pretrain
from autograder.author.pretrain import Recipe, run
from course_pkg.data import docstrings, pretrained, small_llama, text
from course_pkg.data.docstrings import Page
from course_pkg.gpt import BPETokenizer
from course_pkg.llama import Llama, load_llama
from course_pkg.tools.threads import one_thread

SMALL = Recipe(D=16, L=1, H=2, G=1, steps=50, B=1)
CORPUS = torch.randint(0, pretrain.VOCABULARY, (4000,), generator=torch.Generator().manual_seed(0))


def test_fifty_steps_repeat_bit_by_bit_even_if_they_were_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "CHECKPOINT", 20)
    draw = text.batch

    def interrupted(tokens, B, T, step):
        if step == 33:
            raise KeyboardInterrupt
        return draw(tokens, B, T, step)

    with one_thread():
        whole, losses = run(SMALL, CORPUS, tmp_path / "whole.pt")
        monkeypatch.setattr(text, "batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(SMALL, CORPUS, tmp_path / "parts.pt")
        monkeypatch.setattr(text, "batch", draw)
        parts, again = run(SMALL, CORPUS, tmp_path / "parts.pt")
    assert again == losses and len(losses) == 50
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True)
    )
    assert losses[-1] < losses[0]


def test_a_run_ends_when_its_time_is_over(tmp_path):
    _, losses = run(SMALL, CORPUS, tmp_path / "none.pt", seconds=0)
    assert losses == []


def test_a_model_is_stored_with_what_is_to_be_told_of_it(tmp_path, monkeypatch):
    pages = [
        Page("one", "A word and another word.\n" * 80, False),
        Page("two", "A word.\n" * 90, True),
    ]
    monkeypatch.setattr(docstrings, "pages", lambda: pages)
    for module in (pretrain, pretrained):
        monkeypatch.setattr(module, "FOLDER", tmp_path / "weights")
    recipe = Recipe(D=16, L=1, H=2, G=1, steps=3, B=1)
    monkeypatch.setitem(pretrain.RECIPES, "draft", recipe)
    corpus = pretrain.tokens(tmp_path)
    tokenizer = BPETokenizer([(int(a), int(b)) for a, b in corpus["merges"]])
    assert tokenizer.decode(corpus["train"].tolist()).decode() == pages[0].text
    assert tokenizer.decode(corpus["test"].tolist()).decode() == pages[1].text
    assert corpus["bytes"] == 8 * 90
    monkeypatch.setattr(pretrain, "CONTEXT", 16)
    model, losses = run(recipe, corpus["train"], tmp_path / "draft.pt")
    origin = {"commit": "1234567", "date": "2026-11-28", "processor": "one"}
    monkeypatch.setattr(pretrain, "provenance", lambda: origin)
    pretrain.store("draft", model, losses, corpus)
    facts = json.loads((tmp_path / "weights" / "draft.json").read_text())
    assert origin.items() <= facts.items() and facts["seed"] == 0
    assert facts["tokens"] == 3 * 16 and len(facts["losses"]) == 3
    assert facts["parameters"] == sum(p.numel() for p in model.parameters())
    assert 0 < facts["bits_per_byte"] < 20
    state, sizes = small_llama.read("draft")
    again = Llama(**sizes)
    again.load_state_dict(load_llama(state))
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value.half().float()), name
    assert BPETokenizer(small_llama.merges()).encode(b"A word") == tokenizer.encode(b"A word")


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    recipe = Recipe(D=16, L=1, H=2, G=1, steps=1, B=2)
    run(recipe, CORPUS, tmp_path / "one.pt")
    with pytest.raises(CourseError, match="is of another recipe"):
        run(SMALL, CORPUS, tmp_path / "one.pt")


@pytest.mark.parametrize("name", sorted(pretrain.RECIPES))
def test_recipes_make_models(name):
    model = pretrain.build(pretrain.RECIPES[name])
    tokens = torch.randint(0, pretrain.VOCABULARY, (2, 5))
    assert model(tokens).shape == (2, 5, pretrain.VOCABULARY)


def test_the_lstm_has_as_many_parameters_as_the_target():
    sizes = [
        sum(p.numel() for p in pretrain.build(pretrain.RECIPES[name]).parameters())
        for name in ("target", "lstm", "draft")
    ]
    assert abs(sizes[1] / sizes[0] - 1) < 0.05
    assert sizes[2] < 0.11 * sizes[0]


def test_the_learning_rate_rises_and_falls():
    rates = [pretrain.rate(Recipe(D=8, L=1, steps=1000, lr=1.0), step) for step in range(1000)]
    assert rates[0] == 1 / pretrain.WARM_UP and max(rates) == rates[pretrain.WARM_UP]
    assert 0.09 < rates[-1] < 0.11
