"""A submission of flash_kernels with four mistakes, in exercises that no other one uses."""

# What the right solution says, and what this one says instead.
CHANGES = {
    "online_softmax": ("highest.clamp(min=torch.finfo(e.dtype).min)", "highest"),
    "flash_attention_backward": ("dV[:, :, n] += A.mT", "dV[:, :, n] = A.mT"),
    "triton_flash_forward": (
        "q = tl.load(Q + places, mask=inside, other=0.0)",
        "q = tl.load(Q + places)",
    ),
    "triton_paged_decode": (" / tl.where(z == 0, 1, z)[:, None]", " / z[:, None]"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "online_softmax": round(4 * 5 / 8, 2),  # all but a row of -∞
    "flash_attention_backward": round(6 * 2 / 10, 2),  # dQ alone, where tiles are skipped
    "triton_flash_forward": 0.0,  # it reads outside in each check, and the rest is graded
    "triton_paged_decode": round(6 * 9 / 11, 2),  # all but an empty part
}
