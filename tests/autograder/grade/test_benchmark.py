"""The benchmarks compare with nbgrader as it comes."""

import shutil

from traitlets.config import PyFileConfigLoader

from autograder.assignment import ROOT
from tests.benchmarks.grading import make_plain


def test_plain_nbgrader_has_nothing_of_the_engine(tmp_path):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)

    def config():
        return PyFileConfigLoader("nbgrader_config.py", path=str(tmp_path)).load_config()

    assert "Autograde" in config()
    make_plain(tmp_path)
    assert "Autograde" not in config()
