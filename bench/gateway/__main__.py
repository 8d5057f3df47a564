"""Benchmark of the gateway, beside a C floor, mosquitto and NATS in the same run.

    python -m bench.gateway --connections 5000 15000
    python -m bench.gateway --scenario fanout unicast --connections 2000 --seconds 3 --json

  storm    connections opened a second, --at-once of them at a time, until each has said hello and is welcome
  memory   growth of the server's resident memory for an idle connection; for the gateway also with delivery's presence
  fanout   one message to all connections, from the order to the last byte at the last client; median of the rounds;
           also for a floor that computes for 1 and 3 us before each frame, which shows what the kernel's part then is
  burst    the same with five messages in a row
  unicast  a message of its own for each connection, each acknowledged by its client; MQTT with quality of service 1,
           NATS with request and reply; median of the rounds
  tls      storm and memory over TLS 1.3 with a P-256 key, no session resumed

One server process on one core, one client process on another. The clients are the same C program for all servers
(bench/native/clients.c); the floor (bench/native/floor.c) is epoll and a write for each frame, and knows no protocol.
mosquitto runs with its defaults, and tuned. A server that is not installed is left out with a line; NATS is built with
Go if need be.
"CPU us each" is the server's CPU time, the kernel's for it included, for one connection of one round: beside other work
on the same cores it is steadier than the rates.
"""

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.gateway.peers import FRAME_BYTES, Floor, Gateway, Mosquitto, Nats, Peer, Start
from bench.programs import Built, Program, check_open_files, installed, note
from testkit.certificates import Authority
from testkit.repository import ROOT

SCENARIOS = ("storm", "memory", "fanout", "burst", "unicast", "tls")
FLOOR, DEFAULT = "C floor", "mosquitto"
WITH_PRESENCE = "gateway with delivery's presence"
COMPUTING_US = {"C floor, 1 us more": 1, "C floor, 3 us more": 3}
ONLY = {WITH_PRESENCE: ("memory",)} | dict.fromkeys(COMPUTING_US, ("fanout",))
"""The scenarios of servers that are not measured in all."""

TUNED = (
    "allow_duplicate_messages true",
    "max_queued_messages 0",
    "max_inflight_messages 0",
    "set_tcp_nodelay true",
    "sys_interval 0",
)
COLUMNS = {
    "storm": {"opened_per_s": "opened/s", "opened_p99_ms": "p99 of one, ms", "opened_cpu_us": "CPU us each"},
    "memory": {"kb_per_connection": "KB per idle connection"},
    "fanout": {
        "frames_per_s": "frames/s",
        "message_ms": "message to all, ms",
        "frame_cpu_us": "CPU us each",
        "frame_kernel_us": "of it in the kernel",
    },
    "burst": {"burst_frames_per_s": "frames/s", "burst_ms": "five to all, ms", "burst_frame_cpu_us": "CPU us each"},
    "unicast": {"unicasts_per_s": "acknowledged/s", "unicast_cpu_us": "CPU us each"},
    "tls": {
        "tls_opened_per_s": "opened/s",
        "tls_opened_cpu_us": "CPU us each",
        "tls_kb_per_connection": "KB per idle connection",
    },
}
BURST = 5
_MIN_ROUNDS = 3
_NATS = "github.com/nats-io/nats-server/v2@latest"
_CACHE = ROOT / ".cache" / "bin"

Result = dict[str, float]


class Bench:
    """Measures one server after the other with the same number of connections."""

    def __init__(self, built: Built, authority: Authority, connections: int, at_once: int, seconds: float) -> None:
        self._built = built
        self._authority = authority
        self._connections = connections
        self._at_once = at_once
        self._seconds = seconds

    def measure(self, start: Start, scenarios: Collection[str]) -> Result:
        """Return the columns of these scenarios."""
        result: Result = {}
        if set(scenarios) - {"tls"}:
            with self._opened(start(None), tls=False) as (peer, clients, opening):
                result |= opening
                if "fanout" in scenarios:
                    took_ns, cpu_us, kernel_us = self._repeat(peer, lambda: self._fan_out(peer, clients))
                    result |= {
                        "frames_per_s": self._connections / took_ns * 1e9,
                        "message_ms": took_ns / 1e6,
                        "frame_cpu_us": cpu_us,
                        "frame_kernel_us": kernel_us,
                    }
                if "burst" in scenarios:
                    took_ns, cpu_us, _ = self._repeat(peer, lambda: self._fan_out(peer, clients, BURST))
                    rate = BURST * self._connections / took_ns * 1e9
                    result |= {
                        "burst_frames_per_s": rate,
                        "burst_ms": took_ns / 1e6,
                        "burst_frame_cpu_us": cpu_us / BURST,
                    }
                if "unicast" in scenarios:
                    took_ns, cpu_us, _ = self._repeat(peer, lambda: peer.unicast(clients, self._connections))
                    result |= {"unicasts_per_s": self._connections / took_ns * 1e9, "unicast_cpu_us": cpu_us}
        if "tls" in scenarios:
            with self._opened(start(self._authority.issue("server")), tls=True) as (_, _, opening):
                result |= {f"tls_{name}": value for name, value in opening.items()}
        return {column: result[column] for scenario in scenarios for column in COLUMNS[scenario]}

    @contextlib.contextmanager
    def _opened(self, peer: Peer, *, tls: bool) -> Iterator[tuple[Peer, Program, Result]]:
        """Connect all clients, and yield once they are welcome and idle, with the cost of connecting."""
        hellos = [peer.hello(number) for number in range(self._connections)]
        try:
            empty_bytes, idle_s = peer.resident_bytes(), peer.program.cpu_s()
            opened = self._built.clients(peer.port, hellos, peer.marker, self._at_once, tls=tls, polls=True)
            with opened as (clients, times):
                peer.await_connections(self._connections)
                busy_s = peer.program.cpu_s() - idle_s
                clients.request(f"quiet {peer.settle_ms}")
                began, ended, _, p99 = times
                opening = {
                    "opened_per_s": self._connections / (ended - began) * 1e9,
                    "opened_p99_ms": p99 / 1e6,
                    "opened_cpu_us": busy_s / self._connections * 1e6,
                    "kb_per_connection": (peer.resident_bytes() - empty_bytes) / self._connections / 1000,
                }
                yield peer, clients, opening
        finally:
            peer.close()

    def _fan_out(self, peer: Peer, clients: Program, messages: int = 1) -> int:
        clients.send(f"count {peer.frame_bytes * self._connections * messages}")
        began = peer.broadcast(messages)
        return clients.receive()[0] - began

    def _repeat(self, peer: Peer, once: Callable[[], int]) -> tuple[float, float, float]:
        """Return the median of the rounds in ns, and the CPU time for each connection and round in us.

        The CPU time is the server's with the kernel's for it, then the kernel's alone.
        """
        took: list[int] = []
        (idle_user_s, idle_kernel_s), ends = peer.program.user_and_kernel_s(), time.monotonic() + self._seconds
        while len(took) < _MIN_ROUNDS or time.monotonic() < ends:
            took.append(once())
        user_s, kernel_s = peer.program.user_and_kernel_s()
        frames = len(took) * self._connections / 1e6
        kernel_us = (kernel_s - idle_kernel_s) / frames
        return statistics.median(took), (user_s - idle_user_s) / frames + kernel_us, kernel_us


def peers(built: Built, directory: Path) -> dict[str, Start]:
    """Return the servers to measure, by name; print a line for each that is missing."""
    numbers = itertools.count()

    def gateway(delivery: str) -> Start:
        return lambda tls: Gateway(directory / f"gateway{next(numbers)}", delivery, tls)

    found: dict[str, Start] = {FLOOR: lambda tls: Floor(built, tls), "gateway": gateway("script")}
    found |= {name: partial(Floor, built, compute_ns=1000 * us) for name, us in COMPUTING_US.items()}
    found[WITH_PRESENCE] = gateway("real")
    if mosquitto := installed("mosquitto"):
        found[DEFAULT] = lambda tls: Mosquitto(mosquitto, directory, tls)
        found["mosquitto, tuned"] = lambda tls: Mosquitto(mosquitto, directory, tls, *TUNED)
    else:
        note("mosquitto is not installed (apt-get install mosquitto): its lines are left out")
    if nats := _nats():
        found["nats-server"] = lambda tls: Nats(nats, directory, tls)
    return found


def _nats() -> str | None:
    if found := installed("nats-server") or shutil.which("nats-server", path=str(_CACHE)):
        return found
    if not (go := installed("go")):
        note("neither nats-server nor Go is installed: its lines are left out")
        return None
    note(f"building {_NATS} into {_CACHE}")
    done = subprocess.run([go, "install", _NATS], env={**os.environ, "GOBIN": str(_CACHE)}, check=False)
    if done.returncode:
        note("nats-server could not be built: its lines are left out")
    return shutil.which("nats-server", path=str(_CACHE))


def run(options: argparse.Namespace, connections: int, built: Built, above: Path) -> dict[str, Result]:
    """Return the results by server; each server keeps its files in a directory of its own below `above`."""
    directory = Path(tempfile.mkdtemp(dir=above))
    bench = Bench(built, Authority(directory / "authority"), connections, options.at_once, options.seconds)
    results: dict[str, Result] = {}
    for name, start in peers(built, directory).items():
        scenarios = [each for each in options.scenario if each in ONLY.get(name, SCENARIOS)]
        if scenarios:
            note(f"{connections:,} connections: {name}")
            results[name] = bench.measure(start, scenarios)
    return results


def show(scenario: str, connections: int, results: Mapping[str, Result]) -> Table:
    """Print a table with ratios to the floor and to mosquitto with its defaults."""
    columns = COLUMNS[scenario]
    first = next(iter(columns))
    bases = [base for base in (FLOOR, DEFAULT) if scenario != "memory" and first in results.get(base, {})]
    table = Table(title=f"{scenario}: {connections:,} connections", title_justify="left")
    table.add_column("server")
    for heading in (*columns.values(), *(f"x {base}" for base in bases)):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        if first not in result:
            continue
        values = [_number(result[column]) for column in columns]
        ratios = [f"{result[first] / results[base][first]:.2f}" for base in bases]
        table.add_row(name, *values, *ratios)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 1 else f"{value:.1f}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="default: all")
    parser.add_argument("--connections", nargs="+", type=int, default=[2000], metavar="N", help="default: 2000")
    parser.add_argument("--at-once", type=int, default=64, metavar="N", help="connections being opened at a time")
    parser.add_argument("--seconds", type=float, default=5, help="how long fanout and unicast each repeat their rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    check_open_files(max(options.connections))
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as name:
        directory = Path(name)
        built = Built(directory)
        if "tls" in options.scenario and not built.has_tls:
            note("OpenSSL's headers are not installed (apt-get install libssl-dev): nothing is measured over TLS")
            options.scenario.remove("tls")
        results = {connections: run(options, connections, built, directory) for connections in options.connections}
    if options.json:
        print(json.dumps({"frame_bytes": FRAME_BYTES, "seconds": options.seconds, "connections": results}))
        return
    for connections, servers in results.items():
        for scenario in options.scenario:
            Console(width=120).print(show(scenario, connections, servers))


if __name__ == "__main__":
    main()
