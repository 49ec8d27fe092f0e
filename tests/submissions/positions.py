"""A submission of positions with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "linear_positions": ("max(T - 1, 1)", "T"),
    "shaw_relative_attention": ("(t - t[:, None])", "(t[:, None] - t)"),
    "interpolate_positions": ("(t + 0.5) * T / T_new - 0.5", "t * T / T_new"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "linear_positions": round(2 * 2 / 6, 2),  # plain numbers are right
    "shaw_relative_attention": round(6 * 3 / 10, 2),  # right for k = 0 and tables of equal rows
    "interpolate_positions": round(4 * 3 / 9, 2),  # right for the same size and one position
}
