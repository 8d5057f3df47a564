"""Benchmark of takeovers: how long callers wait when the owner of a shard is stopped or killed, beside quiet periods.

    python -m bench.owners --changes 5

Starts a Kafka broker and one process for each role, and a second one of each role with standbys. For each of these
roles a client makes requests that the role has to answer, one after the other: lists of timed messages (scheduling); a
device's new tag, and a push by that tag until the device shows it (targeting); a new device, and a push to an alias
that a device has set just before (registry); a push to one device until it shows it, and a push to all devices with its
cancel (delivery, in which `waiting` messages wait for devices that are not connected). Meanwhile the owner is ended
`changes` times in each way, and started again as the standby. The floor is the same client in as many periods of five
seconds without a change. `median` and `longest` are those of the longest request of each period, or beside each change.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.programs import note
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.definitions import STANDBYS
from testkit.installation.processes import Installation
from testkit.kafka.broker import kafka

_QUIET_S = 5.0
_ANSWERED_AFTER = 20
"""Requests that are answered after a change, before the process is started again."""

_LIST = 1000
_NEEDED = ("registry", "targeting", "scheduling", "delivery", "gateway", "edge")
Use = Callable[[], Awaitable[None]]


class Row(NamedTuple):
    """The requests of one kind beside changes of one kind. `longest_s`: the longest request beside each change."""

    role: str
    request: str
    change: str
    requests: int
    failed: int
    longest_s: list[float]


class Client:
    """Makes the requests of one app; each method is one request, which raises an error where it is not answered."""

    def __init__(self, installation: Installation, app: AppCredentials) -> None:
        self._app = app
        self._server = AppServer(installation.v2_url)
        self._legacy = AppServer(installation.android_url)
        self._gateway_url = installation.gateway_url
        self._device = VirtualDevice(installation.gateway_url, app.appkey)
        self._number = 0

    async def begin(self) -> None:
        await self._device.connect()

    async def list_tasks(self) -> None:
        page = {"appkey": {"android": self._app.appkey}, "page_num": 1, "page_size": 5}
        answer = await self._server.call("POST", "/v2/timedtasklist", page, self._app.secret_key)
        assert answer["result"] == 0, answer

    async def set_tag(self) -> None:
        self._number += 1
        answer = await self._device.request({"type": "add_stags", "stags": [self._tag]})
        assert answer["type"] == "ok", answer
        if self._number > 1:
            await self._device.request({"type": "remove_stags", "stags": [f"tag {self._number - 1}"]})

    async def register(self) -> None:
        device = VirtualDevice(self._gateway_url, self._app.appkey)
        await device.connect()
        await device.close()

    async def push_to_alias(self) -> None:
        self._number += 1
        answer = await self._device.request({"type": "set_alias", "alias": self._tag})
        assert answer["type"] == "ok", answer
        await self._push({"userScope": 4, "alias": [self._tag]})

    async def push_to_device(self) -> None:
        self._number += 1
        await self._push({"userScope": 5, "token": {"android": [self._device.token]}})

    async def cancel(self) -> None:
        self._number += 1
        answer = await self._push({"userScope": 1})
        cancel = {"appkey": self._app.appkey, "msgid": answer["id"]}
        answer = await self._legacy.call("DELETE", "/push", cancel, self._app.secret_key)
        assert answer["result"] == 0, answer

    async def fill(self, waiting: int) -> None:
        """Let so many messages wait for devices that are not connected."""
        tokens = []
        for _ in range(min(_LIST, waiting)):
            device = VirtualDevice(self._gateway_url, self._app.appkey)
            await device.connect()
            tokens.append(device.token)
            await device.close()
        for _ in range(waiting // _LIST):
            self._number += 1
            answer = await self._server.push(
                self._body({"userScope": 5, "token": {"android": tokens}}), self._app.secret_key
            )
            assert answer["result"] == 0, answer

    async def push_by_tag(self) -> None:
        await self.set_tag()
        await self._push({"userScope": 6, "stag": [[self._tag]]})

    async def _push(self, target: dict[str, Any]) -> dict[str, Any]:
        answer = await self._server.push(self._body(target), self._app.secret_key)
        assert answer["result"] == 0, answer
        async with asyncio.timeout(30):
            while (await self._device.events.get()).get("content") != self._tag:
                pass
        return answer

    def _body(self, target: dict[str, Any]) -> dict[str, Any]:
        return {
            "sendTo": {"appkey": {"android": self._app.appkey}, **target},
            "msgStyle": {"basic": {"content": self._tag, "is_notif": 1}, "android": {"title": "T", "sound": True}},
            "option": {"period": 86400},
        }

    async def close(self) -> None:
        await self._device.close()
        await self._legacy.close()
        await self._server.close()

    @property
    def _tag(self) -> str:
        return f"tag {self._number}"


class Measured:
    """Requests in a closed loop: when each ended, how long it took, and how many failed."""

    def __init__(self, use: Use) -> None:
        self.ended: list[tuple[float, float]] = []
        self.failed = 0
        self._use = use

    async def run(self) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                await self._use()
            except (AssertionError, OSError, TimeoutError) as error:
                note(f"failed: {error!r}")
                self.failed += 1
            self.ended.append((time.monotonic(), time.monotonic() - begun_s))

    async def answered(self, count: int) -> None:
        """Return once so many further requests have ended."""
        goal = len(self.ended) + count
        while len(self.ended) < goal:
            await asyncio.sleep(0.02)

    def longest_s(self, since_s: float) -> float:
        return max(seconds for at_s, seconds in self.ended if at_s > since_s)


async def measure(installation: Installation, role: str, request: str, use: Use, changes: int) -> list[Row]:
    """Measure without a change, then beside stops, then beside kills; owner and standby swap roles each time."""
    names = [role, f"{role}-standby"]
    rows = []
    for change, end in (("none", None), ("stop", installation.stop), ("kill", installation.kill)):
        loop = Measured(use)
        running = asyncio.create_task(loop.run())
        await loop.answered(_ANSWERED_AFTER)
        longest_s = []
        for _ in range(changes):
            since_s = time.monotonic()
            if end is None:
                await asyncio.sleep(_QUIET_S)
            else:
                await asyncio.to_thread(end, names[0])
                await loop.answered(_ANSWERED_AFTER)
            longest_s.append(loop.longest_s(since_s))
            if end is not None:
                await asyncio.to_thread(installation.start, names[0])
                names.reverse()
        running.cancel()
        await asyncio.wait([running])
        rows.append(Row(role, request, change, len(loop.ended), loop.failed, longest_s))
        note(f"{role} {request} {change}: {[round(each, 2) for each in longest_s]}")
    return rows


async def measure_roles(
    installation: Installation, app: AppCredentials, changes: int, waiting: int, only: str | None
) -> list[Row]:
    client = Client(installation, app)
    await client.begin()
    uses: list[tuple[str, str, Use]] = [
        ("scheduling", "list of tasks", client.list_tasks),
        ("targeting", "new tag", client.set_tag),
        ("targeting", "push by tag", client.push_by_tag),
        ("registry", "new device", client.register),
        ("registry", "push to an alias", client.push_to_alias),
        ("delivery", "push to a device", client.push_to_device),
        ("delivery", "push to all, and its cancel", client.cancel),
    ]
    rows: list[Row] = []
    for role, request, use in uses:
        if only in (None, role):
            if role == "delivery" and not any(row.role == role for row in rows):
                await client.fill(waiting)
            rows += await measure(installation, role, request, use, changes)
    await client.close()
    return rows


@contextlib.contextmanager
def running_roles(directory: Path) -> Iterator[Installation]:
    """Run the roles that the requests need, on a broker of their own."""
    with kafka(directory / "broker") as broker:
        installation = Installation(directory / "data", broker.bootstrap, standbys=True)
        with contextlib.closing(installation):
            installation.start(*_NEEDED, *STANDBYS)
            yield installation


def table_of(rows: list[Row]) -> Table:
    table = Table("role", "request", "change", "requests", "failed", "median s", "longest s")
    for row in rows:
        figures: list[Any] = [row.requests, row.failed, f"{median(row.longest_s):.2f}", f"{max(row.longest_s):.2f}"]
        table.add_row(row.role, row.request, row.change, *map(str, figures))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=5, help="how often the owner is ended in each way")
    parser.add_argument("--waiting", type=int, default=100_000, help="messages that wait in delivery")
    parser.add_argument("--role", help="measure the requests of this role alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_roles(Path(directory)) as installation:
        app = installation.create_app()
        rows = asyncio.run(measure_roles(installation, app, options.changes, options.waiting, options.role))
    Console(width=100).print(table_of(rows))
    sys.exit(any(row.failed for row in rows))


if __name__ == "__main__":
    main()
