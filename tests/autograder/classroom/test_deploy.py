"""JupyterHub's configuration: how long it waits, what a student has, and when that ends."""

import grp
import subprocess
import sys
from types import SimpleNamespace

import pytest
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyterhub.spawner import LocalProcessSpawner
from traitlets.config import Config, PyFileConfigLoader

from autograder.assignment import ROOT
from tests.course import IS_LINUX

DEPLOY = ROOT / "autograder" / "classroom" / "deploy"


@pytest.fixture
def config(monkeypatch) -> Config:
    """The configuration, on a machine that has the course's groups."""
    group = SimpleNamespace(gr_mem=["ada"])
    monkeypatch.setattr(grp, "getgrnam", lambda name: group)
    return PyFileConfigLoader("jupyterhub_config.py", path=str(DEPLOY)).load_config()


def test_a_class_that_starts_at_once_has_time(config):
    spawner = LocalProcessSpawner(config=config)
    assert spawner.start_timeout == spawner.http_timeout == 120


def test_what_is_idle_ends(config):
    """The options of a student's server are ones that it has."""
    given = dict(option.removeprefix("--").split("=", 1) for option in config.Spawner.args)
    del given["ServerApp.tornado_settings"]
    owners = {"ServerApp": ServerApp, "MappingKernelManager": AsyncMappingKernelManager}
    for option in given:
        owner, _, name = option.partition(".")
        assert name in owners[owner].class_trait_names(config=True)
        assert owner in [cls.__name__ for cls in owners[owner].mro()]
    assert given == {
        "MappingKernelManager.cull_idle_timeout": "7200",
        "MappingKernelManager.cull_connected": "True",
        "ServerApp.shutdown_no_activity_timeout": "7200",
    }


@pytest.mark.skipif(not IS_LINUX, reason="prlimit is Linux's")
@pytest.mark.parametrize(("gigabytes", "fits"), [(1, True), (5, False)])
def test_memory_has_a_limit(config, gigabytes, fits):
    *limit, server = config.Spawner.cmd
    assert server == "/opt/sequence_models/bin/jupyterhub-singleuser"
    program = f"import torch; print(len(torch.empty({gigabytes} << 30, dtype=torch.uint8)))"
    done = subprocess.run([*limit, sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode == 0) == fits, done.stderr
    assert LocalProcessSpawner(config=config).mem_limit == 4 << 30
