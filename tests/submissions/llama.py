"""A submission of llama with three mistakes, one of which another exercise would suffer from.

GatedFeedForward, which uses swiglu, is right with a right one, and gets its points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "swiglu": ("functional.silu(X @ W_gate)", "torch.sigmoid(X @ W_gate)"),
    "pairs_to_halves": ("(H, -1, 2)).mT.flatten(1)", "(1, -1, 2)).mT.flatten(1)"),
    "llama_parameters": ("0 if tied else V * D", "V * D"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "swiglu": 0,
    "pairs_to_halves": 0.67,
    "llama_parameters": 1.67,
}
