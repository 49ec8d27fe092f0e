"""A submission of linear_attention with four mistakes, from one of which others would suffer.

TokenMixer, which uses delta_rule, and HybridDecoder, which uses TokenMixer, are right with a right
one, and get their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "delta_rule": ("V[:, :, t, None] - held", "V[:, :, t, None]"),
    "discretise": ("torch.expm1(rate) / A", "torch.expm1(rate)"),
    "rwkv_time_mixing": ("torch.sigmoid(u + k - log_weight)", "torch.sigmoid(k - log_weight)"),
    "state_bytes": ("attention * 2 * D * T", "attention * D * T"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "delta_rule": 0.55,  # right where β is zero, and for keys that are orthogonal
    "discretise": round(2 * 3 / 11, 2),
    "rwkv_time_mixing": round(3 * 2 / 13, 2),
    "state_bytes": 1.25,
}
