"""A submission of judge with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "check_softmax": ("assert_near(softmax(1e10 * E, mask), (E == largest).double())", "pass"),
    "check_causal_mask": ("range(past + T)] for t in range(T)]", "range(T)] for t in range(T)]"),
    "shrink": ("if size > 1 or len(items) == before:", "if True:"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "check_softmax": 3.5,
    "check_causal_mask": 0,
    "shrink": 3.2,
}
