"""Scaled rotations agree with those of transformers, and what is not known is refused."""

import copy
import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from course_pkg.data.llama_config import ScaledBase, rope_base, slower
from course_pkg.llama import Llama, load_llama

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA_3_2 = {  # as in the config.json of Llama 3.2 1B
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHORT = {**LLAMA_3_2, "factor": 8.0, "original_max_position_embeddings": 32}


def omega(base: float, D_h: int) -> torch.Tensor:
    return base ** (-torch.arange(0, D_h, 2).double() / D_h)


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA_3_2, SHORT])
def test_frequencies_are_those_of_transformers(scaling):
    config = LlamaConfig(
        hidden_size=2048,
        num_attention_heads=32,
        max_position_embeddings=131_072,
        rope_parameters={"rope_theta": 5e5, **scaling},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
    assert factor == 1.0
    given = omega(rope_base({"rope_theta": 5e5, "rope_scaling": scaling}), 64)
    torch.testing.assert_close(given, expected.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scaling", [LINEAR, SHORT])
def test_a_scaled_llama_has_the_same_logits(scaling):
    torch.manual_seed(0)
    sizes = {"V": 31, "D": 64, "H": 4, "G": 2, "L": 2, "F": 40}
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=40,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e4, **scaling},
        attn_implementation="sdpa",
    )
    theirs = LlamaForCausalLM(config)
    for name, value in theirs.named_parameters():
        torch.nn.init.normal_(value, std=1.0 if "norm" in name else 0.2)
    ours, plain = Llama(**sizes, base=rope_base(config.to_dict())), Llama(**sizes)
    tokens = torch.randint(0, 31, (2, 200))
    with torch.no_grad():
        expected = theirs(tokens).logits
        for model in (ours, plain):
            model.load_state_dict(load_llama(theirs.state_dict()))
        torch.testing.assert_close(ours(tokens), expected, rtol=1e-3, atol=1e-3)
        assert (plain(tokens) - expected).abs().max() > 0.1  # it loads, and is wrong


def test_a_file_without_scaling_gives_a_number():
    assert type(rope_base({"rope_theta": 5e5, "rope_scaling": None})) is float
    assert rope_base({"rope_theta": 5e5}) == 5e5
    assert rope_base({}) == 10_000
    assert type(rope_base(LlamaConfig().to_dict())) is float


def test_the_older_name_of_the_kind_is_read():
    scaling = {"type": "linear", "factor": 4.0}
    assert torch.equal(
        omega(rope_base({"rope_theta": 100.0, "rope_scaling": scaling}), 8),
        omega(100.0, 8) / 4,
    )


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope", None])
def test_other_kinds_are_refused(kind):
    with pytest.raises(ValueError, match=f"rotations scaled by {kind!r} are not known"):
        slower(torch.ones(4), {"rope_type": kind, "factor": 2.0})
    if kind is not None:
        with pytest.raises(ValueError, match="only 'linear' and 'llama3' are"):
            rope_base({"rope_scaling": {"rope_type": kind, "factor": 2.0}})


def test_a_copy_of_a_scaled_base_is_scaled():
    base = copy.deepcopy(ScaledBase(1e4, LINEAR))
    assert base == 1e4
    assert torch.equal(omega(base, 8), omega(1e4, 8) / 4)
    assert math.isclose(ScaledBase(100.0) ** torch.tensor(-0.5), 0.1, rel_tol=1e-6)
