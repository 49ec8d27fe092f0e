"""What cards can do by their makers' figures, and how long work takes that is bounded by these."""

from typing import NamedTuple

import torch

from course_pkg.tools.train import device


class Card(NamedTuple):
    """A card's figures.

    Attributes:
        name: as torch gives it, or a part of that.
        bandwidth: bytes per second between its memory and its processors.
        operations: per second, of matrix products in bfloat16, without sparsity.
    """

    name: str
    bandwidth: float
    operations: float


CARDS = (
    Card("H200", 4.8e12, 989e12),
    Card("H100 PCIe", 2.0e12, 756e12),
    Card("H100", 3.35e12, 989e12),
    Card("A100", 2.0e12, 312e12),
    Card("L4", 0.3e12, 121e12),
)
DEFAULT = CARDS[2]  # for which times are estimated where there is no GPU


def card() -> Card:
    """The figures of the GPU of this machine; DEFAULT where there is none or it is not known."""
    if device().type != "cuda":
        return DEFAULT
    name = torch.cuda.get_device_name()
    return next((each for each in CARDS if each.name in name), DEFAULT)


def seconds(moved: float = 0, operations: float = 0) -> float:
    """Estimate the least time for work that moves bytes and multiplies and adds in bfloat16."""
    return max(moved / card().bandwidth, operations / card().operations)


def machine() -> list[tuple[str, str]]:
    """Describe where the report was made."""
    lines = [("torch", torch.__version__)]
    if device().type == "cuda":
        properties = torch.cuda.get_device_properties()
        lines += [
            ("card", properties.name),
            ("memory", f"{properties.total_memory / 2**30:.1f} GiB"),
            ("multiprocessors", str(properties.multi_processor_count)),
        ]
    else:
        lines += [("card", f"none: times of a GPU are estimates for an {DEFAULT.name}")]
    return lines
