"""A submission of seq2seq with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "teacher_forcing_loss": ("Y[:, 1:].flatten(), ignore_index=PAD", "Y[:, 1:].flatten()"),
    "bleu": ("min(0, 1 - r / c)", "1 - r / c"),
    "beam_search": ("    log_p[0] = 0.0  # at", "    log_p[:] = 0.0  # at"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "teacher_forcing_loss": round(4 * 1 / 7, 2),  # right for one sentence, which has no padding
    "bleu": round(4 * 8 / 11, 2),  # right unless the translations are longer than the references
    "beam_search": round(6 * 3 / 14, 2),  # right for a width of one, and log p fits the words
}
