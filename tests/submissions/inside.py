"""A submission of inside with three mistakes, from one of which other exercises would suffer.

record keeps no gradient; ablate, patch_activation and path_patch use it, and get their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "record": ("{name: output}", "{name: output.detach()}"),
    "induction_score": ("diagonal(1 - period,", "diagonal(-period,"),
    "steering_vector": ("functional.normalize(drawn, dim=1) * v.norm()", "drawn"),
}

# By the weight of the checks that pass; what is not named here gets all its points.
SCORES = {
    "record": 2.62,
    "induction_score": 0.0,
    "steering_vector": 0.0,
}
