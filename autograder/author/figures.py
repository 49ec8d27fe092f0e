"""Make the figures of a notebook small: 256 colours are enough for most of them."""

import base64
import io

import numpy as np
from nbformat import NotebookNode
from PIL import Image

COLOURS = 256
# By how much of 255 a colour may change, in all but a thousandth of the pixels. Lines and text
# change by 1 to 8; a photograph or a wide colour map by 15 to 100, and keeps its own colours.
LEAST_VISIBLE = 10


def with_small_figures(nb: NotebookNode) -> None:
    """Store the figures of an executed notebook, in place, in fewer bytes."""
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                small = base64.b64encode(smaller(base64.b64decode(png)))
                output["data"]["image/png"] = small.decode() + ("\n" if png[-1:] == "\n" else "")


def smaller(png: bytes) -> bytes:
    """Store a figure that matplotlib has drawn with a palette, if nobody can see the difference.

    Args:
        png: the figure; one that is no RGBA picture stays as it is, and so does one with holes.
    Returns:
        The same picture with at most 256 colours, or, where that would show, without its alpha.
    """
    picture = Image.open(io.BytesIO(png))
    if picture.mode != "RGBA" or picture.getextrema()[3] != (255, 255):
        return png
    picture = picture.convert("RGB")
    few = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    change = np.abs(np.asarray(picture, int) - np.asarray(few.convert("RGB"), int)).max(axis=-1)
    shows = np.quantile(change, 0.999) > LEAST_VISIBLE
    buffer = io.BytesIO()
    (picture if shows else few).save(buffer, "PNG", optimize=True)
    return min(png, buffer.getvalue(), key=len)
