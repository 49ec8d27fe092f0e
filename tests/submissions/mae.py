"""A submission of mae with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "random_masking": ("restore >= n", "restore < n"),
    "MAEDecoder": ("[:, 1:]\n", "[:, :-1]\n"),
    "mae_loss": ("return error[masked].mean()", "return error.mean()"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "random_masking": round(3 * 5 / 8, 2),  # keep and restore are right
    "MAEDecoder": round(4 * 1 / 7, 2),  # in whatever order the visible patches come
    "mae_loss": round(3 * 1 / 9, 2),  # brightness and contrast change nothing
}
