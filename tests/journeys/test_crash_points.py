"""The process is killed at every crash point, one after the other, on one data directory under a mixed load."""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from carillon.roles import REPLAYABLE
from carillon_device import DeviceError
from services.process.crashpoint import Point
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.repository import ROOT
from testkit.waiting import until
from tests.journeys.test_push import message

IOS_TOKEN = "cd" * 32
DEVICES = 3
PAUSE_S = 0.05
"""Between two requests of a kind, so that the mailbox of a device that is offline for a moment does not fill."""

LIMIT_S = 300
BACK_OFF_SHARE = 0.02
"""The share of the SDK's longest back-off that devices wait: at most 0.6 s, after any number of failures."""

CHECK_EVERY = 12

CONSUMERS = {
    "follower": ["registry", "registry-aliases", "targeting", "scheduling"],
    "snapshot": ["delivery", "targeting"],
    "command": ["edge"],
}
WITHOUT_FACTS = ["follower-appended@registry-aliases", "follower-appended@targeting"]
"""Consumers that append no facts, or only when an alias has an eleventh device."""


def crash_points() -> Iterator[str]:
    """Yield the name of every crash point, once for each consumer that has it, but those of archive and hand-overs.

    No record gets old enough for the archive here: tests/contract/log/test_archive.py has its crash points. Those of
    hand-overs to push services are in test_hand_over_crashes.py, those of keys and
    erasures in tests/services/domain/test_person_keys.py and tests/services/registry/test_erasures.py.
    """
    for point in Point:
        if point.startswith(("segment-", "claim-", "return-", "keys-", "erasure-")):
            continue
        shared = CONSUMERS.get(point.partition("-")[0])
        for name in [f"{point}@{consumer}" for consumer in shared] if shared else [str(point)]:
            if name not in WITHOUT_FACTS:
                yield name


class CrashingInstallation(Installation):
    """An installation whose process is killed at a crash point."""

    async def start_armed(self, crash_point: str) -> asyncio.subprocess.Process:
        env = {**self.env_of("up"), "PYTHONPATH": str(ROOT), "CARILLON_CRASH_AT": crash_point}
        with self.output().open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "testkit.crashing", "up"), env=env, stdout=output, stderr=output
            )


class Traffic:
    """App servers and devices under a mixed load that goes on across crashes, with the pushes each device must show."""

    def __init__(
        self, installation: CrashingInstallation, app: AppCredentials, ios: AppCredentials, devices: list[VirtualDevice]
    ) -> None:
        self._app = app
        self._ios = ios
        self._devices = devices
        self._v2 = AppServer(installation.v2_url)
        self._android = AppServer(installation.android_url)
        self._serial = itertools.count()
        self._due: list[set[str]] = [set() for _ in devices]
        self._shown: list[Counter[str]] = [Counter() for _ in devices]

    async def run(self) -> None:
        """Run all kinds of load at once until cancelled."""
        await asyncio.gather(*(self._repeat(work) for work in self._kinds()))

    def _kinds(self) -> list[Callable[[str], Awaitable[None]]]:
        return [
            self._broadcast,
            self._token,
            self._tag,
            self._timed,
            self._cancelled,
            self._expiring,
            self._ios_push,
            self._devices_change,
        ]

    async def _repeat(self, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(httpx.TransportError, DeviceError):
                await work(f"{work.__name__} {next(self._serial)}")
            await asyncio.sleep(PAUSE_S)

    async def _push(
        self, scope: int, content: str, to: range, option: dict[str, Any] | None = None, **target: Any
    ) -> int:
        answer = await self._v2.push(message(self._app, scope, content, option, **target), self._app.secret_key)
        if answer["result"] == 0:
            for index in to:
                self._due[index].add(content)
        return int(answer.get("id", 0))

    async def _broadcast(self, content: str) -> None:
        await self._push(1, content, range(DEVICES))

    async def _token(self, content: str) -> None:
        token = self._devices[0].token
        await self._push(5, content, range(1), token={"android": token})

    async def _tag(self, content: str) -> None:
        await self._push(6, content, range(2), stag=[["news"]])

    async def _timed(self, content: str) -> None:
        await self._push(4, content, range(1), {"timed": 2, "send_time_interval": 1}, alias=["alice"])

    async def _cancelled(self, content: str) -> None:
        sent = await self._push(1, content, range(0))
        cancel = {"appkey": self._app.appkey, "msgid": sent}
        await self._android.call("DELETE", "/push", cancel, self._app.secret_key)

    async def _expiring(self, content: str) -> None:
        await self._push(4, content, range(0), {"period": 1}, alias=["away"])
        await asyncio.sleep(0.5)

    async def _ios_push(self, content: str) -> None:
        basic = {"content": content, "is_notif": 1}
        body = {"sendTo": {"appkey": {"ios": self._ios.appkey}, "userScope": 2}, "msgStyle": {"basic": basic}}
        await self._v2.push(body, self._ios.secret_key)

    async def _devices_change(self, content: str) -> None:
        device = self._devices[2]
        for change in ("add_tags", "remove_tags"):
            assert (await device.request({"type": change, "tags": [7]}))["type"] == "ok"
        device.send({"type": "activity", "event": "open"})

    async def all_is_shown(self) -> bool:
        """Return whether each device has shown all its pushes; fail when one was shown twice."""
        for device, shown in zip(self._devices, self._shown, strict=True):
            while not device.events.empty():
                event = device.events.get_nowait()
                if event["type"] == "push":
                    shown[event["content"]] += 1
            assert not {content: count for content, count in shown.items() if count > 1}
        return not any(self.unacknowledged())

    def unacknowledged(self) -> list[set[str]]:
        """Return the pushes that each device has yet to show."""
        return [due - shown.keys() for due, shown in zip(self._due, self._shown, strict=True)]

    async def close(self) -> None:
        await self._v2.close()
        await self._android.close()


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[CrashingInstallation]:
    installation = CrashingInstallation(tmp_path / "data", None)
    installation.env |= {"CARILLON_SNAPSHOT_S": "1", "CARILLON_PARTITIONS": "4"}
    try:
        yield installation
    finally:
        installation.close()


async def registered_devices(installation: CrashingInstallation) -> Traffic:
    """Register three connected devices and an offline one of an app, and one device of an iOS app."""
    app, ios = installation.create_app(), installation.create_app("ios")
    url = installation.gateway_url
    devices = [VirtualDevice(url, app.appkey, random=lambda: BACK_OFF_SHARE) for _ in range(DEVICES + 1)]
    for device, alias in zip(devices, ["alice", "bob", "carol", "away"], strict=True):
        await device.connect()
        assert (await device.request({"type": "set_alias", "alias": alias}))["type"] == "ok"
    for device in devices[:2]:
        assert (await device.request({"type": "add_stags", "stags": ["news"]}))["type"] == "ok"
    await devices[DEVICES].close()
    traffic = Traffic(installation, app, ios, devices[:DEVICES])
    hello = {"type": "hello", "appkey": ios.appkey, "token": IOS_TOKEN}
    server = AppServer(installation.v2_url)
    assert (await server.device_request(hello))["type"] == "welcome"
    await server.close()
    return traffic


async def crash_at(installation: CrashingInstallation, traffic: Traffic, crash_point: str) -> None:
    """Start the process, wait until earlier pushes are shown, then load it until it dies at the crash point."""
    process = await installation.start_armed(crash_point)
    dying = asyncio.create_task(process.wait())
    showing = asyncio.create_task(until(traffic.all_is_shown, LIMIT_S))
    working = None
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait([dying, showing], return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()
            working = asyncio.create_task(traffic.run())
            await asyncio.wait([dying, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            assert await dying == -signal.SIGKILL, f"the process ended before {crash_point}"
    except TimeoutError:
        pytest.fail(f"{crash_point} was never reached; still to be shown: {traffic.unacknowledged()}")
    finally:
        for task in (showing, working):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def checked(installation: CrashingInstallation, traffic: Traffic) -> None:
    """Start without crash point: every push answered with 0 is shown, and every state equals its replay."""
    await asyncio.to_thread(installation.start)
    await until(traffic.all_is_shown, LIMIT_S)
    await asyncio.to_thread(installation.stop)

    async def verified(role: str) -> bool:
        answer = await asyncio.to_thread(installation.carillon, "replay", role, "--verify", "--json", check=False)
        return bool(json.loads(answer)["equal"])

    assert await asyncio.gather(*map(verified, REPLAYABLE)) == [True] * len(REPLAYABLE), REPLAYABLE


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_a_kill_at_every_crash_point_loses_and_repeats_nothing(installation: CrashingInstallation) -> None:
    """Every push that was answered with 0 is shown by its devices exactly once."""
    await asyncio.to_thread(installation.start)
    traffic = await registered_devices(installation)
    await asyncio.to_thread(installation.stop)
    for number, crash_point in enumerate(crash_points(), 1):
        await crash_at(installation, traffic, crash_point)
        if number % CHECK_EVERY == 0:
            await checked(installation, traffic)
    await checked(installation, traffic)
    await traffic.close()
