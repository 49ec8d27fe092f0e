"""A submission of paged_attention with two mistakes, in exercises that no other one uses."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "fragmentation": ("if hole < need else", "if hole <= need else"),
    "BlockManager": ("in enumerate(new, start=len(known))", "in enumerate(new)"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "fragmentation": 0.57,
    "BlockManager": 4.5,
}
