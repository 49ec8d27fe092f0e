"""A submission of serving with two mistakes, in exercises that no other one uses."""

# What stands in the right solution, and what stands there instead.
CHANGES = {
    "Engine": ("sequence.taken += len(new)", "sequence.taken += 0"),
    "SwappingScheduler": ("self.swaps += len(members)", "self.swaps += 1"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "Engine": round(4 * 9 / 20, 2),
    "SwappingScheduler": round(4 * 8 / 14, 2),
}
