"""A submission of 07_transformer with four mistakes, one of which others suffer from."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "layer_norm": (
        "(X - mean).square().mean(dim=-1, keepdim=True)",
        "X.var(dim=-1, keepdim=True)",
    ),
    "Transformer": (
        "mask = causal_mask(Y.shape[1]).to(Y.device)",
        "mask = None",
    ),
    "noam_lr": ("step * warmup**-1.5", "step * warmup**-0.5"),
    "greedy_translate": ("model.decode(Y, memory, mask)", "model.decode(Y[:, -1:], memory, mask)"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {}
