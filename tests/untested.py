"""What this machine could not test, as the last lines of a run: why, and how to get it."""

from collections.abc import Iterable
from pathlib import Path

# Reasons say what is missing and, after a colon, how to get it.
BUBBLEWRAP = "apt-get install bubblewrap, on Linux"
DELEGATION = "no cgroup to divide: systemd-run --user --scope -p Delegate=yes make test"
TRITON = "Triton is not installed: make env installs it on Linux, where alone it exists"


def table(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Lay out which tests were skipped.

    Args:
        skipped: the file of each test and the reason why it was skipped.
    """
    reasons: dict[str, list[str]] = {}
    for file, reason in skipped:
        reasons.setdefault(reason.removeprefix("Skipped: "), []).append(Path(file).stem)
    if not reasons:
        return ["everything: nothing was left out"]
    lines = []
    for reason, files in sorted(reasons.items()):
        missing, _, remedy = reason.partition(": ")
        lines.append(f"{len(files):5} {'tests' if len(files) > 1 else 'test '}   {missing}")
        lines.append(f"{'in':>11}   {', '.join(sorted(set(files)))}")
        lines += [f"{'get it':>11}   {remedy}"] if remedy else []
    return lines
