"""The GPT that comes with the course is what transformers reads, and writes down what it is."""

import torch
import transformers

from autograder.author import pretrain
from course_pkg.data import pretrained, small_gpt, small_llama
from course_pkg.gpt import GPT, load_gpt2


def model() -> GPT:
    state, sizes = small_gpt.read()
    found = GPT(**sizes)
    found.load_state_dict(load_gpt2(state))
    return found.eval()


@torch.no_grad()
def test_transformers_reads_the_same_model():
    theirs = transformers.GPT2LMHeadModel.from_pretrained(
        pretrained.FOLDER / "gpt", dtype=torch.float32
    )
    tokens = torch.randint(0, 2048, (2, 37), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model()(tokens), theirs(tokens).logits, rtol=0, atol=5e-5)


def test_what_is_published_is_read_back():
    recipe = pretrain.RECIPES["gpt"]
    fresh = pretrain.build(recipe)
    back = load_gpt2(pretrain.publish_gpt(fresh))
    assert back.keys() == fresh.state_dict().keys()
    assert all(torch.equal(back[name], value) for name, value in fresh.state_dict().items())
    known = pretrain.describe_gpt(recipe, fresh)
    assert known["n_positions"] == small_llama.CONTEXT and known["n_layer"] == recipe.L
