"""Two small Llamas that come with the course: trained on the documentation of Python's packages."""

import json

from torch import Tensor

from course_pkg.data import pretrained

CONTEXT = 256  # tokens that they were trained to read at once


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
    names = {
        "V": "vocab_size",
        "D": "hidden_size",
        "H": "num_attention_heads",
        "G": "num_key_value_heads",
        "L": "num_hidden_layers",
        "F": "intermediate_size",
        "tied": "tie_word_embeddings",
    }
    return pretrained.read(f"llama/{name}", names)


def merges() -> list[tuple[int, int]]:
    """Give the pairs of tokens that the models' tokenizer merges, for `BPETokenizer`."""
    return [(a, b) for a, b in json.loads((pretrained.FOLDER / "merges.json").read_text())]
