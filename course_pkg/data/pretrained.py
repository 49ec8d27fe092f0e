"""Models that come with the course, trained: their files, and how each of them was trained.

What they can and cannot do is told in weights/README.md.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parent / "weights"


def read(model: str, names: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights and the sizes of a model.

    Args:
        model: its folder, such as "gpt" or "llama/draft".
        names: what Hugging Face's configuration calls each size, by what the course calls it.
    Returns:
        The state dict in float32, under Hugging Face's names, and the sizes under the course's.
    """
    state = load_file(FOLDER / model / "model.safetensors")
    config = json.loads((FOLDER / model / "config.json").read_text())
    sizes = {ours: config[theirs] for ours, theirs in names.items()}
    return {key: value.float() for key, value in state.items()}, sizes


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
