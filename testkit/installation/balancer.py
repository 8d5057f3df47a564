"""HAProxy in front of the edges and the gateways of an installation."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from testkit.ports import free_ports
from testkit.programs import installed
from testkit.waiting import blocking_until

HAPROXY = installed("haproxy")

SERVED_BY = "x-served-by"
"""The header of an answer over HTTP that names its server."""

CHECK_INTERVAL_S = 0.5
CHECKS_FAILED = 2
_GLOBAL = f"""\
global
    maxconn 4000
defaults
    timeout connect 2s
    timeout client 40s
    timeout server 60s
    timeout http-request 8s
    timeout tunnel 10m
    option redispatch
    option httpchk GET /healthz
    default-server check inter {round(CHECK_INTERVAL_S * 1000)}ms fall {CHECKS_FAILED} rise 1
"""


class Server(NamedTuple):
    """A server on this machine: its port, and the port at which /healthz answers whether it is ready."""

    name: str
    port: int
    health_port: int


class Listener(NamedTuple):
    """A port of the balancer, with a mode of HAProxy.

    http: a request whose connection was refused is repeated elsewhere, and requests under way at a server that is not
    ready any more go on. tcp: connections to such a server are ended, and nothing is repeated.
    """

    mode: str
    servers: Sequence[Server]


class Balancer:
    """One HAProxy process; `ports` are those of the listeners, in their order."""

    def __init__(self, directory: Path, listeners: Sequence[Listener]) -> None:
        self.ports = free_ports(len(listeners))
        self._file = directory / "haproxy.cfg"
        self._listeners = listeners
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start HAProxy, and return once it listens."""
        if HAPROXY is None:
            raise RuntimeError("HAProxy is not installed: apt-get install haproxy")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        checks: dict[int, str] = {}
        sections = [_section(port, each, checks) for port, each in zip(self.ports, self._listeners, strict=True)]
        self._file.write_text(_GLOBAL + "".join(sections))
        with self._file.with_suffix(".out").open("ab") as output:
            self._process = process = subprocess.Popen(
                [HAPROXY, "-db", "-f", str(self._file)], stdout=output, stderr=subprocess.STDOUT
            )

        def listens() -> bool:
            assert process.poll() is None, self._file.with_suffix(".out").read_text()
            return all(_is_listening(port) for port in self.ports)

        blocking_until(listens)

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def _section(port: int, listener: Listener, checks: dict[int, str]) -> str:
    """Return the section of a listener in the configuration.

    `checks`: the servers whose health is checked, by health port; other servers with that port use their result.
    """
    servers = ""
    for server in listener.servers:
        name = f"p{port}/{server.name}"
        checked = checks.setdefault(server.health_port, name)
        check = f"port {server.health_port}" if checked == name else f"no-check track {checked}"
        servers += f"    server {server.name} 127.0.0.1:{server.port} {check}\n"
    ended = "    default-server on-marked-down shutdown-sessions\n"
    named = f"    http-response set-header {SERVED_BY} %s\n"
    of_mode = ended if listener.mode == "tcp" else named
    bound = f"    mode {listener.mode}\n    bind 127.0.0.1:{port}\n    balance leastconn\n"
    return f"listen p{port}\n{bound}{of_mode}{servers}"


def _is_listening(port: int) -> bool:
    wanted = f"0100007F:{port:04X} 00000000:0000 0A"
    return wanted in Path("/proc/net/tcp").read_text(encoding="ascii")
