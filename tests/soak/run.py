"""One run of the ledger test: load with faults, then settling, then all checks."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.kafka.broker import KafkaBroker
from testkit.waiting import until
from tests.soak.analytics_checks import received_violations, statistics_violations, store_violations
from tests.soak.android_device import STAGS, Gateway
from tests.soak.android_devices import AndroidDevices
from tests.soak.checks import Client, Observations, Violation, violations
from tests.soak.faults import FaultInjector
from tests.soak.history import History
from tests.soak.ios_devices import IosDevices
from tests.soak.ledger import Ledger, LedgerFile, Outcome
from tests.soak.plan import EdgeClient, Faults, Plan, Verdict
from tests.soak.pushes import PushGenerator
from tests.soak.senders import Answer, HttpInterface, Senders
from tests.soak.settled_checks import SETTLE_S, SettledChecks

_CALM_S = 3.0
_IOS_DEVICES = 4
_DEAD = "dead" * 16
_AUDITED = 8
_REPLAY_S = 1800.0
_REPLAY_TRIES = 3


class Soak:
    """A run on one installation with its clients and checks; its files are in `directory`. `step`: what it does now."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        installation: Installation,
        faults: Callable[[Ledger], Faults],
        interface: Callable[[str], EdgeClient] = AppServer,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.plan = plan
        self.step = "starting"
        self._ledger_file = LedgerFile(directory / "ledger.jsonl")
        self.ledger = Ledger(self._ledger_file.write)
        self.times: dict[str, float] = {}
        self._directory = directory
        self._installation = installation
        self._interface = interface
        self.faults = faults(self.ledger)

    async def run(self) -> Verdict:
        """Run to the end, and return the verdict with all violations. All processes have ended on return."""
        try:
            async with self._apple() as apple, self._clients(apple) as (android_devices, senders, pushes):
                await self._load(android_devices, senders, apple)
                clients = {**android_devices.clients(), **_iphones(apple)}
                async with self._history() as history:
                    observed = Observations(self.ledger, history, clients)
                    found = await self._checked(observed, android_devices, senders, pushes, apple)
                    timelines = await asyncio.to_thread(self._timelines, found)
                    await android_devices.close()
                    found += await self._stopped(observed)
                    return Verdict(found, timelines, self._counts(observed, apple), observed)
        finally:
            self._ledger_file.close()
            await asyncio.to_thread(self._installation.close)

    async def _checked(
        self,
        observed: Observations,
        android_devices: AndroidDevices,
        senders: Senders,
        pushes: PushGenerator,
        apple: IosDevices,
    ) -> list[Violation]:
        checks = SettledChecks(observed, android_devices, senders, pushes)
        self._at("settling")
        found = await checks.settle()
        self._at("reconnecting")
        found += await checks.reconnect()
        self._at("replaying")
        found += await checks.replay(self._verify, apple.frames.total)
        self._at("comparing")
        found += [*violations(observed), *received_violations(observed), *await checks.compare()]
        for app in self._apps:
            body = {"appkey": app.appkey, "type": 1, "param": {"msgid": -1}}
            answer = await until(partial(self._statistics, senders, body, app.secret_key))
            found += statistics_violations(observed, app.appkey, answer["data"])
        return found

    async def _verify(self, role: str) -> list[Violation]:
        return await asyncio.to_thread(verified, self._installation, role)

    async def _statistics(self, senders: Senders, body: Mapping[str, Any], secret: str) -> Answer | None:
        """Return the answer; None while analytics lacks the newest records."""
        answer = await senders.call("v2", "POST", "/v2/statistics", body, secret, statuses=(200, 503))
        return answer if answer["result"] == 0 else None

    # --- load

    @asynccontextmanager
    async def _apple(self) -> AsyncIterator[IosDevices]:
        """Run the APNs simulator in this process, so that it outlives the faults."""
        apple = IosDevices(self.ledger)
        serving = asyncio.create_task(apple.run(ready := asyncio.Event()))
        await ready.wait()
        authority = self._directory / "apns.pem"
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
    async def _clients(self, apple: IosDevices) -> AsyncIterator[tuple[AndroidDevices, Senders, PushGenerator]]:
        """Start the service and register the devices."""
        self._at("starting")
        await asyncio.to_thread(self._installation.start)
        android, ios = [
            await asyncio.to_thread(self._installation.create_app, platform) for platform in ("android", "ios")
        ]
        await asyncio.to_thread(self._installation.give_key, ios)
        self._apps: tuple[AppCredentials, AppCredentials] = (android, ios)
        pushes = PushGenerator(android, ios, Random(f"{self.plan.seed}/pushes"), self.plan.mixture)
        random = Random(f"{self.plan.seed}/senders")
        senders = Senders(self._interfaces(), pushes, self.ledger, random, self.plan.in_flight)
        gateway = Gateway(self._installation.gateway_url)
        android_devices = AndroidDevices(gateway, android.appkey, self.ledger, self.plan.seed)
        try:
            await self._register_ios(apple, ios)
            async with asyncio.timeout(SETTLE_S):
                await android_devices.begin(self.plan.devices, self.plan.steady)
            yield android_devices, senders, pushes
        finally:
            await android_devices.close()
            await senders.close()

    def _interfaces(self) -> dict[str, HttpInterface]:
        at = self._installation
        urls = {"v2": at.v2_url, "android": at.android_url, "ios": at.ios_url}
        return {name: self._interface(url) for name, url in urls.items()}

    async def _register_ios(self, apple: IosDevices, app: AppCredentials) -> None:
        apple.appkey = app.appkey
        server = self._interface(self._installation.v2_url)
        for index in range(_IOS_DEVICES):
            await apple.register(server, f"{index:02x}" * 32, frozenset(STAGS[: index % 3]))
        await apple.register(server, _DEAD, frozenset())
        await server.close()

    async def _load(self, android_devices: AndroidDevices, senders: Senders, apple: IosDevices) -> None:
        self._at("calm")
        sending = asyncio.create_task(
            senders.send_continuously(self.plan.rate, partial(android_devices.targets, list(apple.histories)))
        )
        await asyncio.sleep(_CALM_S)
        self._at("faults")
        anew = asyncio.create_task(android_devices.reinstall())
        await self.faults.inject(self.plan.seconds - _CALM_S)
        self._at("finishing")
        for task in (sending, anew):
            task.cancel()
        await asyncio.wait([sending, anew])
        async with asyncio.timeout(SETTLE_S):
            await android_devices.leave()
            await senders.finish()

    def _timelines(self, found: Sequence[Violation]) -> list[str]:
        msgids = dict.fromkeys(msgid for violation in found for msgid in violation.msgids)
        return [
            self._installation.carillon("audit", "push", str(msgid), "--allow-behind", check=False)
            for msgid in list(msgids)[:_AUDITED]
        ]

    async def _stopped(self, observed: Observations) -> list[Violation]:
        """Stop the service and check the analytics store, which one process at a time can open."""
        self._at("checking analytics")
        await asyncio.to_thread(self._installation.stop)
        await observed.history.read()
        found = await asyncio.to_thread(verified, self._installation, "analytics")
        return found + await store_violations(observed, self._installation.env)

    @asynccontextmanager
    async def _history(self) -> AsyncIterator[History]:
        history = await History.open(self._installation.env)
        try:
            yield history
        finally:
            await history.close()

    def _counts(self, observed: Observations, apple: IosDevices) -> dict[str, Any]:
        self._at("done")
        clients = observed.clients.values()
        kinds = Counter(push.kind for push in self.ledger.pushes)
        return {
            "requests": len(self.ledger.pushes),
            **{outcome.value: self.ledger.count(outcome) for outcome in Outcome},
            "cancelled": sum(push.cancel is Outcome.ACCEPTED for push in self.ledger.pushes),
            "kinds": len(kinds),
            "pushes in the log": len(observed.history.sent),
            "commands repeated in the log": observed.history.repeated_commands,
            "devices": len(clients),
            "devices without a received registration": len(observed.history.devices) - len(clients) - 1,
            "shown": sum(len(client.shown) for client in clients),
            "frames": sum(len(client.frames) for client in clients) + apple.frames.total(),
            "faults": dict(self.faults.done),
            "ended by themselves": dict(self.faults.ended),
            "seconds": self._lasted(),
        }

    def _at(self, step: str) -> None:
        self.step = step
        self.times[step] = time.monotonic()

    def _lasted(self) -> dict[str, float]:
        steps = list(self.times)
        return {one: round(self.times[two] - self.times[one], 1) for one, two in pairwise(steps)}


def _iphones(apple: IosDevices) -> dict[tuple[str, str], Client]:
    return {
        (apple.appkey, token): Client(f"iOS {token[:4]}", history, apple.shown[token])
        for token, history in apple.histories.items()
        if token != _DEAD
    }


def soak(plan: Plan, directory: Path, broker: KafkaBroker | None = None) -> Soak:
    """Return a run on `carillon up`, or with a broker on a process for each role, with faults that the seed chooses."""
    installation = Installation(directory / "data", broker.bootstrap if broker else None)
    random = Random(f"{plan.seed}/faults")
    return Soak(plan, directory, installation, lambda ledger: FaultInjector(installation, broker, ledger, random))


def verified(installation: Installation, role: str) -> list[Violation]:
    """Compare the live state with a replay; again when Kafka compacted a topic between the two reads."""
    last = ""
    for _ in range(_REPLAY_TRIES):
        last = installation.carillon("replay", role, "--verify", "--json", check=False, seconds=_REPLAY_S)
        with contextlib.suppress(ValueError):
            if json.loads(last)["equal"]:
                return []
    return [Violation("replay", f"{role}: {last.strip() or 'the replay failed'}")]
