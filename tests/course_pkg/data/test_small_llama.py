"""The models that come with the course are what their card says, and what transformers reads."""

import lzma
import re
from dataclasses import asdict

import pytest
import torch
import transformers

from autograder.author import pretrain
from course_pkg.data import docstrings, pretrained, small_llama, text
from course_pkg.gpt import BPETokenizer, bits_per_byte, language_model_loss
from course_pkg.llama import Llama, load_llama

NAMES = ("target", "draft")


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(name) -> Llama:
    state, sizes = small_llama.read(name)
    model = Llama(**sizes)
    model.load_state_dict(load_llama(state))
    return model.eval()


def test_transformers_reads_the_same_model(name, model):
    theirs = transformers.LlamaForCausalLM.from_pretrained(
        pretrained.FOLDER / "llama" / name, dtype=torch.float32
    )
    tokens = torch.randint(0, 2048, (2, 37), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # transformers computes the angles of rotations in float32
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=0, atol=5e-5)


@torch.no_grad()
def test_text_that_was_held_out_takes_fewer_bits_than_a_compressor_needs(name, model):
    tokenizer = BPETokenizer(small_llama.merges())
    pages = docstrings.pages((docstrings.STANDARD,))
    unseen = "".join(page.text for page in pages if page.held_out).encode()
    tokens = tokenizer.encode(unseen)
    assert tokenizer.decode(tokens) == unseen
    parts = text.stretches(torch.tensor(tokens), 256)[:16]
    loss = language_model_loss(model(parts), parts).item()
    compressed = 8 * len(lzma.compress(unseen)) / len(unseen)
    assert bits_per_byte(loss, len(tokens), len(unseen)) < 0.85 * compressed


@pytest.mark.parametrize("name", sorted(pretrain.RECIPES))
def test_the_card_says_what_was_measured(name):
    card = (pretrained.FOLDER / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {name} \|(.*)\|$", card, re.MULTILINE)
    known, recipe = pretrained.facts(name), pretrain.RECIPES[name]
    assert [float(cell.replace(" ", "")) for cell in row[1].split("|")] == [
        sum(p.numel() for p in pretrain.build(recipe).parameters()),
        recipe.steps * recipe.B * small_llama.CONTEXT,
        round(known["bits_per_byte"], 2),
    ]
    assert known["recipe"] == asdict(recipe)
    assert len(known["losses"]) * known["every"] == recipe.steps


@pytest.mark.parametrize("name", [*sorted(pretrain.RECIPES), "ladder"])
def test_stored_numbers_say_where_they_are_from(name):
    facts = pretrained.facts(name)
    assert "seed" in facts or len(facts["seeds"]) >= 3
    for made in (facts, *facts.get("later", {}).values()):
        assert re.fullmatch("[0-9a-f]{7,}(-dirty)?", made["commit"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", made["date"])
    assert facts["processor"] and facts["torch"]


def test_all_take_less_than_twelve_megabytes():
    files = [path for path in pretrained.FOLDER.rglob("*") if path.is_file()]
    assert 5e6 < sum(path.stat().st_size for path in files) < 12e6


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="called 'target' and 'draft', got 'gpt2'"):
        small_llama.read("gpt2")
