"""A submission of speculative with six mistakes, one of which other exercises would suffer from.

QuantisedKVCache and QuantisedLinear, which use dequantise, are right with a right one, and get
their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "best_draft_length": ("max(range(most + 1)", "max(range(1, most + 1)"),
    "SpeculativeCore": ("self.scheduler.cut(number)", "pass"),
    "dequantise": (
        "scale.repeat_interleave(size // parts, dim=axis)",
        "torch.cat([scale] * (size // parts), dim=axis)",
    ),
    "pack_int4": ("if ((Q < 0) | (Q > 15)).any():", "if (Q > 15).any():"),
    "rotate": ("/ math.sqrt(D)", "/ D"),
    "LatentAttention": ("mask = causal_mask(T, past=N - T)", "mask = causal_mask(N)[:T]"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "best_draft_length": 1.0,
    "SpeculativeCore": 4.0,
    "dequantise": 1.88,
    "pack_int4": 2.25,
    "rotate": 0,
    "LatentAttention": 4.91,
}
