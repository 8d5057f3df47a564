"""Benchmark of the console: time and size of its pages in a large installation, and operators' effect on pushes.

    python -m bench.console --devices 1000000 --outcomes 10000000
    python -m bench.console --devices 10000 --outcomes 100000 --operators 50 --rate 100

Fills the event log of one installation with the records of devices that register, and of a month of pushes to them
with their outcomes: broadcasts with most of these, the rest multicasts, and a few pushes of other apps. `carillon up`
reads them, and an administrator opens each page of the console: the first answer after the start, then --rounds more.
`with files` is the bytes that a browser with an empty cache downloads for a page, its files included. The floor is the
log-in page, for which the console calls no other role.

Then an app with connected devices sends signed single-token pushes at --rate, in rounds without and with --operators,
of whom each reads a page for about --read seconds and opens the next; every second page is one with live parts, whose
stream of events stays open meanwhile. The times are those of bench.fairness. The rounds alternate, so that ratios hold
on a busy machine. The CPU time that a page takes, with what its stream takes, is what the three processes of `carillon
up` use in the rounds with operators more than in those without, which holds on a busy machine too.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.console.client import ConsoleClient, live_pages, pages
from bench.console.fill import fill
from bench.end_to_end.measured import percentile
from bench.fairness.__main__ import QuietApp, Round, summary
from bench.growth.fill import Rows
from bench.programs import Program, note
from services.process.slices import PROMPT_NS, choose_slice
from testkit.edge.page_weight import page_weight
from testkit.installation.processes import UNLIMITED_REGISTRATIONS, Installation

FLOOR = "/log-in, the floor"
_LOGIN = "operator"
_CHILDREN = ("analytics", "console")
_PARTITIONS = 32
_START_S = 3600.0
_POLL_S = 0.5
_SETTLE_S = 3.0

Row = dict[str, float]


class Measurement:
    """Fills and starts one installation, and measures the pages of its console and its pushes."""

    def __init__(self, data: Path, options: argparse.Namespace) -> None:
        self._options = options
        self.installation = Installation(data, None)
        self.installation.env |= {
            "CARILLON_PARTITIONS": str(_PARTITIONS),
            "CARILLON_LOG_LEVEL": "WARNING",
            **UNLIMITED_REGISTRATIONS,
        }
        self._names: dict[str, str] = {}
        self._cookie = ""
        self.cpu_s: dict[str, float] = {}

    def prepare(self) -> None:
        """Fill the installation and start it."""
        installation, options = self.installation, self._options
        installation.start()
        apps = [installation.create_app() for _ in range(options.apps)]
        made = json.loads(installation.carillon("user", "add", _LOGIN, "--administrator", "--json"))
        asyncio.run(ConsoleClient(installation.console_url()).use_link(made["one_time_token"]))
        installation.stop()
        filling = fill(installation.env_of("up"), [app.appkey for app in apps], options.devices, options.outcomes)
        msgid = asyncio.run(filling)
        note("the roles and analytics read the event log")
        installation.start(seconds=_START_S)
        (token, _) = Rows(installation.data, apps[0].appkey).credentials(1, _PARTITIONS)[0]
        self._names = {"appkey": apps[0].appkey, "msgid": str(msgid), "token": token}
        asyncio.run(self._until_read())
        installation.stop()
        installation.start(seconds=_START_S)

    def close(self) -> None:
        self.installation.close()

    async def _until_read(self) -> None:
        """Wait until analytics answers; then make a team and a draft, which some pages show."""
        client = ConsoleClient(self.installation.console_url())
        await client.log_in(_LOGIN)
        while (await client.get("/pushes")).status_code != 200:
            await asyncio.sleep(_POLL_S)
        self._names["team_id"] = await client.give_to_team(self._names["appkey"])
        self._names["draft_id"] = await client.submit(self._names["appkey"])
        listed = json.loads(self.installation.carillon("user", "list", "--json").splitlines()[0])
        self._names["user_id"] = listed["user_id"]
        await client.http.aclose()

    async def pages(self) -> dict[str, Row]:
        """Return for each page the time of its first answer, percentiles of further ones, and its size."""
        client = ConsoleClient(self.installation.console_url())
        await client.log_in(_LOGIN)
        self._cookie = client.cookie
        rows: dict[str, Row] = {FLOOR: await self._page(client, "/log-in")}
        for name, path in pages(self._names).items():
            rows[name] = await self._page(client, path)
        rows["a review of a broadcast"] = await self._page(client, "")
        await client.http.aclose()
        return rows

    async def _page(self, client: ConsoleClient, path: str) -> Row:
        times_ms = []
        for _ in range(1 + self._options.rounds):
            began = time.perf_counter()
            answer = await (client.get(path) if path else client.review(self._names["appkey"]))
            times_ms.append((time.perf_counter() - began) * 1000)
            assert answer.status_code in (200, 303), (path, answer.status_code, answer.text)
        first, again = times_ms[0], sorted(times_ms[1:])
        weight_kb = await page_weight(client.http, answer) / 1000
        return {
            "first_ms": first,
            "p50_ms": percentile(again, 0.5),
            "p99_ms": percentile(again, 0.99),
            "kb": answer.num_bytes_downloaded / 1000,
            "weight_kb": weight_kb,
        }

    def _cpu_s(self) -> dict[str, float]:
        """Return the CPU time that each process of `carillon up` has used, seconds."""
        of_children = {role: cpu_s(self.installation.child_process(role)) for role in _CHILDREN}
        return {"up": self.installation.cpu_s() - sum(of_children.values()), **of_children}

    def beside_pushes(self) -> tuple[list[Round], dict[str, int]]:
        """Return rounds of pushes without and with the operators, and how many pages these opened."""
        options, installation = self._options, self.installation
        paths = [path for path in pages(self._names).values() if "/why" not in path and "/device" not in path]
        live = live_pages(self._names)
        about: dict[str, Any] = {
            "url": installation.console_url(),
            "cookie": self._cookie,
            "live_paths": live,
            "other_paths": [path for path in paths if path not in live],
            "operators": options.operators,
            "read_s": options.read,
        }
        app = installation.create_app()
        operators = Program([sys.executable, "-m", "bench.console.operators", json.dumps(about)], None)
        try:
            operators.receive()
            choose_slice(PROMPT_NS)  # as the service does, beside which these app servers and devices would not run
            return uvloop.run(self._rounds(QuietApp(installation, app, options), operators))
        finally:
            operators.close()

    async def _rounds(self, quiet: QuietApp, operators: Program) -> tuple[list[Round], dict[str, int]]:
        await quiet.open()
        await quiet.round()
        rounds: list[Round] = []
        opened = {"pages": 0, "refused": 0, "all": 0}
        self.cpu_s = dict.fromkeys(("up", *_CHILDREN), 0.0)
        for number in range(self._options.push_rounds):
            note(f"pushes, round {number + 1} of {self._options.push_rounds}")
            await asyncio.sleep(_SETTLE_S)
            times = [self._cpu_s()]
            without = await quiet.round()
            times.append(self._cpu_s())
            await asyncio.to_thread(operators.request, "start")
            with_operators = await quiet.round()
            times.append(self._cpu_s())
            for name in self.cpu_s:
                self.cpu_s[name] += times[2][name] - 2 * times[1][name] + times[0][name]
            counts = await asyncio.to_thread(operators.request, "stop")
            opened = {name: opened[name] + count for name, count in zip(opened, counts, strict=True)}
            rounds.append({"without": without, "with": with_operators})
        return rounds, opened


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time that a process has used, seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)


def show_pages(rows: dict[str, Row], options: argparse.Namespace) -> None:
    table = Table(title=f"{options.devices:,} devices, {options.outcomes:,} outcomes, {options.apps} apps")
    table.add_column("page")
    for column in ("first, ms", "p50, ms", "p99, ms", "page, KB", "with files, KB"):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:,.1f}" for value in row.values()))
    console = Console(width=130)
    console.print(table)
    console.print("target: each page within 300 ms, the first time too, and at most 200 KB with its files")


def show_pushes(rows: dict[str, dict[str, dict[str, float]]], opened: dict[str, int], options: Any) -> None:
    table = Table(title=f"{options.rate:.0f} pushes/s beside {options.operators} operators")
    for column in ("request to", "operators", "p50 ms", "p99 ms", "max ms"):
        table.add_column(column, justify="right")
    for stage, by_kind in rows.items():
        for kind, columns in by_kind.items():
            table.add_row(stage, kind, *(f"{value:.2f}" for value in columns.values()))
    console = Console(width=130)
    console.print(table)
    seconds = options.push_rounds * options.seconds
    per_s = {name: count / seconds for name, count in opened.items()}
    console.print(f"{per_s['pages']:.1f} pages/s opened, {per_s['refused']:.1f}/s answered with 503")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20_000)
    parser.add_argument("--outcomes", type=int, default=200_000)
    parser.add_argument("--apps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20, help="further answers of each page")
    parser.add_argument("--operators", type=int, default=50)
    parser.add_argument("--read", type=float, default=5.0, help="seconds for which an operator reads a page, about")
    parser.add_argument("--push-rounds", type=int, default=3, help="rounds of pushes; 0: measure the pages only")
    parser.add_argument(
        "--seconds", type=float, default=8, help="of a round of pushes, without and with operators each"
    )
    parser.add_argument("--rate", type=float, default=100, help="pushes a second")
    parser.add_argument("--quiet-devices", type=int, default=20, help="devices that get the pushes")
    parser.add_argument("--directory", type=Path, help="where the data directory is made; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="carillon-bench-", dir=options.directory) as name,
        contextlib.closing(Measurement(Path(name) / "data", options)) as measurement,
    ):
        measurement.prepare()
        rows = asyncio.run(measurement.pages())
        rounds, opened = measurement.beside_pushes() if options.push_rounds else ([], {})
    pushes = summary(rounds) if rounds else {}
    if options.json:
        print(json.dumps({"pages": rows, "pushes": pushes, "opened": opened, "cpu_s": measurement.cpu_s}))
        return
    show_pages(rows, options)
    if rounds:
        show_pushes(pushes, opened, options)
        for name, seconds in measurement.cpu_s.items():
            print(f"CPU of {name}: {seconds / max(1, opened['all']) * 1000:.1f} ms a page")


if __name__ == "__main__":
    main()
