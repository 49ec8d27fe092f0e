"""Alternative texts: what a figure shows is said in words, in what notebooks store of it."""

import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest

from course_pkg import plot
from course_pkg.tools.describe import describe

IN_A_NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
import matplotlib.pyplot as plt
from course_pkg import plot

plot.style()
plot.style()
plt.switch_backend("module://matplotlib_inline.backend_inline")
ax = plot.curves({"LSTM": [1, 0.5]}, title="It remembers", xlabel="step", ylabel="loss")
data, metadata = shell.display_formatter.format(ax.figure)
print(sorted(data), metadata["image/png"]["width"], metadata["image/png"]["alt"])
print(shell.display_formatter.format(plt.figure())[1])
plot.describe = lambda figure: 1 / 0  # a picture is worth more than its text
data, metadata = shell.display_formatter.format(ax.figure)
print(sorted(data), sorted(metadata["image/png"]))
"""


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    plt.close("all")


def test_curves_say_where_each_line_begins_and_ends():
    ax = plot.curves(
        {"RNN": [1, 0.5, 1e-9], "GRU": [1, 0.2, float("nan")]},
        title="An RNN's gradient is gone",
        xlabel="distance",
        ylabel="gradient",
        yscale="log",
        limits=(1e-10, 1),
        reference=(0.25, "a quarter"),
    )
    assert describe(ax.figure) == (
        "An RNN's gradient is gone. x axis: distance, 0 to 2. "
        "y axis: gradient, 1e-10 to 1, logarithmic. "
        "RNN: from 1 to 1e-09. GRU: from 1 to 0.2. a quarter: at 0.25."
    )


def test_heat_maps_name_rows_columns_and_what_the_colours_measure():
    ax = plot.heatmap(
        np.linspace(0, 1, 6).reshape(2, 3),
        title="Who looks where",
        rows=["le", "chat"],
        columns=["the", "cat", "•"],
        xlabel="key",
        colour_label="weight",
    )
    ax.figure.canvas.draw()
    assert describe(ax.figure) == (
        "Who looks where. Heat map of 2 by 3 cells, weight 0 to 1. "
        "rows: le, chat. columns: key, the, cat."
    )


def test_bars_are_told_with_their_names_and_pictures_with_their_size():
    figure, axes = plt.subplots(2)
    axes[0].bar(["GPT", "LSTM"], [1200, 0.25])
    axes[0].set(title="Size")
    axes[1].imshow(np.zeros((4, 5, 3)))
    figure.canvas.draw()
    assert describe(figure) == (
        "Size. bars: GPT 1200, LSTM 0.25. A panel: A picture of 4 by 5 pixels."
    )


def test_cells_without_a_value_are_left_out():
    values = np.ma.masked_invalid([[1.0, np.nan], [3.0, 2.0]])
    values[1, 1] = np.ma.masked
    _, ax = plt.subplots()
    ax.imshow(values)
    assert "Heat map of 2 by 2 cells, values 1 to 3." in describe(ax.figure)
    _, ax = plt.subplots()
    ax.imshow(np.ma.masked_all((2, 2)))
    assert describe(ax.figure).endswith("Heat map of 2 by 2 cells.")


def test_many_panels_are_counted_and_not_told_one_by_one():
    figure, axes = plt.subplots(3, 4)
    for ax in axes.flat:
        ax.imshow(np.ones((2, 2)))
    figure.suptitle("What was masked")
    text = describe(figure)
    assert text.startswith("What was masked. 12 panels.") and text.count("Heat map") == 1


def test_heads_say_how_many_lines_there_are():
    axes = plot.heads(np.eye(3)[None], ["a", "b", "c"], title="Each looks at itself")
    assert describe(axes[0].figure) == "Each looks at itself. head 0. 3 lines from left to right."


def test_a_notebook_stores_the_text_beside_the_picture():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NOTEBOOK], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "['image/png', 'text/plain'] 731 It remembers. x axis: step, 0 to 1. "
        "y axis: loss, 0.47 to 1. LSTM: from 1 to 0.5.",
        "{}",
        "['image/png', 'text/plain'] ['height', 'width']",
    ]
