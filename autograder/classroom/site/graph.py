"""The map of the assignments as a drawing: a line for each, and arrows to what builds on it."""

import textwrap
from html import escape

from autograder.author.facts import Facts, Part

_WIDTH, _LINE, _LEFT = 440, 27, 128  # pixels; arrows are drawn left of the list
_SECOND = 17  # pixels between the lines of a title
_LETTERS = 32  # of a line of a title
_NEAR, _FAR = 14, 160  # how far to the left the shortest arrows aim, and the longest


def drawing(parts: list[Part]) -> str:
    """Draw the map as SVG; each title leads to the page of its assignment."""
    found, places, y = [], {}, 0
    for number, part in enumerate(parts, 1):
        y += _LINE + 6
        title = escape(f"{number} · {part.title}")
        found.append(f'<text x="{_LEFT - 4}" y="{y}" font-weight="600">{title}</text>')
        for each in part.members:
            y += _LINE
            places[each.assignment.topic] = y - 5
            lines = textwrap.wrap(each.title.partition(":")[0], _LETTERS)
            found.append(_title(each, lines, y))
            y += _SECOND * (len(lines) - 1)
    members = [each for part in parts for each in part.members]
    ends = [(places[before], places[after]) for before, after in arrows(members)]
    longest = max((end - start for start, end in ends), default=1)
    drawn = [_arrow(start, end, (end - start) / longest) for start, end in ends]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {y + 12}" role="group" aria-label="The assignments, and '
            'which builds on which; the lists below say the same">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
            *drawn,
            *found,
            "</svg>",
        ]
    )


def arrows(members: list[Facts]) -> list[tuple[str, str]]:
    """List what builds on what, without the arrows that follow from others."""
    needs = {each.assignment.topic: set(each.needs) for each in members}
    behind: dict[str, set[str]] = {}  # all that a topic builds on, however far back
    for topic, own in needs.items():
        behind[topic] = own.union(*(behind[before] for before in own))
    return [
        (before, topic)
        for topic, own in needs.items()
        for before in sorted(own)
        if not any(before in behind[other] for other in own)
    ]


def _arrow(start: int, end: int, length: float) -> str:
    x = _LEFT - 2
    far = x - _NEAR - (_FAR - _NEAR) * length
    line = f"M{x} {start + 3} C{far:.0f} {start + 3} {far:.0f} {end - 3} {x} {end - 3}"
    return f'<path d="{line}" marker-end="url(#tip)"/>'


def _title(each: Facts, lines: list[str], y: int) -> str:
    name = each.assignment.name
    first, *others = lines
    text = escape(f"{name[:2]} · {first}") + "".join(
        f'<tspan x="{_LEFT + 41}" dy="{_SECOND}">{escape(line)}</tspan>' for line in others
    )
    return (
        f'<circle cx="{_LEFT + 3}" cy="{y - 5}" r="3.5"/>'
        f'<a href="assignments/{name}.html"><text x="{_LEFT + 14}" y="{y}">{text}</text></a>'
    )
