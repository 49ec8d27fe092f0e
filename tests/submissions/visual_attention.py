"""A submission of visual_attention with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "grid_features": ("maps.flatten(2).mT", "maps.flatten(1).view(len(maps), -1, maps.shape[1])"),
    "doubly_stochastic_penalty": (".square()", ".abs()"),
    "update_baseline": ("decay * baseline + (1 - decay) * mean", "(1 - decay) * baseline + mean"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "grid_features": round(2 * 1 / 4, 2),  # right for a single map
    "doubly_stochastic_penalty": 0,  # right where there is nothing to penalise, as zero is
    "update_baseline": round(2 * 2 / 7, 2),  # right for the first batch, and a number
}
