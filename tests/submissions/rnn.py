"""A submission of rnn with three mistakes."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "gradient_norms": ("1 - h**2", "1 - h"),
    "linear_rnn_gradient": ("J = W_hh @ J", "J = W_hh * J"),
    "clip_grad_norm": ("(max_norm / norm)", "(1 / norm)"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "gradient_norms": 1.12,  # 3 of 8, of 3 points
    "linear_rnn_gradient": 0,  # what is refused alone
    "clip_grad_norm": round(3 * 1.5 / 9.5, 2),  # what is short enough, and refused
}
