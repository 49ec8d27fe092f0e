"""What Colab makes of a notebook that it opens and saves again."""

import copy
import json

import nbformat
from nbformat import NotebookNode

_WIDGET = {
    "model_module": "@jupyter-widgets/controls",
    "model_name": "FloatProgressModel",
    "model_module_version": "1.5.0",
    "state": {"_model_name": "FloatProgressModel", "value": 300.0},
}
_METADATA = {
    "colab": {"provenance": [], "toc_visible": True, "gpuType": "T4", "include_colab_link": True},
    "accelerator": "GPU",
    "kernelspec": {"name": "python3", "display_name": "Python 3"},
    "language_info": {"name": "python"},
    # Not as nbformat has it: the models stand here without "state" and "version".
    "widgets": {"application/vnd.jupyter.widget-state+json": {"0123456789abcdef": _WIDGET}},
}


def saved_by_colab(nb: NotebookNode) -> dict:
    """Give a notebook, as JSON, as Colab saves it: another form of file, and metadata of its own.

    Colab writes version 4.0, in which a cell's id stands in its metadata. It puts the badge that
    leads back to it above the first cell.
    """
    found = json.loads(nbformat.writes(copy.deepcopy(nb)))
    cells = [_saved(cell, number) for number, cell in enumerate(found["cells"])]
    return {
        "nbformat": 4,
        "nbformat_minor": 0,
        "metadata": copy.deepcopy(_METADATA),
        "cells": [_BADGE, *cells],
    }


_BADGE = {
    "cell_type": "markdown",
    "metadata": {"id": "view-in-github", "colab_type": "text"},
    "source": [
        '<a href="https://colab.research.google.com/github/someone/course/blob/main/02_lstm.ipynb" '
        'target="_parent"><img src="https://colab.research.google.com/assets/colab-badge.svg" '
        'alt="Open In Colab"/></a>'
    ],
}


def _saved(cell: dict, number: int) -> dict:
    own = {"id": f"aB{number:02}_-xYzQwE"}
    if cell["cell_type"] != "code":
        return {**_without_id(cell), "metadata": {**cell["metadata"], **own}}
    own |= {
        "colab": {"base_uri": "https://localhost:8080/", "height": 34},
        "outputId": f"0a1b2c3d-4e5f-6071-8293-a4b5c6d7{number:04}",
        "executionInfo": {
            "status": "ok",
            "timestamp": 1764028800000 + number,
            "user_tz": -60,
            "elapsed": 12,
            "user": {"displayName": "A Student", "userId": "01234567890123456789"},
        },
    }
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["✓ values\n", "✓ shapes\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["100%|██████████| 300/300\n"]},
        {"output_type": "display_data", "data": {"text/plain": ["<Figure>"]}, "metadata": {}},
    ]
    metadata = {**cell["metadata"], **own}
    return {
        **_without_id(cell),
        "metadata": metadata,
        "outputs": outputs,
        "execution_count": number,
    }


def _without_id(cell: dict) -> dict:
    return {name: value for name, value in cell.items() if name != "id"}
