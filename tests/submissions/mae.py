"""A submission of 15_mae with three mistakes."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "random_masking": ("restore = order.argsort(dim=1)", "restore = order"),
    "MAEDecoder": ("[:, 1:]\n", "[:, :-1]\n"),
    "mae_loss": ("return error[masked].mean()", "return error.mean()"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {}
