"""Pushes as a test sends them, and what became of each."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

from services.apns_simulator.certificate import new_key, public_key
from services.apns_simulator.server import ApnsSimulator
from services.delivery.apns.in_flight import Timeouts
from services.delivery.apns.provider_tokens import ProviderToken
from services.delivery.apns.push import ApnsPush, ApnsResult
from services.delivery.apns.sender import ApnsSender
from services.domain.apns.credentials import ApnsCredentials
from services.runtime.process.clock import Clock, SystemClock
from services.runtime.process.runner import Service

TOKEN = "ab" * 32
TOPIC = "org.example.app"
BOUND_S = 20
Running = TypeVar("Running", bound=Service)


class Sent:
    """One push; `result` is None where it was skipped. Being told twice is an error."""

    def __init__(self, push: ApnsPush, wanted: bool = True) -> None:
        self.push = push
        self.wanted = wanted
        self.result: asyncio.Future[ApnsResult | None] = asyncio.get_running_loop().create_future()

    def is_wanted(self) -> bool:
        return self.wanted

    def answered(self, result: ApnsResult) -> None:
        self.result.set_result(result)

    def skipped(self) -> None:
        self.result.set_result(None)


def one(token: str = TOKEN, **changes: Any) -> ApnsPush:
    given = {"topic": TOPIC, "payload": b'{"aps":{"alert":"hi"}}', "msgid": 7, "expires_ms": 1_900_000_000_999}
    return ApnsPush(token=token, **{**given, **changes})


def asked(prefix: str, number: int = 0) -> str:
    """A device token that asks the stand-in for something."""
    return f"{prefix}{number:0{64 - len(prefix)}x}"


async def send(sender: ApnsSender, *pushes: ApnsPush) -> list[ApnsResult]:
    """The results, in the order of the pushes."""
    sent = [Sent(push) for push in pushes]
    for sending in sent:
        sender.submit(sending)
    async with asyncio.timeout(BOUND_S):
        return [result for sending in sent if (result := await sending.result) is not None]


async def statuses(sender: ApnsSender, *pushes: ApnsPush) -> list[int]:
    return [result.status for result in await send(sender, *pushes)]


class Team:
    """A key that a stand-in knows."""

    def __init__(self, clock: Clock | None = None, key_id: str = "KEY1234567") -> None:
        self.clock = clock or SystemClock()
        self.credentials = ApnsCredentials(key_id, "TEAM123456", TOPIC, new_key())
        self.provider_token = ProviderToken(self.credentials, self.clock)

    def introduce_to(self, simulator: ApnsSimulator) -> None:
        simulator.keys.register(self.credentials.team_id, self.credentials.key_id, public_key(self.credentials.key_pem))

    def sender(
        self, url: str, authority: str | None, timeouts: Timeouts | None = None, connections: int = 1
    ) -> ApnsSender:
        return ApnsSender(url, self.provider_token, self.clock, authority, timeouts, connections)


@contextlib.asynccontextmanager
async def open_sender(
    simulator: ApnsSimulator, clock: Clock | None = None, timeouts: Timeouts | None = None, connections: int = 1
) -> AsyncIterator[ApnsSender]:
    """A sender whose key the stand-in knows."""
    team = Team(clock)
    team.introduce_to(simulator)
    sender = team.sender(simulator.url, simulator.authority, timeouts, connections)
    try:
        yield sender
    finally:
        await sender.close()


@contextlib.asynccontextmanager
async def running(service: Running) -> AsyncIterator[Running]:
    ready = asyncio.Event()
    task = asyncio.create_task(service.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    try:
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(holds: Any) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.001)


def many(tokens: Iterable[str]) -> list[ApnsPush]:
    return [one(token, msgid=number) for number, token in enumerate(tokens)]
