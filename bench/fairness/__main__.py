"""Benchmark of fairness between apps: latency of a quiet app's unicasts, with and without a noisy app's requests.

    python -m bench.fairness --rounds 5 --seconds 10
    python -m bench.fairness --broadcasters 0 --filters 0       a noisy app that only reads statistics

Starts `carillon up` with two apps. The quiet app sends signed single-token pushes at a modest rate; the time is from
the first byte of each request to the push frame at the device. The noisy app has senders that each send the next
request as soon as the last one is answered: broadcasts to its connected devices, tag filters of the largest allowed
size, and statistics. They run in a process of lower priority than the service, so that the service is measured and not
the clients beside it. Rounds without and with the noise alternate in one run, and before a round without noise the
service has become idle; so the ratios hold on a busy machine, although the milliseconds do not.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop
from picows import ws_connect
from rich.console import Console
from rich.table import Table

from bench.end_to_end.__main__ import PARTITIONS, Device, request_body
from bench.end_to_end.measured import percentile
from bench.end_to_end.requests import Requests
from bench.fairness.noise import KINDS
from bench.programs import Program, note
from testkit.installation.app_server import AppCredentials
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation
from testkit.signing import signed

_IDLE = 0.1
"""Part of a core below which the service counts as idle."""

_SETTLE_S = 120.0
_LATE_S = 20.0
"""Longest wait for a round's frames after its last answer; frames that are missing then count with that time."""


class QuietApp:
    """The quiet app: an app server that pushes to its devices at a rate, and measures each push."""

    def __init__(self, installation: Installation, app: AppCredentials, options: argparse.Namespace) -> None:
        self._url = installation.gateway_url
        self._requests = Requests(int(installation.env["CARILLON_V2_PORT"]))
        self._app = app
        self._rate = options.rate
        self._seconds = options.seconds
        self._arrivals: dict[str, float] = {}
        self._device_count = options.quiet_devices
        self._devices: list[Device] = []
        self._sent = 0

    async def open(self) -> None:
        self._devices = [Device(self._app.appkey, self._arrivals) for _ in range(self._device_count)]
        for device in self._devices:
            await ws_connect(lambda device=device: device, self._url, use_aiofastnet=False)
            await device.welcomed
        await self._requests.open()

    async def round(self) -> dict[str, list[float]]:
        """Send pushes for one round; return the milliseconds from each request to its answer, and to its frame."""
        started: dict[str, float] = {}
        answered: dict[str, float] = {}

        async def send(content: str, body: bytes) -> None:
            started[content] = time.monotonic()
            answer = await self._requests.post("/v2/push", body)
            answered[content] = time.monotonic()
            assert answer["result"] == 0, answer

        count = int(self._rate * self._seconds)
        first = time.monotonic()
        tasks = []
        for number in range(count):
            content = f"push {self._sent}"
            device = self._devices[self._sent % len(self._devices)]
            body = signed(request_body(self._app.appkey, device.token, content), self._app.secret_key)
            self._sent += 1
            await asyncio.sleep(max(0.0, first + number / self._rate - time.monotonic()))
            tasks.append(asyncio.create_task(send(content, body)))
        await asyncio.gather(*tasks)
        deadline = time.monotonic() + _LATE_S
        while not all(content in self._arrivals for content in started) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return {
            "answer": [(answered[content] - at) * 1000 for content, at in started.items()],
            "frame": [(self._arrivals.get(content, deadline) - at) * 1000 for content, at in started.items()],
        }


Round = dict[str, dict[str, list[float]]]
"""The milliseconds of one round, by `without` or `with` the noise, then by `answer` or `frame`."""


async def measure(
    quiet: QuietApp, noise: Program, service: psutil.Process, rounds: int
) -> tuple[list[Round], dict[str, int]]:
    await quiet.open()
    await quiet.round()
    measured: list[Round] = []
    sent = dict.fromkeys(KINDS, 0)
    for number in range(rounds):
        note(f"round {number + 1} of {rounds}")
        await _until_idle(service, noise)
        without = await quiet.round()
        await asyncio.to_thread(noise.request, "start")
        with_noise = await quiet.round()
        *counts, _ = await asyncio.to_thread(noise.request, "stop")
        for kind, count in zip(KINDS, counts, strict=True):
            sent[kind] += count
        measured.append({"without": without, "with": with_noise})
    return measured, sent


async def _until_idle(service: psutil.Process, noise: Program) -> None:
    """Return once the service uses little CPU time and the noisy app's devices receive nothing."""
    before = -1
    async with asyncio.timeout(_SETTLE_S):
        while True:
            used = sum(service.cpu_times()[:2])
            await asyncio.sleep(1)
            frames = (await asyncio.to_thread(noise.request, "frames"))[-1]
            if frames == before and sum(service.cpu_times()[:2]) - used < _IDLE:
                return
            before = frames


def run(options: argparse.Namespace, data: Path) -> tuple[list[Round], dict[str, int]]:
    with contextlib.closing(Installation(data, None)) as installation:
        installation.env |= {
            "CARILLON_PARTITIONS": str(PARTITIONS),
            "CARILLON_LOG_LEVEL": "WARNING",
            **UNLIMITED_REGISTRATIONS,
        }
        installation.start()
        quiet, noisy = installation.create_app(), installation.create_app()
        about: dict[str, Any] = {
            "appkey": noisy.appkey,
            "secret": noisy.secret_key,
            "gateway_url": installation.gateway_url,
            "port": int(installation.env["CARILLON_V2_PORT"]),
            "devices": options.devices,
            "broadcasters": options.broadcasters,
            "filter_senders": options.filters,
            "readers": options.readers,
            "token_lists": options.token_lists,
            "wrong_bodies": options.wrong_bodies,
            "string_tags": options.string_tags,
            "groups": options.groups,
            "tags": options.tags,
        }
        noise = Program([sys.executable, "-m", "bench.fairness.noise", json.dumps(about)], None)
        try:
            noise.receive()
            service = next(
                process
                for process in psutil.Process(os.getpid()).children()
                if process.pid != noise.process.pid and "up" in process.cmdline()
            )
            results = uvloop.run(measure(QuietApp(installation, quiet, options), noise, service, options.rounds))
        finally:
            noise.close()
        installation.stop()
        return results


def summary(rounds: list[Round]) -> dict[str, dict[str, dict[str, float]]]:
    """Return p50, p99 and maximum over all rounds in ms, and the ratios of the rounds with noise to those without."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for stage in ("answer", "frame"):
        times = {kind: sorted(ms for each in rounds for ms in each[kind][stage]) for kind in ("without", "with")}
        rows = {
            kind: {"p50": percentile(of, 0.5), "p99": percentile(of, 0.99), "max": of[-1]} for kind, of in times.items()
        }
        rows["ratio"] = {name: rows["with"][name] / rows["without"][name] for name in ("p50", "p99", "max")}
        result[stage] = {
            kind: {name: round(value, 2) for name, value in columns.items()} for kind, columns in rows.items()
        }
    return result


def show(options: argparse.Namespace, rows: dict[str, dict[str, dict[str, float]]], sent: dict[str, int]) -> None:
    table = Table(
        title=f"a quiet app's {options.rate:.0f} unicasts/s, {options.rounds} rounds of {options.seconds:g} s"
    )
    for column in ("request to", "noise", "p50 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for stage, by_kind in rows.items():
        for kind, columns in by_kind.items():
            table.add_row(stage, kind, *(f"{value:.2f}" for value in columns.values()))
    console = Console(width=110)
    console.print(table)
    per_s = ", ".join(f"{count / options.rounds / options.seconds:.1f} {kind}/s" for kind, count in sent.items())
    console.print(f"the noise: {per_s}; target: p50 at most 2 times, p99 at most 4 times that without noise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of a round; each is run without and with the noise")
    parser.add_argument("--rate", type=float, default=50, help="the quiet app's pushes a second")
    parser.add_argument("--quiet-devices", type=int, default=20)
    parser.add_argument("--devices", type=int, default=200, help="connected devices of the noisy app")
    parser.add_argument("--broadcasters", type=int, default=8)
    parser.add_argument("--filters", type=int, default=2, help="senders of the largest allowed filters")
    parser.add_argument("--groups", type=int, default=1000, help="groups of tags in each of a filter's two lists")
    parser.add_argument("--tags", type=int, default=5, help="tags of a group")
    parser.add_argument("--readers", type=int, default=4, help="senders of requests for statistics")
    parser.add_argument("--token-lists", type=int, default=0, help="senders of lists of 1,000 tokens")
    parser.add_argument(
        "--wrong-bodies", type=int, default=0, help="senders of 800 KB that are refused: 200,000 tag groups"
    )
    parser.add_argument("--string-tags", type=int, default=0, help="senders of filters of 1,000 x 100 string tags")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carillon-bench-") as directory:
        rounds, sent = run(options, Path(directory))
    if options.json:
        print(json.dumps({**vars(options), "sent": sent, **summary(rounds)}))
    else:
        show(options, summary(rounds), sent)


if __name__ == "__main__":
    main()
