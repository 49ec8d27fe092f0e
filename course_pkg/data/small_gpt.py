"""A small GPT-2 that comes with the course: trained on the documentation of Python's packages.

How it was made, and what it can and cannot do, is told in weights/README.md.
"""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parent / "weights" / "gpt"


def read() -> tuple[dict[str, Tensor], dict[str, int]]:
    """Read the weights and the sizes of the model.

    Its tokens are those of `small_llama.merges`; `small_llama.facts` tells how it was trained.

    Example:
        >>> state, sizes = small_gpt.read()
        >>> model = GPT(**sizes)
        >>> model.load_state_dict(load_gpt2(state))

    Returns:
        The state dict in float32, under Hugging Face's names, and V, context, D, H and L of `GPT`.
    """
    state = load_file(FOLDER / "model.safetensors")
    config = json.loads((FOLDER / "config.json").read_text())
    names = {
        "V": "vocab_size",
        "context": "n_positions",
        "D": "n_embd",
        "H": "n_head",
        "L": "n_layer",
    }
    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    return {key: value.float() for key, value in state.items()}, sizes
