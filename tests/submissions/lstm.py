"""A submission of lstm with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "additive_cell_step": ("c = c + candidate", "c = candidate"),
    "gru_step": ("(1 - z) * n + z * h", "z * n + (1 - z) * h"),
    "init_forget_bias": ("b[H : 2 * H] = value", "b[:H] = value"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "additive_cell_step": 0,
    "gru_step": 0,
    "init_forget_bias": 0,
}
