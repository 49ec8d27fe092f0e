"""What instructors have: builder, hidden checks, known bugs, scoreboard and grading."""

__all__ = ["grade"]


def __getattr__(name):
    # Deferred, so that commands that need no torch start at once.
    if name in __all__:
        from autograder import grading

        return getattr(grading, name)
    raise AttributeError(f"module 'autograder' has no attribute {name!r}")
