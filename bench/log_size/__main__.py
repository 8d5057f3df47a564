"""Benchmark of the event log: the bytes that a device's registration, a unicast and a broadcast take in each topic.

    python -m bench.log_size --devices 200

Starts `carillon up` and does one thing after the other: devices register, reconnect, and receive, acknowledge and show
unicasts and broadcasts. The table has the bytes of keys and values that each step added to each topic, for one device
(registration, connection), or for one message on one device (unicast, broadcast). Compaction is left out: it keeps the
last record of each device.
"""

import argparse
import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation

BROADCASTS = 10
_SETTLE_S = 3.0
"""Time after which the batches of outcomes and sessions of a step are in the log."""

Step = Callable[[], Awaitable[int]]


class Load:
    """The measured steps; each returns the number of registrations or of messages on devices that it made."""

    def __init__(self, installation: Installation, app: AppCredentials, devices: int) -> None:
        self._app = app
        self._server = AppServer(installation.v2_url)
        self._devices = [VirtualDevice(installation.gateway_url, app.appkey) for _ in range(devices)]

    async def registration(self) -> int:
        for device in self._devices:
            await device.connect()
        return len(self._devices)

    async def unicast(self) -> int:
        for device in self._devices:
            await self._push(5, token={"android": device.token})
            await self._shown(device)
        return len(self._devices)

    async def broadcast(self) -> int:
        for _ in range(BROADCASTS):
            await self._push(1)
            for device in self._devices:
                await self._shown(device)
        return BROADCASTS * len(self._devices)

    async def close(self) -> None:
        for device in self._devices:
            await device.close()
        await self._server.close()

    async def _push(self, scope: int, **target: object) -> None:
        body = {
            "sendTo": {"appkey": {"android": self._app.appkey}, "userScope": scope, **target},
            "msgStyle": {
                "basic": {"content": "x" * 100, "is_notif": 1},
                "android": {"title": "News", "click_action": 1, "click_param": ""},
            },
            "option": {"period": 600},
        }
        answer = await self._server.push(body, self._app.secret_key)
        assert answer["result"] == 0, answer

    async def _shown(self, device: VirtualDevice) -> None:
        async with asyncio.timeout(60):
            while (await device.events.get())["type"] != "push":
                pass


async def measure(devices: int, directory: Path) -> dict[str, dict[str, float]]:
    """Return by step and topic the bytes that were added for each registration or message."""
    found = {}
    with closing(Installation(directory, None)) as installation:
        await asyncio.to_thread(installation.start)
        load = Load(installation, installation.create_app(), devices)
        log = directory / "log" / "events.db"
        before = _bytes_by_topic(log)
        for name, step in {
            "a registration": load.registration,
            "a unicast": load.unicast,
            "a broadcast, a device": load.broadcast,
        }.items():
            times = await step()
            await asyncio.sleep(_SETTLE_S)
            after = _bytes_by_topic(log)
            found[name] = {topic: (size - before[topic]) / times for topic, size in after.items()}
            before = after
        await load.close()
        await asyncio.to_thread(installation.stop)
    return found


def _bytes_by_topic(log: Path) -> Counter[str]:
    with closing(sqlite3.connect(f"{log.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT topic, sum(length(key) + length(value)) FROM records GROUP BY topic")
        return Counter(dict(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(arguments.devices, Path(directory) / "data"))
    table = Table("bytes in the log", *found)
    topics = sorted({topic for sizes in found.values() for topic, size in sizes.items() if size})
    for topic in topics:
        table.add_row(topic, *(f"{sizes.get(topic, 0):.0f}" for sizes in found.values()))
    table.add_row("all", *(f"{sum(sizes.values()):.0f}" for sizes in found.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
