"""Where a claim's value lies among those that the reference gave at ten seeds."""

import functools
import html
import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from course_pkg import checks

FOLDER = Path(checks.__path__[0]) / "data" / "trials"
WIDTH, HEIGHT, EDGE = 240, 16, 8  # of the strip, in pixels


@functools.cache
def _stored() -> dict[str, list[float]]:
    """The values of each claim over the seeds; of those that stand in one place of the course."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    most: defaultdict[str, Counter[str]] = defaultdict(Counter)  # how often in which notebook
    for path in sorted(FOLDER.glob("*.json")):
        for run in json.loads(path.read_text(encoding="utf-8")):
            times = Counter(claim["what"] for claim in run["claims"])
            for claim in run["claims"]:
                what, value = claim["what"], claim["value"]
                most[what][path.stem] = times[what]
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    values[what].append(float(value))
    return {what: found for what, found in values.items() if most[what].total() == 1}


def band(what: str) -> list[float] | None:
    """Give what a claim's value was at each seed; None if no runs are kept, or only one is."""
    found = _stored().get(what, [])
    return found if len(found) > 1 else None


def strip(band: Sequence[float], value: float, limits: Sequence[float]) -> tuple[str, str]:
    """Say and draw where a value lies: a bar for the seeds, a dot for the value, ticks for limits.

    Args:
        band: the values at the seeds.
        value: what came out now.
        limits: the bounds and controls.
    Returns:
        A line of text, and a piece of HTML.
    """
    low, high = min(band), max(band)
    first, last = f"{low:.4g}", f"{high:.4g}"
    if first == last:
        text = f"  no seed changes this: with the reference {first} at all {len(band)}"
    else:
        text = f"  at {len(band)} seeds, with the reference: {first} to {last}"
    shown = [x for x in (low, high, value, *limits) if math.isfinite(x)]
    least, span = min(shown), max(shown) - min(shown)
    if not span or not math.isfinite(value):
        return text, f"<div>{html.escape(text.strip())}</div>"

    def place(x: float) -> float:
        return round(EDGE + (WIDTH - 2 * EDGE) * (x - least) / span, 1)

    bar = max(place(high) - place(low), 2)
    ticks = "".join(
        f"<path d='M{place(x)} 2v{HEIGHT - 4}' stroke='currentColor' stroke-dasharray='2 2'/>"
        for x in sorted({x for x in limits if math.isfinite(x)})
    )
    drawn = (
        f"<svg width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{html.escape(text.strip())}' style='vertical-align: middle'>"
        f"<rect x='{place(low)}' y='4' width='{bar}' height='{HEIGHT - 8}' "
        f"fill='currentColor' opacity='0.25'/>{ticks}"
        f"<circle cx='{place(value)}' cy='{HEIGHT / 2}' r='4' fill='#0072b2'/></svg>"
    )
    return text, f"<div>{drawn} {html.escape(text.strip())}</div>"
