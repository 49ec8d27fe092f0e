"""A submission of experts with three mistakes, one of which another exercise would suffer from.

MixtureOfExperts, which uses route_top_k, is right with a right one, and gets its points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "route_top_k": ("torch.softmax(best, dim=1)", "logits.softmax(1).gather(1, experts)"),
    "load_balancing_loss": ("return E * ", "return "),
    "LoRA": ("self.scale = alpha / r", "self.scale = alpha"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "route_top_k": 0,
    "load_balancing_loss": 0,
    "LoRA": 1.87,
}
