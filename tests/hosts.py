"""Hosts that this machine plays: a network namespace, an address and a view of the files for each.

They reach each other over a bridge and nobody else: no interface of the machine's own is touched.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_REMEDY = "on Linux, apt-get install iproute2, and sudo make test"


def _problem() -> str | None:
    """Say why this machine cannot play hosts; None if it can."""
    if not shutil.which("ip") or os.geteuid() != 0:
        return "hosts in network namespaces need root and iproute2"
    try:
        with network(1):
            return None
    except subprocess.CalledProcessError:
        return "this system permits no network namespaces with bridges"


class Host:
    """One of the hosts.

    Args:
        name: the namespace.
        address: where the others reach it.
        cable: what leads to it from the bridge; None for the host that has the bridge.
    """

    def __init__(self, name: str, address: str, cable: tuple[str, str] | None):
        self.name, self.address, self._cable = name, address, cable

    def start(self, command: list[str], *, hidden: list[Path], **options) -> subprocess.Popen:
        """Start a command here, to which some folders seem to be empty."""
        mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden]
        script = " && ".join([*mounts, f"exec {shlex.join(command)}"])
        # `ip netns exec` gives a view of the file systems in which these mounts stay.
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "sh", "-c", script],
            start_new_session=True,
            **options,
        )

    def unplug(self) -> None:
        """Take it off the network."""
        assert self._cable is not None  # the others have one
        bridge, cable = self._cable
        _ip("-n", bridge, "link", "set", cable, "down")

    def end(self) -> None:
        """End all that runs here, and the namespace."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


@contextlib.contextmanager
def network(count: int) -> Iterator[list[Host]]:
    """Connect some hosts; the first has the bridge. All that runs on them is ended afterwards."""
    prefix = f"course-{secrets.token_hex(3)}"
    bridge = f"{prefix}-0"
    hosts = [
        Host(f"{prefix}-{n}", f"10.0.0.{n + 1}", (bridge, f"cable{n}") if n else None)
        for n in range(count)
    ]
    try:
        for n, host in enumerate(hosts):
            _ip("netns", "add", host.name)
            _ip("-n", host.name, "link", "set", "lo", "up")
            if n == 0:
                _ip("-n", bridge, "link", "add", "plug", "type", "bridge")
            else:
                cable = f"cable{n}"
                ends = ["link", "add", cable, "type", "veth", "peer", "plug", "netns", host.name]
                _ip("-n", bridge, *ends)
                _ip("-n", bridge, "link", "set", cable, "master", "plug", "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "plug")
            _ip("-n", host.name, "link", "set", "plug", "up")
        yield hosts
    finally:
        for host in reversed(hosts):
            host.end()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


PROBLEM = _problem()
needs_hosts = pytest.mark.skipif(PROBLEM is not None, reason=f"{PROBLEM}: {_REMEDY}")
