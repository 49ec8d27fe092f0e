"""A submission of post_training with four mistakes, from which others would suffer.

prompt_loss and grpo_step, which use sequence_log_prob and policy_gradient_loss, are right with
right ones, and get their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "pass_at_k": ("math.comb(n - c, k) / math.comb(n, k)", "(1 - c / n) ** k"),
    "sequence_log_prob": ("logits[:, :-1]", "logits[:, 1:]"),
    "policy_gradient_loss": ("torch.minimum", "torch.maximum"),
    "distil_loss": ("temperature**2 * divergence", "divergence"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "pass_at_k": 0,
    "sequence_log_prob": 0,
    "policy_gradient_loss": 1.82,
    "distil_loss": 1.09,
}
