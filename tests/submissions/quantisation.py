"""A submission of quantisation with three mistakes, from one of which other exercises would suffer.

QuantisedKVCache and QuantisedLinear, which use dequantise, are right with a right one, and get
their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "dequantise": (
        "scale.repeat_interleave(size // parts, dim=axis)",
        "torch.cat([scale] * (size // parts), dim=axis)",
    ),
    "pack_int4": ("if ((Q < 0) | (Q > 15)).any():", "if (Q > 15).any():"),
    "rotate": ("/ math.sqrt(D)", "/ D"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "dequantise": 1.88,
    "pack_int4": 2.25,
    "rotate": 0,
}
