"""A submission of vit with four mistakes, none of which another exercise suffers from."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "unpatchify": ("bijpqc->bcipjq", "bijqpc->bcipjq"),
    "vit_parameters": ("(D + 1) * 4 * D + (4 * D + 1) * D", "8 * D * D"),
    "resize_positions": ('mode="bicubic"', 'mode="bilinear"'),
    "attention_rollout": ("R = layer @ R", "R = R @ layer"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "unpatchify": round(3 * 3 / 8, 2),  # the grid's order, and what is refused
    "vit_parameters": round(2 * 4 / 7, 2),  # all but the layers, and so the sums
    "resize_positions": round(3 * 2 / 11, 2),  # the class token, what is refused
    "attention_rollout": round(3 * 3 / 8, 2),  # sums of rows, one layer, one token
}
