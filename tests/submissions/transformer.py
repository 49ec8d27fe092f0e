"""A submission of transformer with four mistakes, none of which spreads to other exercises."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "Transformer": (
        "mask = causal_mask(Y.shape[1]).to(Y.device)",
        "mask = None",
    ),
    "noam_lr": ("step * warmup**-1.5", "step * warmup**-0.5"),
    "label_smoothing_loss": (
        "losses[targets != ignore].mean()",
        "(losses * (targets != ignore)).mean()",
    ),
    "greedy_translate": ("model.decode(Y, memory, mask)", "model.decode(Y[:, -1:], memory, mask)"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "Transformer": round(8 * 7 / 15, 2),  # the encoder is right, and the source's padding masked
    "noam_lr": round(2 * 1 / 4, 2),  # refuses what it should
    "label_smoothing_loss": round(4 * 1 / 8, 2),  # likewise
    "greedy_translate": round(4 * 3 / 7, 2),  # right for one word, and ends when it should
}
