"""Benchmark of growth: CPU time, memory, disk and latency of `carillon up` by the number of its devices.

    python -m bench.growth --devices 100000 300000 1000000
    python -m bench.growth --devices 1000000 3000000 10000000 --connected 10000

Fills the event log of one installation to each number of devices in turn, with the records of devices that register
and of a message for each of them that it does not receive. Then `carillon up` starts twice. The first time the roles
and analytics read what is new; it is measured the second time:

  filled           how long writing the new devices and their messages to the log takes, and the CPU time of each
  read             how long the roles and analytics take until they have read these, and the CPU time of each
  start            until it is ready, and the CPU time of that
  memory           resident memory of all its processes when it is ready
  disk, log        bytes of the data directory, and of the event log in it
  broadcast        one message to all devices, of which --connected are: from the request to the last frame, median; and
                   the CPU time of the installation until all is acknowledged
  unicast          one message to one connected device: from the request to the frame, median; and the CPU time
  statistics       the list of broadcasts, from the request to the answer, median; and the CPU time
  stop             from SIGTERM to the end, with the snapshots that are written then

The last column is the growth: the figure of the last size by that of the first. CPU times are comparable on a busy
machine too.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.gateway.protocols import masked, upgraded
from bench.growth.fill import Rows, fill
from bench.programs import Built, Program, check_open_files, note
from services.domain.master_key import MasterKey
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation

_MARKER = b'"type":"welcome"'
_SETTLE_MS = 2000
_ROUNDS = 25
_BROADCASTS = 5
_POLL_S = 0.5
_START_S = 3600.0
_PARTITIONS = 32
_UNITS = {
    "filled_s": "filled, s",
    "filled_us": "filled, us of CPU a device",
    "read_s": "read, s",
    "read_us": "read, us of CPU a device",
    "start_s": "start, s",
    "start_cpu_s": "CPU of the start, s",
    "memory_mb": "memory, MB",
    "disk_mb": "disk, MB",
    "log_mb": "log, MB",
    "broadcast_ms": "broadcast to the connected, ms",
    "broadcast_cpu_ms": "broadcast, ms of CPU",
    "unicast_ms": "unicast, ms",
    "unicast_cpu_ms": "unicast, ms of CPU",
    "statistics_ms": "statistics page, ms",
    "statistics_cpu_ms": "statistics page, ms of CPU",
    "stop_s": "stop with snapshots, s",
}

Result = dict[str, float]


class GrowingInstallation:
    """One installation, filled and measured at each size."""

    def __init__(self, built: Built, data: Path, options: argparse.Namespace) -> None:
        self._built = built
        self._options = options
        self._installation = Installation(data, None)
        self._installation.env |= {
            "CARILLON_PARTITIONS": str(_PARTITIONS),
            "CARILLON_LOG_LEVEL": "WARNING",
            **UNLIMITED_REGISTRATIONS,
        }
        self._app: AppCredentials | None = None
        self._devices = 0

    def measure(self, devices: int) -> Result:
        installation = self._installation
        if self._app is None:
            installation.start()
            self._app = installation.create_app()
            installation.stop()
        new = devices - self._devices
        self._devices = devices
        began, cpu_s = time.perf_counter(), time.process_time()
        filling = fill(
            installation.env_of("up"), self._app.appkey, devices, self._options.connected, self._options.targets
        )
        asyncio.run(filling)
        filled_s, filled_cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        note(f"filled in {filled_s:,.0f} s; the roles and analytics read the event log")
        began = time.perf_counter()
        installation.start(seconds=_START_S)
        note(f"ready after {time.perf_counter() - began:,.0f} s")
        asyncio.run(self._until_ingested(self._app))
        read_s = time.perf_counter() - began
        note(f"read after {read_s:,.0f} s")
        result = {
            "filled_s": filled_s,
            "filled_us": filled_cpu_s / new * 1e6,
            "read_s": read_s,
            "read_us": installation.cpu_s() / new * 1e6,
        }
        installation.stop()
        return result | self._measured(self._app)

    def _measured(self, app: AppCredentials) -> Result:
        installation = self._installation
        start_s = _seconds(installation.start)
        result = {
            "start_s": start_s,
            "start_cpu_s": installation.cpu_s(),
            "memory_mb": installation.resident_bytes() / 1e6,
            "disk_mb": _bytes(installation.data) / 1e6,
            "log_mb": _bytes(installation.data / "log") / 1e6,
        }
        hellos = self._hellos(app.appkey)
        port = int(installation.env["CARILLON_GATEWAY_PORT"])
        with self._built.clients(port, hellos, _MARKER, 256) as (clients, _):
            clients.request(f"quiet {_SETTLE_MS}")
            result |= asyncio.run(self._sent(app, clients))
        result |= asyncio.run(self._asked(app))
        result["stop_s"] = _seconds(installation.stop)
        return result

    async def _sent(self, app: AppCredentials, clients: Program) -> Result:
        (token, _) = Rows(self._installation.data, app.appkey).credentials(1, _PARTITIONS)[0]
        everyone = {"appkey": {"android": app.appkey}, "userScope": 1}
        one = {"appkey": {"android": app.appkey}, "userScope": 5, "token": {"android": token}}
        result = {}
        async with _app_server(self._installation) as server:
            for name, target, frames, rounds in (
                ("unicast", one, 1, _ROUNDS),
                ("broadcast", everyone, self._options.connected, _BROADCASTS),
            ):
                cpu_s = self._installation.cpu_s()
                took_ms = [await _frame_ms(server, app, clients, target, frames) for _ in range(rounds)]
                await asyncio.sleep(_SETTLE_MS / 1000)
                result[f"{name}_ms"] = statistics.median(took_ms)
                result[f"{name}_cpu_ms"] = (self._installation.cpu_s() - cpu_s) / rounds * 1000
        return result

    async def _until_ingested(self, app: AppCredentials) -> None:
        """Wait until analytics has ingested the log: it answers with 503 before."""
        async with _app_server(self._installation) as server:
            while (await _statistics(server, app))["result"] != 0:
                await asyncio.sleep(_POLL_S)

    async def _asked(self, app: AppCredentials) -> Result:
        """Return the median of the times of a statistics page, and its CPU time."""
        await self._until_ingested(app)
        took_ms = []
        async with _app_server(self._installation) as server:
            cpu_s = self._installation.cpu_s()
            for _ in range(_ROUNDS):
                began = time.perf_counter()
                answer = await _statistics(server, app)
                took_ms.append((time.perf_counter() - began) * 1000)
                assert answer["result"] == 0, answer
            cpu_ms = (self._installation.cpu_s() - cpu_s) / _ROUNDS * 1000
        return {"statistics_ms": statistics.median(took_ms), "statistics_cpu_ms": cpu_ms}

    def _hellos(self, appkey: str) -> list[bytes]:
        data = self._installation.data
        keys, rows = MasterKey.load(data / "master.key"), Rows(data, appkey)
        return [
            upgraded(masked(json.dumps({"type": "hello", "appkey": appkey, "token": token, "key": key}).encode()))
            for token, number in rows.credentials(self._options.connected, _PARTITIONS)
            for key in [keys.device_key(appkey, token, number)]
        ]

    def close(self) -> None:
        self._installation.close()


@contextlib.asynccontextmanager
async def _app_server(installation: Installation) -> AsyncIterator[AppServer]:
    server = AppServer(installation.v2_url)
    try:
        yield server
    finally:
        await server.close()


async def _statistics(server: AppServer, app: AppCredentials) -> dict[str, Any]:
    """Ask for the list of broadcasts."""
    body = {"appkey": app.appkey, "type": 1, "param": {"category": 0, "dur": {"timeScope": 2}, "msgid": -1}}
    return await server.call("POST", "/v2/statistics", body, app.secret_key, statuses=(200, 503))


async def _frame_ms(
    server: AppServer, app: AppCredentials, clients: Program, target: Mapping[str, Any], frames: int
) -> float:
    """Send a push; return the time from the request to the last frame."""
    body = {"sendTo": target, "msgStyle": {"basic": {"content": "x" * 60, "is_notif": 1}}, "option": {"period": 600}}
    clients.send(f"acknowledge {frames}")
    received = asyncio.create_task(asyncio.to_thread(clients.receive))
    began = time.monotonic_ns()
    answer = await server.push(body, app.secret_key)
    assert answer["result"] == 0, answer
    last: int = (await received)[1]
    return (last - began) / 1e6


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def show(results: Mapping[int, Result], options: argparse.Namespace) -> None:
    title = (
        f"devices, each with an undelivered message of pushes to {options.targets:,}; {options.connected:,} connected"
    )
    table = Table(title=title)
    table.add_column("")
    for devices in results:
        table.add_column(f"{devices:,}", justify="right")
    sizes = list(results)
    table.add_column(f"{sizes[-1] / sizes[0]:.3g} times the devices", justify="right")
    for name, unit in _UNITS.items():
        of_name = [result[name] for result in results.values()]
        growth = f"{of_name[-1] / of_name[0]:.2f}" if of_name[0] else ""
        table.add_row(unit, *(f"{value:,.1f}" for value in of_name), growth)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[10_000, 30_000], metavar="N", help="increasing")
    parser.add_argument("--connected", type=int, default=1000, metavar="N", help="connected devices; default: 1000")
    parser.add_argument("--targets", type=int, default=1000, metavar="N", help="devices of a push; default: 1000")
    parser.add_argument("--directory", type=Path, help="where the data directory is made; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    check_open_files(options.connected)
    with tempfile.TemporaryDirectory(prefix="carillon-bench-", dir=options.directory) as name:
        growth = GrowingInstallation(Built(Path(name)), Path(name) / "data", options)
        try:
            results = {}
            for devices in sorted(options.devices):
                results[devices] = growth.measure(devices)
                note(f"{devices:,} devices: {json.dumps(results[devices])}")
        finally:
            growth.close()
    if options.json:
        print(json.dumps(results))
    else:
        show(results, options)


if __name__ == "__main__":
    main()
