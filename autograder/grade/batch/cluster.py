"""Where submissions are judged: processes of this machine, or a Dask cluster that is running.

Dask's messages are pickles: whoever reaches a scheduler runs what they like on it and its workers.
"""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autograder.grade.errors import GradingError

if TYPE_CHECKING:
    from distributed import Client, Security

CONNECT_SECONDS = 30
_VARIABLES = [
    f"DASK_DISTRIBUTED__COMM__TLS__{x}" for x in ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")
]
_HELP = f"set {', '.join(_VARIABLES)} to files in PEM format (see docs/cluster.md)"


@dataclass(frozen=True)
class Cluster:
    """Where to judge.

    Args:
        workers: how many processes on this machine, unless there is a scheduler.
        scheduler: the address of a running cluster.
        resources: what a worker must offer to get a submission, such as GPU=1.
        insecure: whether the scheduler may be on another machine without TLS.
    """

    workers: int
    scheduler: str | None = None
    resources: dict[str, float] = field(default_factory=dict)
    insecure: bool = False

    @contextlib.contextmanager
    def connect(self) -> Iterator["Client"]:
        """Connect to the cluster; one on this machine is started, and ended afterwards.

        Raises:
            GradingError: it cannot be reached, or not safely.
        """
        import dask
        from distributed import Client, LocalCluster, Security

        dask.config.set(
            {
                "distributed.scheduler.allowed-failures": 0,
                "distributed.worker.profile.enabled": False,  # it looks at the stack all the time
            }
        )
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        with contextlib.ExitStack() as stack:
            place: str | LocalCluster
            if self.scheduler is None:
                # Other users of this machine must not be able to send work to the workers.
                security = Security.temporary()
                place = stack.enter_context(
                    LocalCluster(
                        n_workers=self.workers,
                        threads_per_worker=1,
                        processes=True,
                        dashboard_address="127.0.0.1:0",
                        memory_limit=None,
                        resources=self.resources or None,
                        silence_logs=logging.CRITICAL,
                        security=security,
                    )
                )
            else:
                place, security = self.scheduler, _security(self.scheduler, self.insecure)
            try:
                client = Client(place, timeout=CONNECT_SECONDS, security=security)
            except OSError as error:
                raise GradingError(f"no Dask scheduler answers at {place}: {error}") from None
            yield stack.enter_context(client)


def _security(scheduler: str, insecure: bool) -> "Security":
    """Make sure that a scheduler can be talked to in private; the certificates are Dask's."""
    from distributed import Security
    from distributed.comm import get_address_host, parse_address

    try:
        scheme, _ = parse_address(scheduler)
        host = get_address_host(scheduler)
    except ValueError as error:
        raise GradingError(
            f"--scheduler {scheduler} should be an address, such as tls://host:8786: {error}"
        ) from None
    security = Security()
    if scheme == "tls":
        found = security.get_tls_config_for_role("client")
        files = {name: found.get(name) for name in ("ca_file", "cert", "key")}
        if not (files["ca_file"] and files["cert"]):
            raise GradingError(f"{scheduler} needs certificates: {_HELP}")
        try:
            security.get_connection_args("client")
        except OSError as error:  # ssl's own are among these
            named = ", ".join(str(path) for path in files.values())
            raise GradingError(f"{named} are no certificates: {error}\n{_HELP}") from None
    elif not insecure and not _is_this_machine(host):
        raise GradingError(
            f"{scheduler} is another machine, and the way to it is open: others can read what is "
            "sent and run code on the cluster. Use tls:// (see docs/cluster.md), or add --insecure "
            "in a network that you trust"
        )
    return security


def _is_this_machine(host: str) -> bool:
    """Say whether a name or an address leads to this machine only, which no other can reach."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise GradingError(f"there is no machine named {host!r}: {error}") from None
    return all(_is_loopback(str(address)) for address in found)


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
