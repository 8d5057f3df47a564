"""After the load: everybody gets what waits, and then nobody gets anything that was not just sent."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from testkit.installation.processes import Installation
from tests.soak.apple import ApplePhones
from tests.soak.checks import Case, Finding, differs
from tests.soak.fleet import Fleet
from tests.soak.ledger import Outcome, Push
from tests.soak.pushes import Pushes
from tests.soak.senders import Senders

QUIET_S = 180.0
"""How long anything may take when nothing is in its way."""

LIVE_REPLAYS = ("registry", "targeting", "scheduling", "delivery")
_REPLAY_S = 1800.0
_REPLAY_TRIES = 3
_POLL_S = 0.3
_CALM_PUSHES = 3


class Quiet:
    """Each step returns what it finds."""

    def __init__(self, case: Case, fleet: Fleet, senders: Senders, pushes: Pushes, installation: Installation) -> None:
        self._case = case
        self._fleet = fleet
        self._senders = senders
        self._pushes = pushes
        self._installation = installation

    async def settle(self) -> list[Finding]:
        """Everybody comes back and gets what waits."""
        async with asyncio.timeout(QUIET_S):
            await self._fleet.come_back()
        found = await self._settled()
        self._case.ledger.is_calm = True
        return found

    async def reconnect(self) -> list[Finding]:
        """Who has everything gets nothing when it connects again, also of pushes that are not over: one device misses
        some of them at first."""
        absent = self._fleet.phones[0]
        await absent.disconnect()
        for _ in range(_CALM_PUSHES):
            await self._senders.send(self._pushes.broadcast())
        found = await self._settled(absent.state.token)
        before = self._fleet.frames()
        await self._fleet.come_back(absent=1)
        found += self._fleet.more_than(before, await self._marker(absent.state.token), "reconnect")
        await absent.connect()
        return found + await self._settled()

    async def replay(self, apple: ApplePhones) -> list[Finding]:
        """States built anew equal the live ones, and meanwhile nobody is sent anything."""
        before, ios_before = self._fleet.frames(), apple.frames.total()
        found = [each for role in LIVE_REPLAYS for each in await asyncio.to_thread(verified, self._installation, role)]
        if apple.frames.total() > ios_before:
            found.append(Finding("replay", f"Apple's service was sent {apple.frames.total() - ios_before} pushes"))
        return found + self._fleet.more_than(before, await self._marker(), "replay") + await self._settled()

    async def compare(self) -> list[Finding]:
        """What the service and the log say of a device is what the device knows."""
        devices = {device.token: device for device in self._case.history.devices.values()}
        return [
            Finding("registry", f"device {phone.index} {difference}")
            for phone in self._fleet.phones
            if (difference := differs(phone.state, await phone.known(), devices.get(phone.state.token)))
        ]

    async def _marker(self, absent: str | None = None) -> Push:
        """A push to everybody: when all have it, whatever was sent to them before has come too."""
        push = await self._senders.send(self._pushes.broadcast())
        await self._settled(absent)
        return push

    async def _settled(self, absent: str | None = None) -> list[Finding]:
        """Wait until nothing is pending but for that token; what still is when the time is over is a finding."""
        pending: list[Finding] = []

        async def is_quiet() -> bool:
            await self._case.history.read()
            pending[:] = [*_not_started(self._case), *_not_done(self._case, absent)]
            return not pending

        return [] if await _within(QUIET_S, is_quiet) else pending


def verified(installation: Installation, role: str) -> list[Finding]:
    """Kafka may tidy a compacted topic between the two readings; then they are compared again."""
    last = ""
    for _ in range(_REPLAY_TRIES):
        last = installation.carillon("replay", role, "--verify", "--json", check=False, seconds=_REPLAY_S)
        with contextlib.suppress(ValueError):
            if json.loads(last)["equal"]:
                return []
    return [Finding("replay", f"{role}: {last.strip() or 'it failed'}")]


def _not_started(case: Case) -> Iterator[Finding]:
    for push in case.ledger.pushes:
        if push.cancel in (None, Outcome.REFUSED) and not set(push.ids.values()) <= case.history.sent.keys():
            yield Finding("pending", f"{push.kind} is not in push-commands", tuple(push.ids.values()))
    for msgid in case.history.sent:
        if not case.history.is_started(msgid):
            yield Finding("pending", "it has not started", (msgid,))


def _not_done(case: Case, absent: str | None) -> Iterator[Finding]:
    history = case.history
    for first, sent in history.sent.items():
        is_ios = sent.send.platform == PLATFORM_IOS
        for msgid, place in history.audience(first):
            client = case.client(sent.send.appkey, place)
            if client is None or client.history[0].state.token == absent:
                continue
            if not history.is_settled(first, msgid, place, is_ios):
                yield Finding("pending", f"{client.name} is not done with it", (msgid,))


async def _within(seconds: float, condition: Callable[[], Awaitable[bool]]) -> bool:
    end = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_POLL_S)
    return True
