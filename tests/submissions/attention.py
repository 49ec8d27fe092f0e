"""A submission of attention with four mistakes, one of which another exercise would suffer from.

MultiHeadAttention, which uses masked_softmax, is right with a right one, and gets its points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "scaled_dot_attention": ("Q @ K.mT / math.sqrt(Q.shape[-1])", "Q @ K.mT"),
    "causal_mask": (".tril(past)", ".tril(past - 1)"),
    "masked_softmax": (
        "torch.softmax(E, dim=-1).masked_fill(~mask, 0)",
        "torch.softmax(E, dim=-1)",
    ),
    "attention_cost": ("+ 2 * T**2 * D", "+ T**2 * D"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "scaled_dot_attention": 2.5,
    "causal_mask": 0,
    "masked_softmax": 3.2,
    "attention_cost": 3,
}
