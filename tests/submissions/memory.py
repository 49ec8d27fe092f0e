"""A submission of memory with three mistakes, from two of which another exercise would suffer.

DRAW, which uses gaussian_filterbank and sample_latent, is right with right ones, and gets its
points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "dnc_usage": ("usage + w_write - usage * w_write", "usage + w_write"),
    "gaussian_filterbank": ("(N - 1) / 2", "N / 2"),
    "sample_latent": ("- 2 * log_sigma", "- log_sigma"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "dnc_usage": 0,  # right where nothing is written, as returning an argument is
    "gaussian_filterbank": round(3 * 2 / 10, 2),  # right far outside the image
    "sample_latent": round(3 * 5 / 10, 2),  # z is right, and KL where σ is one
}
