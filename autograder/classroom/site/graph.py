"""The map of the assignments as a drawing: a row for each part, and arrows to what builds on what."""

import textwrap
from html import escape

from autograder.classroom.site.facts import Facts, Part

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _LEFT = 128, 54, 150, 116, 14
_LINE = 15  # letters


def drawing(parts: list[Part]) -> str:
    """Draw the map as SVG; each box leads to the page of its assignment."""
    places = {
        each.assignment.topic: (_LEFT + _ACROSS * column, 30 + _DOWN * row)
        for row, part in enumerate(parts)
        for column, each in enumerate(part.members)
    }
    width = max(x for x, _ in places.values()) + _WIDTH + _LEFT
    height = _DOWN * len(parts)
    found = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="map-title">',
        '<title id="map-title">Which assignment builds on which: the list below says it in words'
        "</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    for row, part in enumerate(parts):
        title = escape(f"{row + 1} · {part.title}")
        found.append(f'<text x="{_LEFT}" y="{22 + _DOWN * row}" font-weight="600">{title}</text>')
    members = [each for part in parts for each in part.members]
    for before, after in arrows(members):
        found.append(_arrow(places[before], places[after]))
    found += [_box(each, *places[each.assignment.topic]) for each in members]
    return "\n".join([*found, "</svg>"])


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


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    (x, y), (to_x, to_y) = start, end
    if y == to_y and to_x - x == _ACROSS:
        line = f"M{x + _WIDTH} {y + _HEIGHT / 2} H{to_x - 2}"
    elif y == to_y:  # over the boxes between
        line = f"M{x + _WIDTH * 0.7} {y} C{x + _WIDTH} {y - 30} {to_x} {y - 30} {to_x + 30} {y - 2}"
    else:
        x, y, to_x = x + _WIDTH / 2, y + _HEIGHT, to_x + _WIDTH / 2
        line = f"M{x} {y} C{x} {y + 45} {to_x} {to_y - 50} {to_x} {to_y - 2}"
    return f'<path d="{line}" marker-end="url(#tip)"/>'


def _box(each: Facts, x: int, y: int) -> str:
    name = each.assignment.name
    lines = textwrap.wrap(f"{name[:2]} · {each.title}", _LINE, max_lines=2, placeholder=" …")
    middle = y + _HEIGHT / 2 + 5 - 9 * (len(lines) - 1)
    words = "".join(
        f'<tspan x="{x + _WIDTH / 2}" y="{middle + 18 * number}">{escape(line)}</tspan>'
        for number, line in enumerate(lines)
    )
    return (
        f'<a href="assignments/{name}.html"><rect x="{x}" y="{y}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" rx="5"/><text text-anchor="middle">{words}</text></a>'
    )
