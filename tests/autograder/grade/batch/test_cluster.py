"""The way to a scheduler: encrypted, or not out of this machine."""

import socket

import dask
import pytest
from distributed import Client, LocalCluster, Security

from autograder.grade.batch import cluster
from autograder.grade.batch.cluster import Cluster, _security
from autograder.grade.errors import GradingError
from tests import certificates

pytestmark = pytest.mark.xdist_group("dask")
TLS = "distributed.comm.tls"
ROLES = ("client", "scheduler", "worker")


def configured(paths):
    """Dask as its configuration would be with these certificates."""
    ca, cert, key = map(str, paths.values())
    own = {
        f"{TLS}.{role}.{name}": f for role in ROLES for name, f in (("cert", cert), ("key", key))
    }
    return dask.config.set({f"{TLS}.ca-file": ca, **own})


@pytest.fixture
def names(monkeypatch):
    """Some machines, without asking a network for them."""
    known = {
        "localhost": ["127.0.0.1", "::1"],
        "here": ["127.0.1.1"],
        "both": ["127.0.0.1", "192.0.2.7"],
    }

    def look(host, port):
        if host == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        return [(None, None, None, "", (address, 0)) for address in known.get(host, [host])]

    monkeypatch.setattr(cluster.socket, "getaddrinfo", look)


@pytest.mark.parametrize("host", ["localhost", "here", "127.3.4.5", "[::1]", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("scheme", ["tcp://", ""])
def test_this_machine_needs_no_encryption(names, scheme, host):
    _security(f"{scheme}{host}:8786", False)


@pytest.mark.parametrize(
    "host", ["192.0.2.7", "both", "[2001:db8::1]", "0.0.0.0", "[::ffff:8.8.8.8]"]
)
@pytest.mark.parametrize("scheme", ["tcp://", "ws://", ""])
def test_an_open_way_to_another_machine_is_refused(names, scheme, host):
    with pytest.raises(GradingError, match=r"others can read .* Use tls://.* or add --insecure"):
        _security(f"{scheme}{host}:8786", False)
    _security(f"{scheme}{host}:8786", True)


def test_a_machine_that_nobody_knows(names):
    with pytest.raises(GradingError, match="there is no machine named 'nowhere'"):
        _security("tcp://nowhere:8786", False)


@pytest.mark.parametrize("address", ["tls://host", "host:many", "http://host:1", "host"])
def test_what_is_no_address(address):
    with pytest.raises(GradingError, match="should be an address, such as tls://host:8786"):
        _security(address, True)


def test_certificates_must_be_there(tmp_path):
    with pytest.raises(GradingError, match=r"needs certificates: set DASK_.*TLS__CA_FILE"):
        _security("tls://host:8786", True)
    paths = certificates.write(tmp_path)
    paths["key.pem"].write_text("no key")
    with configured(paths), pytest.raises(GradingError, match=r"key\.pem are no certificates"):
        _security("tls://host:8786", False)
    paths["key.pem"].unlink()
    with configured(paths), pytest.raises(GradingError, match="No such file"):
        _security("tls://host:8786", False)


def test_tls_with_the_certificates_of_dasks_configuration(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 3)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = (certificates.write(tmp_path / name) for name in ("ours", "theirs"))
    with configured(ours):
        options = {"security": Security(), "protocol": "tls", "dashboard_address": "127.0.0.1:0"}
        with LocalCluster(n_workers=1, processes=False, **options) as running:
            address = running.scheduler_address
            with Cluster(1, address).connect() as client:
                assert client.submit(sum, [1, 2]).result() == 3
            with configured(theirs), pytest.raises(GradingError, match="no Dask scheduler answers"):
                with Cluster(1, address).connect():
                    pass
            with pytest.raises(OSError):
                Client(address.replace("tls", "tcp"), timeout=3)
