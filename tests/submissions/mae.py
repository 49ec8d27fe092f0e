"""A submission of mae with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "random_masking": ("restore >= n", "restore < n"),
    "MAEDecoder": ("[:, 1:]\n", "[:, :-1]\n"),
    "mae_loss": ("return error[masked].mean()", "return error.mean()"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "random_masking": round(3 * 5 / 9, 2),  # keep and restore are right
    "MAEDecoder": 0,  # zeros, too, are the same in whatever order the visible patches come
    "mae_loss": 0,  # brightness and contrast do not change zero either
}
