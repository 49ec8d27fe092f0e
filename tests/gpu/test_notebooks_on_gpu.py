"""Every solved notebook on a GPU, each cell a test, in the larger configuration.

`make test-gpu` runs this folder, even where there is no JupyterLab, nbgrader or jupytext: what is
imported here must be among the wheels of `make wheels`.
"""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.gpu import needs_gpu

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted(ROOT.glob("solutions/[0-9]*/[0-9]*.ipynb"))
SECONDS = 1800  # for a cell and for a notebook

pytestmark = needs_gpu


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_solved_notebook_on_gpu(notebook):
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"]
    command += ["-p", "no:cacheprovider", f"--nbval-cell-timeout={SECONDS}", str(notebook)]
    environment = {"COURSE_DEVICE": "cuda", **os.environ}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(notebook, 4).cells)
    assert f"{cells} passed" in done.stdout
