"""A submission of swin with three mistakes, none of which spreads to other exercises."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "window_reverse": ("N * T != h * w", "N * T > h * w"),
    "window_attention_cost": ("2 * M**2 * h * w * D", "2 * M**4 * D"),
    "Swin": ("self.norm(self.maps(images)[-1])", "self.maps(images)[-1]"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "window_reverse": round(2 * 4 / 5, 2),  # what it should refuse fails, with another error
    "window_attention_cost": round(2 * 2 / 4, 2),  # the global count and the growth are right
    "Swin": round(5 * 8 / 10, 2),  # all maps are right
}
