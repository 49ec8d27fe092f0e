"""A submission of 01_rnn with three mistakes."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "rnn_step": ("torch.cat([h, x], dim=1)", "torch.cat([x, h], dim=1)"),
    "gradient_norms": ("1 - h**2", "1 - h"),
    "clip_grad_norm": ("max_norm / norm)", "1 / norm)"),
}
