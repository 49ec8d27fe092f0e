"""The figures of a report, as SVG within the page."""

import io
from textwrap import fill

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from autograder.classroom.reports.results import Classroom
from autograder.classroom.reports.statistics import Statistics
from course_pkg import plot

_LETTERS = 50  # of a line of a title
_SHARES = {"all points": "#0072B2", "some": "#9CCBE8", "none": "#D55E00"}


def scores(classroom: Classroom) -> str:
    """Draw how the points are distributed."""
    values = [graded.score for graded in classroom.graded]
    median = float(np.median(values))
    plot.style()
    figure, ax = plt.subplots(figsize=(7.2, 2.6))
    ax.hist(values, bins=np.linspace(0, classroom.points, 20), edgecolor="white")
    ax.axvline(median, color="0.35", linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set(
        title=f"The median is {round(median, 2):g} of {classroom.points:g} points",
        xlabel="points",
        ylabel="submissions",
        xlim=(0, classroom.points),
    )
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.grid(axis="x", visible=False)
    return _svg(figure)


def exercises(described: list[Statistics]) -> str:
    """Draw how many submissions got all, some and no points, where no answer waits for a grader."""
    described = [s for s in described if s.mean is not None]
    if not described:
        return ""
    plot.style()
    figure, ax = plt.subplots(figsize=(7.2, 0.3 * len(described) + 1.3))
    names = [s.item.name for s in described]
    counts = np.array([(s.full, s.part, s.none) for s in described])
    shares = 100 * counts / counts.sum(axis=1, keepdims=True)
    starts = np.cumsum(shares, axis=1) - shares
    for (label, colour), width, start in zip(_SHARES.items(), shares.T, starts.T, strict=True):
        ax.barh(names, width, left=start, color=colour, height=0.7, label=label)
    ax.invert_yaxis()
    ax.set(
        title=_hardest(described),
        xlabel="% of the graded submissions",
        xlim=(0, 100),
    )
    ax.grid(visible=False)
    ax.tick_params(axis="y", length=0)
    ax.legend(loc="lower left", bbox_to_anchor=(1.01, 0), frameon=False)
    return _svg(figure)


def _hardest(described: list[Statistics]) -> str:
    """Name the hardest exercise, in lines that fit the figure; of equally hard ones, none."""
    shares = {s.item.name: f"{s.mean:.0%}" for s in sorted(described, key=lambda s: s.mean)}
    name, share = next(iter(shares.items()))
    if list(shares.values()).count(share) > 1 or len(shares) == 1:
        return "How many got all points, some and none"
    text = f"{name} is the hardest: {share} of its points on average"
    return fill(text, _LETTERS, break_long_words=False)


def _svg(figure: Figure) -> str:
    """Give the figure's element, with text as text, and the same for the same figure."""
    file = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = file.getvalue()
    return text[text.index("<svg") :]
