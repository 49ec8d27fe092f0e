"""A submission of speculative with three mistakes, from one of which other exercises would suffer.

accept_or_resample, which uses draw_token, and what uses it in turn are right with a right one, and
get their points.
"""

# What the right solution says, and what this one says instead.
CHANGES = {
    "draw_token": ("(reached <= u * reached[-1])", "(reached < u * reached[-1])"),
    "best_draft_length": ("max(range(most + 1)", "max(range(1, most + 1)"),
    "SpeculativeCore": ("self.scheduler.cut(number)", "pass"),
}

# By weight of the checks that pass; an exercise that is not named here gets all its points.
SCORES = {
    "draw_token": 1.33,
    "best_draft_length": 1.0,
    "SpeculativeCore": 4.0,
}
