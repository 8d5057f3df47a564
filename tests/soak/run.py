"""One run: load and misfortunes for a while, then quiet, then every check."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from tests.soak.apple import ApplePhones
from tests.soak.chaos import Chaos
from tests.soak.checks import Case, Client, Finding, findings
from tests.soak.counts import received_findings, statistics_findings, store_findings
from tests.soak.fleet import Fleet
from tests.soak.history import History
from tests.soak.ledger import Ledger, Outcome
from tests.soak.phones import STAGS
from tests.soak.pushes import Pushes
from tests.soak.quiet import QUIET_S, Quiet, verified
from tests.soak.senders import Senders

_CALM_S = 3.0
_IOS_DEVICES = 4
_DEAD = "dead" * 16
_AUDITED = 8


@dataclass(frozen=True)
class Plan:
    """Seconds of load, devices, requests a second; one seed makes the same choices."""

    seconds: float
    devices: int
    rate: float
    seed: int


class Verdict(NamedTuple):
    """What a run came to. `counts` are for people; `timelines` explain the messages of the findings."""

    findings: Sequence[Finding]
    timelines: Sequence[str]
    counts: dict[str, Any]


class Soak:
    """One installation in `directory`, its clients, and their checks. `step` says how far it is."""

    def __init__(self, plan: Plan, directory: Path, broker: KafkaBroker | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.step = "starting"
        self.ledger = Ledger(directory / "ledger.jsonl")
        self.times: dict[str, float] = {}
        self._directory = directory
        self._installation = Installation(directory / "data", broker.bootstrap if broker else None)
        self.chaos = Chaos(self._installation, broker, self.ledger, Random(f"{plan.seed}/chaos"))

    async def run(self) -> Verdict:
        """Raises nothing for what it finds; whatever it started has ended when it returns."""
        try:
            async with self._apple() as apple, self._clients(apple) as (fleet, senders, pushes):
                await self._load(fleet, senders, apple)
                clients = {**fleet.clients(), **_iphones(apple)}
                async with self._history() as history:
                    case = Case(self.ledger, history, clients)
                    found = await self._checked(case, fleet, senders, pushes, apple)
                    timelines = await asyncio.to_thread(self._timelines, found)
                    await fleet.close()
                    found += await self._stopped(case)
                    return Verdict(found, timelines, self._counts(case, apple))
        finally:
            self.ledger.close()
            await asyncio.to_thread(self._installation.close)

    async def _checked(
        self, case: Case, fleet: Fleet, senders: Senders, pushes: Pushes, apple: ApplePhones
    ) -> list[Finding]:
        quiet = Quiet(case, fleet, senders, pushes, self._installation)
        self._at("settling")
        found = await quiet.settle()
        self._at("reconnecting")
        found += await quiet.reconnect()
        self._at("replaying")
        found += await quiet.replay(apple)
        self._at("comparing")
        found += [*findings(case), *received_findings(case), *await quiet.compare()]
        for app in self._apps:
            body = {"appkey": app.appkey, "type": 1, "param": {"msgid": -1}}
            answer = await senders.call("v2", "POST", "/v2/statistics", body, app.secret_key)
            found += statistics_findings(case, app.appkey, answer["data"])
        return found

    # --- load

    @asynccontextmanager
    async def _apple(self) -> AsyncIterator[ApplePhones]:
        """Apple's service lives here, so that it is there whatever is killed."""
        apple = ApplePhones(self.ledger)
        serving = asyncio.create_task(apple.run(ready := asyncio.Event()))
        await ready.wait()
        authority = self._directory / "apple.pem"
        authority.write_text(apple.authority)
        self._installation.env |= {
            "CARILLON_APNS_URL": apple.url,
            "CARILLON_SNAPSHOT_S": "5",
            "SSL_CERT_FILE": str(authority),
        }
        try:
            yield apple
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    @asynccontextmanager
    async def _clients(self, apple: ApplePhones) -> AsyncIterator[tuple[Fleet, Senders, Pushes]]:
        """Starts the service, and registers the devices."""
        self._at("starting")
        await asyncio.to_thread(self._installation.start)
        android, ios = [
            await asyncio.to_thread(self._installation.create_app, platform) for platform in ("android", "ios")
        ]
        await asyncio.to_thread(self._installation.give_key, ios)
        self._apps: tuple[AppCredentials, AppCredentials] = (android, ios)
        pushes = Pushes(android, ios, Random(f"{self.plan.seed}/pushes"))
        senders = Senders(self._installation, pushes, self.ledger, Random(f"{self.plan.seed}/senders"))
        fleet = Fleet(self._installation.gateway_url, android.appkey, self.ledger, self.plan.seed)
        try:
            await self._register_ios(apple, ios)
            async with asyncio.timeout(QUIET_S):
                await fleet.begin(self.plan.devices)
            yield fleet, senders, pushes
        finally:
            await fleet.close()
            await senders.close()

    async def _register_ios(self, apple: ApplePhones, app: AppCredentials) -> None:
        apple.appkey = app.appkey
        server = AppServer(self._installation.v2_url)
        for index in range(_IOS_DEVICES):
            await apple.register(server, f"{index:02x}" * 32, frozenset(STAGS[: index % 3]))
        await apple.register(server, _DEAD, frozenset())
        await server.close()

    async def _load(self, fleet: Fleet, senders: Senders, apple: ApplePhones) -> None:
        self._at("calm")
        sending = asyncio.create_task(
            senders.send_on_and_on(self.plan.rate, partial(fleet.targets, list(apple.histories)))
        )
        await asyncio.sleep(_CALM_S)
        self._at("chaos")
        anew = asyncio.create_task(fleet.register_anew())
        await self.chaos.rage(self.plan.seconds - _CALM_S)
        self._at("finishing")
        for task in (sending, anew):
            task.cancel()
        await asyncio.wait([sending, anew])
        async with asyncio.timeout(QUIET_S):
            await fleet.leave()
            await senders.finish()

    def _timelines(self, found: Sequence[Finding]) -> list[str]:
        msgids = dict.fromkeys(msgid for finding in found for msgid in finding.msgids)
        return [
            self._installation.carillon("audit", "push", str(msgid), check=False) for msgid in list(msgids)[:_AUDITED]
        ]

    async def _stopped(self, case: Case) -> list[Finding]:
        """The analytics store belongs to one process, so it is looked into last."""
        self._at("analytics")
        await asyncio.to_thread(self._installation.stop)
        await case.history.read()
        found = await asyncio.to_thread(verified, self._installation, "analytics")
        return found + await store_findings(case, self._installation.env)

    @asynccontextmanager
    async def _history(self) -> AsyncIterator[History]:
        history = await History.open(self._installation.env)
        try:
            yield history
        finally:
            await history.close()

    def _counts(self, case: Case, apple: ApplePhones) -> dict[str, Any]:
        self._at("done")
        clients = case.clients.values()
        kinds = Counter(push.kind for push in self.ledger.pushes)
        return {
            "requests": len(self.ledger.pushes),
            **{outcome.value: self.ledger.count(outcome) for outcome in Outcome},
            "cancelled": sum(push.cancel is Outcome.ACCEPTED for push in self.ledger.pushes),
            "kinds": len(kinds),
            "pushes in the log": len(case.history.sent),
            "commands repeated in the log": case.history.repeated_commands,
            "devices": len(clients),
            "devices that never heard of it": len(case.history.devices) - len(clients) - 1,
            "shown": sum(len(client.shown) for client in clients),
            "frames": sum(len(client.frames) for client in clients) + apple.frames.total(),
            "misfortunes": dict(self.chaos.done),
            "ended by themselves": dict(self.chaos.ended),
            "seconds": self._lasted(),
        }

    def _at(self, step: str) -> None:
        self.step = step
        self.times[step] = time.monotonic()

    def _lasted(self) -> dict[str, float]:
        steps = list(self.times)
        return {one: round(self.times[two] - self.times[one], 1) for one, two in pairwise(steps)}


def _iphones(apple: ApplePhones) -> dict[tuple[str, str], Client]:
    return {
        (apple.appkey, token): Client(f"iOS {token[:4]}", history, apple.shown[token])
        for token, history in apple.histories.items()
        if token != _DEAD
    }
