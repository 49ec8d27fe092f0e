"""Figures in words, for those who do not see them: the alternative text of each picture."""

import math
import re
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

_PANELS, _PARTS = 4, 8  # so many are described one by one


def describe(figure: Figure) -> str:
    """Say in words what a figure shows, from what is drawn in it.

    Returns:
        The titles; for each panel its axes with their ranges, where each line begins and ends, the
        height of each bar, and the size and range of each heat map.
    """
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>" and _is_drawn(ax)]
    sentences = [_text(figure.get_suptitle())]
    if len(panels) > _PANELS:
        sentences.append(f"{len(panels)} panels")
        titles = [title for ax in panels if (title := _title(ax))]
        sentences.append(_list(list(dict.fromkeys(titles))))
        sentences += _panel(panels[0], "The first one")
    else:
        for ax in panels:
            title = _title(ax)
            sentences += [title, *_panel(ax, "A panel" if len(panels) > 1 and not title else "")]
    return " ".join(s if s[-1] in ".…?" else f"{s}." for s in sentences if s)


def _is_drawn(ax: Axes) -> bool:
    return ax.get_visible() and bool(ax.lines or ax.images or ax.patches or ax.collections)


def _title(ax: Axes) -> str:
    return _text(ax.get_title(loc="left") or ax.get_title() or ax.get_title(loc="right"))


def _panel(ax: Axes, name: str) -> Iterator[str]:
    """Sentences about what is in a panel; the first begins with a name, if there is one."""
    found = [*_pictures(ax), *_lines(ax), *_bars(ax), *_others(ax)]
    if not ax.images and ax.axison:
        found = [*_axes(ax), *found]
    if name and found:
        found[0] = f"{name}: {found[0]}"
    yield from found


def _axes(ax: Axes) -> Iterator[str]:
    for name, axis, limits in (("x", ax.xaxis, ax.get_xlim()), ("y", ax.yaxis, ax.get_ylim())):
        label, scale = _text(axis.get_label_text()), axis.get_scale()
        if label:
            range_ = "" if _names(axis) else f", {_number(limits[0])} to {_number(limits[1])}"
            yield f"{name} axis: {label}{range_}{', logarithmic' if scale == 'log' else ''}"


def _pictures(ax: Axes) -> Iterator[str]:
    for image in ax.images:
        values = np.ma.asarray(image.get_array())
        rows, columns = values.shape[:2]
        if values.ndim == 3:
            yield f"A picture of {rows} by {columns} pixels"
            continue
        finite = values.compressed()
        finite = finite[np.isfinite(finite)]
        range_ = (
            f", values {_number(finite.min())} to {_number(finite.max())}" if finite.size else ""
        )
        if image.colorbar is not None and (label := _text(image.colorbar.ax.get_ylabel())):
            range_ = range_.replace("values", label)
        yield f"Heat map of {rows} by {columns} cells{range_}"
        for name, axis in (("rows", ax.yaxis), ("columns", ax.xaxis)):
            words = [_text(axis.get_label_text()), _list(_names(axis))]
            if any(words):
                yield f"{name}: {', '.join(filter(None, words))}"


def _lines(ax: Axes) -> Iterator[str]:
    lines = [line for line in ax.lines if len(line.get_ydata()) > 1]
    for line in lines[:_PARTS]:
        if words := _line(line):
            yield words
    if len(lines) > _PARTS:
        yield f"{len(lines) - _PARTS} more lines"


def _line(line: Line2D) -> str:
    values = np.asarray(line.get_ydata(orig=False), dtype=float)
    values = values[np.isfinite(values)]
    if not values.size:
        return ""
    label = line.get_label()
    name = "a line" if str(label).startswith("_") else _text(label)
    if np.ptp(values) == 0:
        return f"{name}: at {_number(values[0])}"
    return f"{name}: from {_number(values[0])} to {_number(values[-1])}"


def _bars(ax: Axes) -> Iterator[str]:
    for bars in ax.containers:
        if isinstance(bars, BarContainer):
            heights = bars.datavalues
            names = _names(ax.xaxis if bars.orientation == "vertical" else ax.yaxis)
            values = [_number(height) for height in heights]
            if len(names) == len(values):
                values = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
            label = str(bars.get_label())
            name = "bars" if label.startswith("_") else _text(label)
            yield f"{name}: {_list(values)}"


def _others(ax: Axes) -> Iterator[str]:
    kinds = (
        (PathCollection, PathCollection.get_offsets, "points"),
        (LineCollection, LineCollection.get_segments, "lines from left to right"),
    )
    for kind, parts, name in kinds:
        if count := sum(len(parts(part)) for part in ax.collections if type(part) is kind):
            yield f"{count} {name}"


def _names(axis: Axis) -> list[str]:
    """The words at an axis's ticks, if they are words and not numbers of a scale."""
    words = [_text(label.get_text()) for label in axis.get_ticklabels()]
    words = [word for word in words if any(map(str.isalnum, word))]
    return words if any(not _is_number(word) for word in words) else []


def _is_number(word: str) -> bool:
    return not re.search(r"[^\W\d_]", word.replace("\\mathdefault", ""))


def _list(words: list[str]) -> str:
    more = f" and {len(words) - _PARTS} more" if len(words) > _PARTS else ""
    return ", ".join(words[:_PARTS]) + more


def _text(words: object) -> str:
    return " ".join(str(words).replace("$", "").split())


def _number(value: float) -> str:
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if 100 <= abs(value) < 1e6 or (value == round(value) and abs(value) < 1e6):
        return str(round(value))
    return f"{value:.2g}"
