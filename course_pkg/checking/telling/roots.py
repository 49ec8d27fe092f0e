"""Where a mistake begins: an exercise builds on others, and these on others again."""

from collections.abc import Callable, Iterable

from course_pkg.checking.registry import Exercise


def roots(
    exercise: Exercise,
    parts: Callable[[Exercise], Iterable[Exercise]],
    fails: Callable[[Exercise], bool],
) -> list[str]:
    """Name the exercises below one, at any depth, that fail although all that they use pass.

    Args:
        exercise: where to begin; it is not tried itself.
        parts: gives the exercises that an exercise uses.
        fails: tries an exercise; none is tried above one that has failed.
    """
    names: list[str] = []
    is_broken = {exercise: False}  # it, or something below it; it stops circles too

    def below(one: Exercise) -> bool:
        for part in parts(one):
            if part not in is_broken:
                is_broken[part] = False
                deeper = below(part)
                if not deeper and fails(part):
                    names.append(part.name)
                is_broken[part] = deeper or part.name in names
        return any(is_broken[part] for part in parts(one))

    below(exercise)
    return names
