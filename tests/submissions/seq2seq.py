"""A submission of 03_seq2seq with three mistakes."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "teacher_forcing_loss": ("Y[:, 1:].flatten(), ignore_index=PAD", "Y[:, 1:].flatten()"),
    "additive_scores": ("+ keys", "* keys"),
    "attend": ("e.masked_fill(~mask, -math.inf)", "e"),
}

SCORES = {}
