"""Two small Llamas that come with the course: trained on the documentation of Python's packages.

How they were made, and what they can and cannot do, is told in weights/README.md.
"""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

CONTEXT = 256  # tokens that they were trained to read at once
FOLDER = Path(__file__).parent / "weights"


def read(name: str) -> tuple[dict[str, Tensor], dict[str, int | bool]]:
    """Read the weights and the sizes of one of the models.

    Example:
        >>> state, sizes = small_llama.read("draft")
        >>> model = Llama(**sizes)
        >>> model.load_state_dict(load_llama(state))

    Args:
        name: "target", of 3.8 million parameters, or "draft", of 0.4 million. Both have the same
            vocabulary.
    Returns:
        The state dict in float32, under Hugging Face's names, and V, D, H, G, L, F and tied of
        `Llama`.
    Raises:
        ValueError: there is no model of that name.
    """
    if name not in ("target", "draft"):
        raise ValueError(f"the models are called 'target' and 'draft', got {name!r}")
    state = load_file(FOLDER / "llama" / name / "model.safetensors")
    config = json.loads((FOLDER / "llama" / name / "config.json").read_text())
    names = {
        "V": "vocab_size",
        "D": "hidden_size",
        "H": "num_attention_heads",
        "G": "num_key_value_heads",
        "L": "num_hidden_layers",
        "F": "intermediate_size",
        "tied": "tie_word_embeddings",
    }
    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    return {key: value.float() for key, value in state.items()}, sizes


def merges() -> list[tuple[int, int]]:
    """Give the pairs of tokens that the models' tokenizer merges, for `BPETokenizer`."""
    return [(a, b) for a, b in json.loads((FOLDER / "merges.json").read_text())]


def facts(name: str) -> dict:
    """Tell how one of the models was trained.

    Args:
        name: "target", "draft" or "gpt"; or "lstm" or "size-1" to "size-5", which were trained for
            comparison and of which only this is kept; or "ladder", the models between GPT-2 and
            Llama of Assignment 11, of which "losses" on test text are kept, after "steps" steps,
            for each of "seeds".
    Returns:
        "parameters", how many; "tokens", how many were read, with repetitions; "bits_per_byte" on
        modules that were held out; "losses", in nats for each token, averaged over "every" steps.
        And where the numbers are from: "seed" or "seeds"; "processor"; "torch", its version; and
        "commit", which brought them into the course, with its "date".
    """
    return json.loads((FOLDER / f"{name}.json").read_text())
