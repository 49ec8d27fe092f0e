"""A small GPT-2 that comes with the course: trained on the documentation of Python's packages."""

from torch import Tensor

from course_pkg.data import pretrained


def read() -> tuple[dict[str, Tensor], dict[str, int]]:
    """Read the weights and the sizes of the model.

    Its tokens are those of `small_llama.merges`; `pretrained.facts` tells how it was trained.

    Example:
        >>> state, sizes = small_gpt.read()
        >>> model = GPT(**sizes)
        >>> model.load_state_dict(load_gpt2(state))

    Returns:
        The state dict in float32, under Hugging Face's names, and V, context, D, H and L of `GPT`.
    """
    names = {
        "V": "vocab_size",
        "context": "n_positions",
        "D": "n_embd",
        "H": "n_head",
        "L": "n_layer",
    }
    return pretrained.read("gpt", names)
