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
    "Transformer": round(8 * 8 / 16, 2),  # the encoder is right, and the source's padding masked
    "noam_lr": 0,  # refuses what it should, as who refuses everything does
    "label_smoothing_loss": 0,  # likewise
    "greedy_translate": round(4 * 4 / 8, 2),  # right for one word, and ends when it should
}
