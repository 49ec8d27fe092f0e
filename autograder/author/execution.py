"""Run a solved notebook, and list what its claims have found."""

import os
import tempfile

from nbclient import NotebookClient
from nbformat import NotebookNode

from autograder.assignment import use_this_checkout

CELL_SECONDS = 1200  # ends a cell that hangs, but no other, even on a busy machine


def execute(nb: NotebookNode, *, allow_errors: bool = False) -> None:
    """Run a notebook in place, in an empty folder, on the CPU.

    It has one thread unless OMP_NUM_THREADS names another number.

    Args:
        nb: the notebook; it gets its outputs.
        allow_errors: whether to go on with the cells below one that fails.
    Raises:
        CellExecutionError: a cell fails.
    """
    use_this_checkout()
    # Under pytest a claim that does not hold is an exception; here it is found in the outputs.
    outside = {name: value for name, value in os.environ.items() if name != "PYTEST_VERSION"}
    language = nb.metadata.get("language_info")
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            nb,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            allow_errors=allow_errors,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute(env={"OMP_NUM_THREADS": "1", **outside, "COURSE_DEVICE": "cpu"})
    if language is not None:
        nb.metadata["language_info"] = language  # without the Python version


def claims(nb: NotebookNode) -> list[dict]:
    """List what the claims of an executed notebook have found, in its order."""
    outputs = [output for cell in nb.cells for output in cell.get("outputs", [])]
    found = [output.get("metadata", {}).get("claim") for output in outputs]
    return [claim for claim in found if claim is not None]
