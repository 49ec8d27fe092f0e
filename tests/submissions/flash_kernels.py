"""A submission of 12_flash_kernels with two mistakes, in exercises that no other one uses."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "online_softmax": ("highest.clamp(min=torch.finfo(e.dtype).min)", "highest"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "online_softmax": 2.67,
}
