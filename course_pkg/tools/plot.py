"""The course's figures: one style sheet, curves with direct labels, heat maps, where heads look."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from course_pkg.tools.describe import describe

_FAINTEST = 0.05  # the smallest weight for which a line is drawn
_LABEL_GAP = 0.075  # the smallest gap between two direct labels, as a share of the axes' height
_SMALLEST = 6.5  # points; tokens that need a smaller font than this are thinned out


def style() -> None:
    """Apply the course's style sheet; in a notebook, draw finely, and with alternative texts."""
    plt.style.use(Path(__file__).with_name("course.mplstyle"))
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")
        _add_alternative_texts(sys.modules["IPython"].get_ipython())


def _add_alternative_texts(shell) -> None:
    """Let every picture of a figure say in words what it shows, where notebooks look for that."""
    formatter = shell.display_formatter.formatters["image/png"]
    draw = formatter.lookup_by_type(Figure)

    def draw_and_describe(figure: Figure):
        drawn = draw(figure)
        if drawn is None:  # nothing is in it
            return None
        picture, metadata = drawn
        try:
            text = describe(figure)
        except Exception:  # a student's figure may hold anything, and is worth more than its text
            text = ""
        return picture, {**metadata, "alt": text} if text else metadata

    formatter.for_type(Figure, draw_and_describe)


def curves(
    lines: dict[str, ArrayLike],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    x: ArrayLike | None = None,
    bands: dict[str, tuple[ArrayLike, ArrayLike]] | None = None,
    xscale: str = "linear",
    yscale: str = "linear",
    reference: tuple[float, str] | None = None,
    limits: tuple[float, float] | None = None,
    smooth: int = 1,
    ax: Axes | None = None,
) -> Axes:
    """Draw one line per name, with the name at the line's end in place of a legend.

    Args:
        lines: the values of each line, by its name.
        title: what the figure shows, as a sentence: the answer, not the question.
        xlabel, ylabel: the axes' labels, with units.
        x: where the values are, the same for every line; 0, 1, 2 … when None.
        bands: a lower and an upper limit around some of the lines, by the line's name.
        xscale, yscale: "linear" or "log".
        reference: the height and the label of a horizontal dashed line, a baseline for example.
        limits: the values at the two ends of the y axis; chosen to fit all lines when None.
        smooth: how many values to average, each with those before it; for losses.
        ax: where to draw; a figure of its own when None.
    Returns:
        The axes, to add to them.
    Raises:
        ValueError: there is no line, lines, bands and x differ in length, a band has no line,
            or smooth is less than 1.
    """
    if not lines:
        raise ValueError("curves needs at least one line")
    if smooth < 1:
        raise ValueError(f"smooth must be at least 1, got {smooth}")
    if unknown := sorted(set(bands or {}) - set(lines)):
        raise ValueError(f"bands for lines that are not drawn: {unknown}")
    ax = plt.subplots()[1] if ax is None else ax
    ends = []
    for name, values in lines.items():
        values = _average(_vector(name, values), smooth)
        where = np.arange(len(values)) if x is None else _vector("x", x)
        if len(where) != len(values):
            raise ValueError(f"{name} has {len(values)} values, but x has {len(where)}")
        (line,) = ax.plot(where, values, label=name)
        if bands and name in bands:
            low, high = (_vector(f"the band of {name}", limit) for limit in bands[name])
            if not len(low) == len(high) == len(values):
                raise ValueError(f"{name} and its band differ in length")
            ax.fill_between(where, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
        drawn = np.isfinite(values) & ((values > 0) | (yscale == "linear"))
        if drawn.any():
            ends.append((values[drawn][-1], name, line.get_color()))
    if reference is not None:
        height, label = reference
        dashes = {"color": "0.45", "linewidth": 1.2, "linestyle": (0, (4, 3)), "zorder": 1}
        ax.axhline(height, label=label, **dashes)
        ends.append((height, label, "0.35"))
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale=yscale)
    ax.margins(x=0)
    if limits is not None:
        ax.set_ylim(limits)
    _label(ax, ends)
    return ax


def heatmap(
    values: ArrayLike,
    *,
    title: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    xlabel: str = "",
    ylabel: str = "",
    colour_label: str = "",
    limits: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a matrix as square coloured cells, with tokens as ticks and a colour bar.

    Args:
        values: the matrix; its first row is drawn on top.
        title: what the figure shows, as a sentence.
        rows, columns: the token of each row and column; numbers from 0 when None.
        xlabel, ylabel: the axes' labels.
        colour_label: what the colours measure, with its unit.
        limits: the values at the two ends of the colour bar; those of the matrix when None.
        ax: where to draw; a figure of its own when None.
    Returns:
        The axes, to add to them.
    Raises:
        ValueError: values is not a matrix, or the tokens do not fit its shape.
    """
    matrix = _array(values)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"a heat map needs a matrix, got shape {matrix.shape}")
    for tokens, size in zip((rows, columns), matrix.shape, strict=True):
        if tokens is not None and len(tokens) != size:
            raise ValueError(f"got {len(tokens)} tokens for {size} rows or columns")
    if ax is None:
        height = min(max(7.2 * len(matrix) / len(matrix.T), 1.2), 7.2) + 1.1
        ax = plt.subplots(figsize=(7.2, height))[1]
    low, high = limits if limits is not None else (None, None)
    image = ax.imshow(matrix, vmin=low, vmax=high, aspect="equal")
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    cell = 72 * min(ax.get_figure().get_size_inches() / matrix.T.shape) * 0.75
    step = math.ceil(_SMALLEST / cell)
    size = min(max(cell, _SMALLEST), plt.rcParams["font.size"])
    if rows is not None:
        ax.set_yticks(range(0, len(rows), step), rows[::step], size=size)
    if columns is not None:
        turn = 90 if max(map(len, columns)) > 2 else 0
        ax.set_xticks(range(0, len(columns), step), columns[::step], size=size, rotation=turn)
    bar = ax.figure.colorbar(image, cax=ax.inset_axes([1.02, 0, 0.02, 1]), label=colour_label)
    bar.outline.set_visible(False)
    return ax


def heads(
    weights: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    title: str,
    names: Sequence[str] | None = None,
) -> list[Axes]:
    """Draw where each head looks: one panel per head, lines from queries, left, to keys, right.

    Args:
        weights: the attention's weights, (H, N_Q, N_X); the larger one is, the darker its line,
            and those below 0.05 have none.
        rows: the queries' tokens.
        columns: the keys' tokens; the queries' when None.
        title: what the figure shows, as a sentence.
        names: what stands above each panel; "head 0", "head 1" … when None.
    Returns:
        The axes of every panel.
    Raises:
        ValueError: weights does not have three axes, or tokens or names do not fit its shape.
    """
    weights = _array(weights)
    columns = rows if columns is None else columns
    names = [f"head {head}" for head in range(len(weights))] if names is None else names
    if weights.shape != (len(names), len(rows), len(columns)):
        raise ValueError(
            f"weights of shape {weights.shape} do not fit {len(names)} heads, {len(rows)} queries "
            f"and {len(columns)} keys"
        )
    longest = max(len(rows), len(columns))
    figure, axes = plt.subplots(
        1, len(names), figsize=(7.2, 0.19 * longest + 0.9), squeeze=False, layout="none"
    )
    figure.subplots_adjust(left=0.09, right=0.91, bottom=0.02, top=1 - 0.7 / (0.19 * longest + 0.9))
    figure.subplots_adjust(wspace=1.5)
    figure.suptitle(title, x=0.01, y=0.985, ha="left", va="top", size=12.5, weight="bold")
    blue = plt.rcParams["axes.prop_cycle"].by_key()["color"][0]
    for ax, name, matrix in zip(axes[0], names, weights, strict=True):
        places = np.argwhere(matrix >= _FAINTEST)
        places = places[np.argsort(matrix[tuple(places.T)])]  # the darkest lie on top
        lines = [[(0, query), (1, key)] for query, key in places]
        shades = np.ceil(np.clip(matrix[tuple(places.T)], 0, 1) * 8) / 8  # few: small pictures
        colours = 1 - shades[:, None] * (1 - np.array(to_rgb(blue)))
        ax.add_collection(LineCollection(lines, colors=colours, linewidths=1.2, antialiaseds=False))
        ax.set(xlim=(0, 1), ylim=(longest - 0.5, -0.5), xticks=[], yticks=[])
        ax.set_title(name, size=10, weight="normal", loc="center", pad=4)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        for x, tokens, side in ((-0.04, rows, "right"), (1.04, columns, "left")):
            for place, token in enumerate(tokens):
                ax.text(x, place, token, ha=side, va="center", size=7.5, parse_math=False)
    return list(axes[0])


def _array(values: ArrayLike) -> np.ndarray:
    if hasattr(values, "detach"):  # a tensor, perhaps on a GPU or with a gradient
        values = values.detach().cpu()
    return np.asarray(values, dtype=float)


def _vector(name: str, values: ArrayLike) -> np.ndarray:
    vector = _array(values)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"{name} must be a list of numbers, got shape {vector.shape}")
    return vector


def _average(values: np.ndarray, window: int) -> np.ndarray:
    starts = np.maximum(np.arange(len(values)) + 1 - window, 0)
    return np.array([values[start : end + 1].mean() for end, start in enumerate(starts)])


def _label(ax: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write names to the right of the axes, at the lines' ends but never on each other."""
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = sorted((to_axes.transform((ax.get_xlim()[1], y))[1], name, c) for y, name, c in ends)
    # Labels keep their distance when these shifted heights do not decrease: pool those that do.
    shift = _LABEL_GAP * np.arange(len(ends))
    pools = []
    for height in np.array([height for height, _, _ in ends]) - shift:
        pools.append([height])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    pooled = np.array([np.mean(pool) for pool in pools for _ in pool])
    heights = np.clip(pooled, 0, max(0, 0.96 - shift[-1])) + shift if ends else []
    for height, (_, name, colour) in zip(heights, ends, strict=True):
        ax.annotate(
            name,
            (1.015, height),
            xycoords="axes fraction",
            color=colour,
            va="center",
            annotation_clip=False,
        )
