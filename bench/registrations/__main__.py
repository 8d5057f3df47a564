"""Devices that register and connect, and known devices that connect again, beside floors in the same run.

    python -m bench.registrations --devices 15000
    python -m bench.registrations --devices 5000 --at-once 512 --json

Starts `carillon up` on a directory of its own. New devices connect to its gateway (one C program,
bench/native/clients.c), `--at-once` of them at a time, each until it is welcome; then they disconnect, and the same
devices connect once more with their tokens and keys. The floors:

  WebSocket          servers without a service that answer each hello with the same frame: one on the gateway's
                     WebSocket protocol, and one on picows, a library
  event log          the embedded log alone: a command, and then a record, of each device
  gateway alone      known devices at a gateway process without the other roles (bench.gateway)

The clients of the WebSocket servers and of the gateway alone never sleep while they connect, because devices are on
other machines, and here the server would pay for each time that they wake up; those of `carillon up` share its cores.

CPU is that of all processes of the service, the kernel's for them included, until nothing is left to do; the clients'
is beside it, because they share the machine's cores.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.gateway.peers import Gateway
from bench.gateway.protocols import masked, upgraded
from bench.programs import Built, check_open_files, note
from bench.registrations.floors import PARTITIONS, SERVERS, Cost, log_floor, websocket_server
from services.domain.master_key import MasterKey
from services.registry.store import DEVICES_DDL, DEVICES_FILE
from services.replica.sqlite_store import SqliteStore
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation

_MARKER = b'"type":"welcome"'
_SETTLE_MS = 7000
"""Longer than analytics gathers a batch."""


class Bench:
    """Measures one server after the other with the same number of devices."""

    def __init__(self, built: Built, devices: int, at_once: int) -> None:
        self._built = built
        self._devices = devices
        self._at_once = at_once

    def floors(self, directory: Path) -> dict[str, Cost]:
        websockets: dict[str, Cost] = {}
        for name in SERVERS:
            with websocket_server(name) as (program, port):
                hellos = [_hello(appkey="1000000001")] * self._devices
                websockets[f"{name} WebSocket"] = self._connect(port, hellos, program.cpu_s, polls=True)
        gateway = Gateway(directory, "script")
        try:
            hellos = [gateway.hello(number) for number in range(self._devices)]
            alone = self._connect(gateway.port, hellos, gateway.program.cpu_s, polls=True)
        finally:
            gateway.close()
        return {
            **websockets,
            "event log": log_floor(directory, self._devices, self._at_once),
            "gateway alone, known devices": alone,
        }

    def service(self, data: Path) -> dict[str, Cost]:
        """Measure `carillon up`."""
        installation = Installation(data, None)
        installation.env |= {
            "CARILLON_PARTITIONS": str(PARTITIONS),
            "CARILLON_LOG_LEVEL": "WARNING",
            **UNLIMITED_REGISTRATIONS,
        }
        try:
            installation.start()
            appkey = installation.create_app().appkey
            port = int(installation.env["CARILLON_GATEWAY_PORT"])
            new = self._connect(port, [_hello(appkey=appkey)] * self._devices, installation.cpu_s)
            time.sleep(_SETTLE_MS / 1000)
            known = self._connect(port, _known_hellos(data, appkey), installation.cpu_s)
            installation.stop()
        finally:
            installation.close()
        return {"carillon up, new devices": new, "carillon up, known devices": known}

    def _connect(self, port: int, hellos: Sequence[bytes], cpu_s: Callable[[], float], polls: bool = False) -> Cost:
        idle_s = cpu_s()
        opened = self._built.clients(port, hellos, _MARKER, self._at_once, polls=polls)
        with opened as (clients, (began, ended, p50, p99)):
            clients_s = clients.cpu_s()
            clients.request(f"quiet {_SETTLE_MS}")
            busy_s = cpu_s() - idle_s
        each = 1e6 / len(hellos)
        return Cost(len(hellos) / (ended - began) * 1e9, p50 / 1e6, p99 / 1e6, busy_s * each, clients_s * each)


def _hello(**fields: str) -> bytes:
    return upgraded(masked(json.dumps({"type": "hello", **fields}).encode()))


def _known_hellos(data: Path, appkey: str) -> list[bytes]:
    """Return the hello of each device that the registry has."""
    keys = MasterKey.load(data / "master.key")
    store = SqliteStore(data / "registry" / DEVICES_FILE, DEVICES_DDL)
    rows = store.rows.execute("SELECT token, number FROM devices WHERE appkey = ?", (appkey,)).fetchall()
    store.close()
    return [_hello(appkey=appkey, token=token, key=keys.device_key(appkey, token, number)) for token, number in rows]


def show(costs: dict[str, Cost], options: argparse.Namespace) -> None:
    table = Table(title=f"{options.devices:,} devices, {options.at_once} at once")
    for column in ("", "devices/s", "p50 ms", "p99 ms", "CPU us each", "clients' CPU us each"):
        table.add_column(column, justify="right" if column else "left")
    for name, cost in costs.items():
        rates = (f"{cost.per_s:,.0f}", f"{cost.p50_ms:,.1f}", f"{cost.p99_ms:,.1f}", f"{cost.cpu_us:,.0f}")
        table.add_row(name, *rates, f"{cost.clients_cpu_us:,.0f}" if cost.clients_cpu_us else "")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=5000, metavar="N", help="default: 5000")
    parser.add_argument("--at-once", type=int, default=256, metavar="N", help="devices connecting at a time")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    check_open_files(options.devices)
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as name:
        directory = Path(name)
        bench = Bench(Built(directory), options.devices, options.at_once)
        note("the floors")
        costs = bench.floors(directory)
        note("carillon up")
        costs |= bench.service(directory / "data")
    if options.json:
        print(json.dumps({"devices": options.devices, **{name: cost._asdict() for name, cost in costs.items()}}))
    else:
        show(costs, options)


if __name__ == "__main__":
    main()
