"""The companion package of the course: components, checks, data, training and plots."""

__all__ = ["check", "claim", "ready"]


def __getattr__(name):
    # Deferred, so that importing one component does not import every check.
    if name in __all__:
        from course_pkg import checking

        return getattr(checking, name)
    raise AttributeError(f"module 'course_pkg' has no attribute {name!r}")
