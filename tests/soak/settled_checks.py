"""Checks after the load: all pending pushes arrive, and then only new pushes are sent."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from tests.soak.android_devices import AndroidDevices
from tests.soak.checks import Observations, Violation, differs
from tests.soak.ledger import Outcome
from tests.soak.pushes import PushGenerator
from tests.soak.senders import Senders

SETTLE_S = 180.0
"""The time limit of any step without faults."""

LIVE_REPLAYS = ("registry", "targeting", "scheduling", "delivery")
_POLL_S = 0.3
_CALM_PUSHES = 3


class SettledChecks:
    """The steps of these checks; each returns the violations that it has found.

    `settle_s`: how long it may take until nothing is pending.
    """

    def __init__(
        self,
        observed: Observations,
        android_devices: AndroidDevices,
        senders: Senders,
        pushes: PushGenerator,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._observed = observed
        self._android_devices = android_devices
        self._senders = senders
        self._pushes = pushes
        self._settle_s = settle_s

    async def settle(self) -> list[Violation]:
        """Connect all devices and wait until nothing is pending."""
        async with asyncio.timeout(SETTLE_S):
            await self._android_devices.reconnect_all()
        return await self._settled()

    async def reconnect(self) -> list[Violation]:
        """Check that devices with all their pushes get none again when they reconnect; one device misses some first."""
        absent = self._android_devices.devices[0]
        await absent.disconnect()
        for _ in range(_CALM_PUSHES):
            await self._senders.send(self._pushes.broadcast())
        found = await self._settled(absent.state.token)
        before, known = self._android_devices.frames(), self._known()
        await self._android_devices.reconnect_all(absent=1)
        await self._push_to_all(absent.state.token)
        found += self._android_devices.unexpected_frames(before, known, "reconnect")
        await absent.connect()
        return found + await self._settled()

    async def replay(
        self, verify: Callable[[str], Awaitable[list[Violation]]], sent_to_apns: Callable[[], int]
    ) -> list[Violation]:
        """Check that a replay sends nothing to devices, and that rebuilt states equal the live ones (`verify`)."""
        before, known, ios_before = self._android_devices.frames(), self._known(), sent_to_apns()
        found = [each for role in LIVE_REPLAYS for each in await verify(role)]
        if sent_to_apns() > ios_before:
            found.append(Violation("replay", f"{sent_to_apns() - ios_before} pushes were sent to APNs"))
        await self._push_to_all()
        return found + self._android_devices.unexpected_frames(before, known, "replay") + await self._settled()

    async def compare(self) -> list[Violation]:
        """Check that the service and the log have the state of each device that the device has."""
        devices = {device.token: device for device in self._observed.history.devices.values()}
        return [
            Violation("registry", f"device {device.index} {difference}")
            for device in self._android_devices.devices
            if (difference := differs(device.state, await device.known(), devices.get(device.state.token)))
        ]

    def _known(self) -> frozenset[int]:
        """Return the ids of all messages in the log so far. A request without an answer may add some at any time."""
        return frozenset(
            msgid for first in self._observed.history.sent for msgid, _ in self._observed.history.audience(first)
        )

    async def _push_to_all(self, absent: str | None = None) -> None:
        """Push to all devices: once they have it, everything sent before has arrived too."""
        await self._senders.send(self._pushes.broadcast())
        await self._settled(absent)

    async def _settled(self, absent: str | None = None) -> list[Violation]:
        """Wait until nothing is pending, the absent token aside; what is pending after the limit is a violation."""
        pending: list[Violation] = []

        async def is_settled() -> bool:
            await self._observed.history.read()
            pending[:] = [*_not_started(self._observed), *_not_done(self._observed, absent)]
            return not pending

        return [] if await _within(self._settle_s, is_settled) else pending


def _not_started(observed: Observations) -> Iterator[Violation]:
    for push in observed.ledger.pushes:
        if observed.ledger.may_expire_unsent(push):
            continue
        if push.cancel in (None, Outcome.REFUSED) and not set(push.ids.values()) <= observed.history.sent.keys():
            yield Violation("pending", f"{push.kind} is not in push-commands", tuple(push.ids.values()))
    for msgid in observed.history.sent:
        if not observed.history.is_started(msgid):
            yield Violation("pending", "the push has not started in all its partitions", (msgid,))


def _not_done(observed: Observations, absent: str | None) -> Iterator[Violation]:
    history = observed.history
    for first, sent in history.sent.items():
        is_ios = sent.send.platform == PLATFORM_IOS
        for msgid, device_number in history.audience(first):
            client = observed.client(sent.send.appkey, device_number)
            if client is None or client.history[0].state.token == absent:
                continue
            if not history.is_settled(first, msgid, device_number, is_ios):
                yield Violation("pending", f"{client.name} has no final outcome for the message", (msgid,))


async def _within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> bool:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await condition():
        if loop.time() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True
