"""Benchmark of an idle service with connected devices: memory and CPU time of each process, beside a floor.

    python -m bench.idle --devices 100 --seconds 60

Starts `carillon up` on a directory of its own, connects devices over the real gateway, and measures while nothing is
sent. In its first minute chdb looks for work more often than later; `--after 60` leaves that minute out. The floor is a
Python process that has opened a chdb store and does nothing else. `of files` is the part of the resident memory that
the system can take back at any time, as it can read the pages again: libraries, nearly all of it. `own` is the memory
that would be free without the process; `shared fairly` counts pages that several processes map by their share.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from testkit.device import VirtualDevice
from testkit.installation.processes import Installation

_FLOOR = """
import sys
from chdb.session import Session
session = Session(sys.argv[1])
session.query("SELECT 1")
print("open", flush=True)
sys.stdin.read()
"""
_MIB = 1024 * 1024
Row = Mapping[str, float]


def measured(processes: Mapping[str, psutil.Process], seconds: float) -> dict[str, Row]:
    """Return the memory of each process, and its share of one core while the seconds pass."""
    before = {name: _cpu_s(process) for name, process in processes.items()}
    started_s = time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - started_s
    rows: dict[str, Row] = {}
    for name, process in processes.items():
        memory = process.memory_full_info()
        rows[name] = {
            "resident_mib": round(memory.rss / _MIB),
            "of_files_mib": round(memory.shared / _MIB),
            "shared_fairly_mib": round(memory.pss / _MIB),
            "own_mib": round(memory.uss / _MIB),
            "percent_of_a_core": round((_cpu_s(process) - before[name]) / passed_s * 100, 2),
        }
    return rows


def carillon(options: argparse.Namespace, data: Path) -> dict[str, Row]:
    with contextlib.closing(Installation(data, None)) as installation:
        installation.env["CARILLON_PARTITIONS"] = "32"
        installation.start()
        app = installation.create_app()
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bench.idle",
                "--connect",
                installation.gateway_url,
                app.appkey,
                str(options.devices),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as devices:
            assert devices.stdout is not None
            devices.stdout.readline()
            time.sleep(options.after)
            main_process = psutil.Process(installation.process_id())
            children = {role: installation.child_process(role) for role in ("analytics", "console")}
            processes = {"carillon up": main_process, **children}
            rows = measured(processes, options.seconds)
            devices.kill()
        installation.stop()
    total = {name: round(sum(row[name] for row in rows.values()), 2) for name in rows["analytics"]}
    return rows | {"all": total}


@contextlib.contextmanager
def idle_engine(directory: Path) -> Iterator[psutil.Process]:
    """Run a process that has opened a chdb store."""
    with subprocess.Popen(
        [sys.executable, "-c", _FLOOR, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield psutil.Process(process.pid)
        process.kill()


async def connect(url: str, appkey: str, count: int) -> None:
    """Connect devices, say so, and stay connected until the process is killed."""
    devices = [VirtualDevice(url, appkey) for _ in range(count)]
    for device in devices:
        await device.connect()
    print("connected", flush=True)
    while True:
        for device in devices:
            await device.events.get()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100, help="connected devices")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument(
        "--after", type=float, default=10, help="seconds from the devices' connections to the measurement"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--connect", nargs=3, metavar=("URL", "APPKEY", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.connect:
        url, appkey, count = options.connect
        uvloop.run(connect(url, appkey, int(count)))
    with tempfile.TemporaryDirectory() as data:
        with idle_engine(Path(data) / "chdb") as engine:
            rows = measured({"floor: chdb alone": engine}, options.seconds / 3)
        rows |= carillon(options, Path(data) / "carillon")
    if options.json:
        print(json.dumps(rows))
        return
    table = Table(title=f"{options.devices} connected devices, nothing to do for {options.after:.0f} s before")
    table.add_column("")
    for column in rows["all"]:
        table.add_column(column.replace("_", " ").replace(" mib", ", MiB"), justify="right")
    for name, row in rows.items():
        table.add_row(name, *(str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
