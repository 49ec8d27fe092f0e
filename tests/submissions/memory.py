"""A submission of 17_memory with three mistakes."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "circular_shift": ("k - S // 2", "S // 2 - k"),
    "dnc_allocation": ("scatter(1, order, (1", "gather(1, order) + ((1"),
    "draw_write": ("/ gamma", "* gamma"),
}

SCORES = {}
