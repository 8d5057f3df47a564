"""Pushes, a team with a signing key, and senders connected to a simulator of Apple's service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

from services.apns_simulator.keys import new_key, public_key
from services.apns_simulator.script import Behaviour
from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.apns.provider_tokens import ProviderToken
from services.delivery.channels.apns.request import ApnsPush, ApnsResult
from services.delivery.channels.apns.sender import ApnsSender
from services.delivery.channels.http2.service_connection import Timeouts
from services.domain.apns_credentials import ApnsCredentials
from services.process.clock import Clock, SystemClock
from testkit.services import TIMEOUT_S, running_services

TOKEN = "ab" * 32
TOPIC = "org.example.app"


class SubmittedPush:
    """A `PendingRequest`; `result` is None if it was skipped. A second callback is an error."""

    def __init__(self, push: ApnsPush, wanted: bool = True) -> None:
        self.request = push
        self.wanted = wanted
        self.result: asyncio.Future[ApnsResult | None] = asyncio.get_running_loop().create_future()

    def is_wanted(self) -> bool:
        return self.wanted

    def answered(self, result: ApnsResult) -> None:
        self.result.set_result(result)

    def skipped(self) -> None:
        self.result.set_result(None)


def make_push(token: str = TOKEN, **changes: Any) -> ApnsPush:
    given = {"topic": TOPIC, "payload": b'{"aps":{"alert":"hi"}}', "msgid": 7, "expires_ms": 1_900_000_000_999}
    return ApnsPush(token=token, **{**given, **changes})


def make_pushes(tokens: Iterable[str]) -> list[ApnsPush]:
    """Return a push for each token, each with its own message id."""
    return [make_push(token, msgid=number) for number, token in enumerate(tokens)]


def submit(sender: ApnsSender, *pushes: ApnsPush) -> list[SubmittedPush]:
    submitted = [SubmittedPush(push) for push in pushes]
    for push in submitted:
        sender.submit(push)
    return submitted


async def send(sender: ApnsSender, *pushes: ApnsPush) -> list[ApnsResult]:
    """Submit pushes; return the results in their order."""
    submitted = submit(sender, *pushes)
    async with asyncio.timeout(TIMEOUT_S):
        return [result for push in submitted if (result := await push.result) is not None]


async def send_for_statuses(sender: ApnsSender, *pushes: ApnsPush) -> list[int]:
    return [result.status for result in await send(sender, *pushes)]


class Team:
    """A team with a signing key, and the current provider token."""

    def __init__(self, clock: Clock | None = None, key_id: str = "KEY1234567") -> None:
        self.clock = clock or SystemClock()
        self.credentials = ApnsCredentials(key_id, "TEAM123456", TOPIC, new_key())
        self.provider_token = ProviderToken(self.credentials, self.clock)

    def register_key(self, simulator: ApnsSimulator) -> None:
        simulator.keys.register(self.credentials.team_id, self.credentials.key_id, public_key(self.credentials.key_pem))

    def sender(
        self, url: str, authority: str | None, timeouts: Timeouts | None = None, connections: int = 1
    ) -> ApnsSender:
        return ApnsSender(url, self.provider_token, self.clock, authority, timeouts, connections)


@contextlib.asynccontextmanager
async def running_simulator(
    clock: Clock | None = None, behaviour: Behaviour | None = None
) -> AsyncIterator[ApnsSimulator]:
    simulator = ApnsSimulator(clock or SystemClock(), behaviour=behaviour)
    async with running_services([simulator]):
        yield simulator


@contextlib.asynccontextmanager
async def open_sender(
    simulator: ApnsSimulator, clock: Clock | None = None, timeouts: Timeouts | None = None, connections: int = 1
) -> AsyncIterator[ApnsSender]:
    """Open a sender to the simulator, with a new key that the simulator knows."""
    team = Team(clock)
    team.register_key(simulator)
    sender = team.sender(simulator.url, simulator.authority, timeouts, connections)
    try:
        yield sender
    finally:
        await sender.close()
