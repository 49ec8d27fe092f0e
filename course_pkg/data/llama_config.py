"""Read from the config.json of a published Llama how its rotations were slowed down.

A model that has read short texts is made to read longer ones by slower rotations. The slower
frequencies are no weights: a file of weights loads without them, and nothing fails.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class ScaledBase(float):
    """A base of rotations, whose powers are frequencies that are slowed down.

    It takes the place of the number: where `rope_rotate` computes ω_i = base ** (-2i / D_h), it
    gets the slower ω_i.

    Args:
        base: the number.
        scaling: what to slow down and how much, as for `slower`.
    """

    scaling: dict[str, Any]

    def __new__(cls, base: float, scaling: dict[str, Any] | None = None) -> "ScaledBase":
        made = super().__new__(cls, base)
        made.scaling = scaling or {"rope_type": "default"}
        return made

    def __pow__(self, exponent: Tensor) -> Tensor:  # type: ignore[override]
        return slower(float(self) ** exponent, self.scaling)


def slower(omega: Float[Tensor, "pairs"], scaling: dict[str, Any]) -> Float[Tensor, "pairs"]:
    """Slow the rotations of a model down, so that longer texts turn no further than its own did.

    "linear": ω / factor, which is position interpolation      (Chen et al. 2023, eq. 4).
    "llama3": pairs that turned less than low_freq_factor times in the original context get
    ω / factor, those that turned more than high_freq_factor times stay as they are, and between
    the two a mixture goes from the one to the other      (Llama 3.1; Grattafiori et al. 2024, §3.4)

    Args:
        omega: by how much each pair turns from one position to the next.
        scaling: its "rope_type" and its numbers, under the names of config.json.
    Returns:
        The slower ω.
    Raises:
        ValueError: the kind of scaling is not known here.
    """
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return omega
    if kind == "linear":
        return omega / scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * omega / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)  # how much of ω stays
        return torch.lerp(omega / scaling["factor"], omega, kept)
    raise ValueError(f"rotations scaled by {kind!r} are not known, only 'linear' and 'llama3' are")


def rope_base(config: dict[str, Any]) -> float:
    """Find the base of the rotations, for `Llama`, in what config.json says.

    Example:
        >>> config = json.loads((folder / "config.json").read_text())
        >>> model = Llama(V, D, H, G, L, F, tied, base=rope_base(config))

    Args:
        config: what the file says. The base is its "rope_theta", the scaling its "rope_scaling";
            newer files have both in "rope_parameters".
    Returns:
        The base; a `ScaledBase` if the file asks for slower rotations.
    Raises:
        ValueError: the file asks for a scaling that is not known here.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    base = float(scaling.get("rope_theta", config.get("rope_theta", 10000.0)))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return base
    slower(torch.ones(1), scaling)  # which refuses what it does not know
    return ScaledBase(base, scaling)
