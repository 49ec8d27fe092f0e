"""A submission of 06_positions with three mistakes."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "linear_positions": ("max(T - 1, 1)", "T"),
    "shaw_relative_attention": ("(t - t[:, None])", "(t[:, None] - t)"),
    "rope_rotate": ("x * cos - y * sin", "x * cos + y * sin"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "linear_positions": 0,
    "shaw_relative_attention": 0,
    "rope_rotate": 0,
}
