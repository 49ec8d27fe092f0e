"""Figures are stored small, and look as they did."""

import base64
import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

from autograder.author.figures import LEAST_VISIBLE, smaller, with_small_figures


def drawn(draw, **options) -> bytes:
    figure, axes = plt.subplots()
    draw(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, **options)
    plt.close(figure)
    return buffer.getvalue()


def colours(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=int)


def lines(axes):
    axes.plot(np.random.default_rng(0).standard_normal((50, 4)).cumsum(axis=0))
    axes.set_title("Random walks")


def colourful(axes):
    axes.imshow(np.random.default_rng(0).random((60, 60, 3)))


def test_lines_and_text_take_half_the_bytes_and_look_the_same():
    png = drawn(lines)
    small = smaller(png)
    assert len(small) < len(png) / 2 and Image.open(io.BytesIO(small)).mode == "P"
    change = np.abs(colours(small) - colours(png)).max(axis=-1)
    assert np.quantile(change, 0.999) <= LEAST_VISIBLE and change.mean() < 0.1


def test_a_picture_with_many_colours_keeps_them():
    png = drawn(colourful)
    small = smaller(png)
    assert len(small) <= len(png) and (colours(small) == colours(png)).all()


def test_what_is_small_already_or_has_holes_stays():
    small = smaller(drawn(lines))
    assert smaller(small) == small
    holes = drawn(lines, transparent=True)
    assert smaller(holes) == holes


@pytest.mark.parametrize("end", ["", "\n"])
def test_all_figures_of_a_notebook_are_stored_small(end):
    png = drawn(lines)
    figure = {"image/png": base64.b64encode(png).decode() + end, "text/plain": "<Figure>"}
    cell = new_code_cell("draw", outputs=[new_output("display_data", figure)])
    nb = new_notebook(cells=[cell, new_code_cell("1")])
    with_small_figures(nb)
    data = cell.outputs[0]["data"]
    assert base64.b64decode(data["image/png"]) == smaller(png) and data["image/png"].endswith(end)
    assert data["text/plain"] == "<Figure>"
