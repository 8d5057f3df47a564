"""The process is killed at points of a hand-over, while a browser's push service and own connections show messages.

Each of the installations is killed at some of the points, one after the other; they run side by side, because most of
the time is the grace for which a new process hands nothing over.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from carillon.commands.role_calls import SOCKET_NAME
from carillon_device import Device, DeviceError, MemoryStorage, Push, Saved
from protos.analytics.v1.analytics_pb2 import AuditPushRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from services.domain.recorded_reasons import ChannelAcceptanceUnknown
from services.errors import CarillonError
from services.net.rpc.channel import connect
from services.push_simulator.http1 import CUT, SimulatorReply
from services.webpush_simulator.requests import AcceptedMessage
from testkit.delivery.mozilla import MozillaPushService, running_firefox
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.services import running_services
from testkit.waiting import until, until_holds
from tests.journeys.test_crash_points import BACK_OFF_SHARE, CrashingInstallation
from tests.journeys.test_firefox import FirefoxSite
from tests.journeys.test_push import message
from tests.journeys.test_web_push import base64url

GRACE_S = 5
PAUSE_S = 0.25
LIMIT_S = 240
ARRIVED = "request-arrived"
TAKEN = "message-taken"
"""Points that the push service reaches: it has read a request and forgets it, or it has taken the message; the process
has no answer."""

SOME_POINTS = (
    ("claim-recorded", TAKEN, "outcomes-appended:3"),
    ("service-sending", ARRIVED, "return-recorded"),
)
POINTS = (
    # A push starts, and a channel claims its messages.
    ("push-decided", "push-started", "push-sent", "claim-decided", "claim-recorded"),
    # A request leaves and is answered.
    ("service-sending", ARRIVED, TAKEN, "service-answered", "service-sending:5"),
    # Outcomes are written: claims, answers, and messages that go back to the own connection.
    ("outcomes-gathered", "outcomes-appended", "outcomes-gathered:3", "outcomes-appended:3", "return-recorded"),
    # What the hand-over stands on: addresses, the snapshot, and a message that is recalled.
    (
        *("follower-appended@registry", "follower-committed@targeting"),
        *("snapshot-taken@delivery", "snapshot-replaced@delivery", "return-recorded:2"),
    ),
)
AWAY, REFUSED, PHONE, BUSY = "away", "400-101.refused", "phone", "503-201.busy"
"""Devices: a browser that has no connection; one whose push service refuses all; a phone that comes and goes, at times
for longer than the grace; and one whose push service wants no requests until the end, so that messages are recalled."""

_FAILED = {"failed": str(ChannelAcceptanceUnknown("errno 101 encryption headers missing"))}
EVERYONE = "everyone"
PUSHES = {AWAY: 12, REFUSED: 12, PHONE: 12, BUSY: 12, EVERYONE: 4}
"""To each device, and to all, between two kills, at most: mailboxes hold 100, however long a busy machine takes."""


class Brought(NamedTuple):
    """When a browser has got a message first, and the topics with which it came."""

    at_s: float
    topics: set[str | None]


class KillingPushService(MozillaPushService):
    """A push service that may kill the process whose request it has read, or whose message it has taken.

    `to_kill`: by the path of the subscriptions of an installation, the point and the process. `calm`: the tokens of
    subscriptions whose scripted answers are over, so that messages are accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.to_kill: dict[str, tuple[str, int]] = {}
        self.calm: set[str] = set()
        self.brought: dict[str, dict[str, Brought]] = {}
        """What browsers have got, by subscription and content."""

    def _scripted_fault(self, token: str) -> str:
        return "" if token in self.calm else super()._scripted_fault(token)

    def _bring(self, message: AcceptedMessage) -> None:
        super()._bring(message)
        if message.token in self.kept:  # of Firefox, whose page says what it has got
            return
        plaintext = self.received[-1].plaintext
        assert plaintext is not None
        of_browser = self.brought.setdefault(message.token, {})
        brought = of_browser.setdefault(json.loads(plaintext)["content"], Brought(time.monotonic(), set()))
        brought.topics.add(message.topic)

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        end = dict(fields)[":path"].rpartition("-")[2]
        point, process = self.to_kill.pop(end, ("", 0))
        if point == ARRIVED:
            os.kill(process, signal.SIGKILL)
            return SimulatorReply(201, [], fault=CUT)
        reply = super().reply_to(fields, body)
        if point == TAKEN:
            os.kill(process, signal.SIGKILL)
            return reply._replace(fault=CUT)
        return reply


class Receiver:
    """A device with an address on a push service, and what its own connection has shown of its messages.

    It keeps what it has seen over that, as the SDK does, so a repetition there is dropped.
    """

    def __init__(self, name: str, subscription: str) -> None:
        self.name = name
        self.subscription = subscription
        self.due: dict[str, int] = {}
        """Contents whose push was answered with 0, and the message ids."""

        self.by_own: dict[str, float] = {}
        """Contents that the own connection has shown, and when."""

        self.repeated: list[str] = []
        self._storage = MemoryStorage()
        self._url = ""
        self._appkey = ""

    async def register(
        self, installation: CrashingInstallation, app: AppCredentials, address: dict[str, Any]
    ) -> dict[str, Any]:
        """Register the device and set its address; return the answer to that."""
        server = AppServer(installation.v2_url)
        welcome = await server.device_request({"type": "hello", "appkey": app.appkey})
        identity = {"appkey": app.appkey, "token": welcome["token"], "key": welcome["key"]}
        answer = await server.device_request({"type": "set_address", "id": 1, **identity, **address})
        await server.close()
        self._storage = MemoryStorage(Saved(welcome["token"], welcome["key"]))
        self._url, self._appkey = installation.gateway_url, app.appkey
        self.token: str = welcome["token"]
        return answer

    @contextlib.asynccontextmanager
    async def connected(self, seconds: float = LIMIT_S) -> AsyncIterator[Device]:
        """Connect; what comes meanwhile is shown. DeviceError: there is nobody to connect to."""
        device = Device(
            self._url, self._appkey, storage=self._storage, on_push=self._show, random=lambda: BACK_OFF_SHARE
        )
        try:
            await device.connect(seconds)
            yield device
        finally:
            await device.close()

    def _show(self, push: Push) -> None:
        if push["content"] in self.by_own:
            self.repeated.append(push["content"])
        self.by_own[push["content"]] = time.monotonic()


class Lane:
    """One installation under load, which is killed again and again. `firefox`: the page of the browser that is AWAY."""

    def __init__(
        self, number: int, data: Path, push_service: KillingPushService, firefox: FirefoxSite | None = None
    ) -> None:
        self.installation = CrashingInstallation(data, None)
        self.installation.env |= {
            "CARILLON_SNAPSHOT_S": "1",
            "CARILLON_PARTITIONS": "4",
            "CARILLON_WEBPUSH": "internet",
            "CARILLON_CHANNEL_GRACE_S": str(GRACE_S),
        }
        self._end = f"lane{number}"
        self._push_service = push_service
        self._firefox = firefox
        self._server = AppServer(self.installation.v2_url)
        self._serial = itertools.count()
        self._pushes_left: Counter[str] = Counter()
        self.receivers = {name: Receiver(name, f"{name}-{self._end}") for name in (AWAY, REFUSED, PHONE, BUSY)}
        self.around_kills: list[tuple[Receiver, str]] = []
        """The last messages before each kill, whose audits are read."""

    async def set_up(self) -> None:
        """Create the app and its devices, then kill the process."""
        carillon = self.installation
        await asyncio.to_thread(carillon.start)
        self.app = await asyncio.to_thread(carillon.create_app)
        await asyncio.to_thread(
            carillon.carillon, "app", "set", self.app.appkey, "--webpush", "new",
            "--webpush-contact", "mailto:push@example.org", "--webpush-hosts", self._push_service.authority,
            "--web-origins", self._firefox.url.rstrip("/") if self._firefox else "none",
        )  # fmt: skip

        async def key() -> str | None:
            async with httpx.AsyncClient(base_url=carillon.v2_url) as client:
                answer = (await client.get("/device/v1/webpush-key", params={"appkey": self.app.appkey})).json()
            found: str | None = answer.get("key")
            return found

        self._key = await until(key, LIMIT_S)
        for receiver in self.receivers.values():
            if receiver.name == AWAY and self._firefox is not None:
                await self._subscribe_firefox(receiver, self._firefox)
            else:
                answer = await receiver.register(carillon, self.app, self._address(receiver.subscription))
                assert answer["type"] == "ok", answer
        await asyncio.to_thread(carillon.kill)

    async def _subscribe_firefox(self, receiver: Receiver, site: FirefoxSite) -> None:
        await asyncio.wait_for(self._push_service.has_client.wait(), LIMIT_S)
        self._push_service.ends[self._key] = self._end
        site.begin(self.installation, self.app)
        receiver.token = await site.subscribed()
        receiver.subscription = self._push_service.latest[self._key]

    def _address(self, token: str) -> dict[str, Any]:
        browser = self._push_service.subscribe(token, self._key)
        keys = {"p256dh": base64url(browser.p256dh), "auth": base64url(browser.auth)}
        return {"channel": "webpush", "address": self._push_service.endpoint(browser), "keys": keys}

    async def crash_at(self, point: str) -> None:
        """Start the process, and load it until it dies at the point."""
        is_by_service = point in (ARRIVED, TAKEN)
        self._pushes_left = Counter(PUSHES)
        process = await self.installation.start_armed("none" if is_by_service else point)
        if is_by_service:
            self._push_service.to_kill[self._end] = point, process.pid
        dying = asyncio.create_task(process.wait())
        working = asyncio.create_task(self._load())
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.wait([dying, working], return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    working.result()
                assert await dying == -signal.SIGKILL, f"the process ended before {point}"
        except TimeoutError:
            pytest.fail(f"{point} was never reached")
        finally:
            working.cancel()
            await asyncio.wait([working])
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for receiver in self.receivers.values():
            own = [content for content in receiver.due if content.startswith(receiver.name)]
            self.around_kills += [(receiver, content) for content in own[-2:]]

    async def _load(self) -> None:
        """Send pushes, and let the phones come and go, until cancelled."""
        away, refused, phone, busy = self.receivers.values()
        works: list[tuple[Callable[[str], Awaitable[None]], Sequence[float]]] = [
            *((partial(self._push, receiver), [PAUSE_S]) for receiver in (away, refused, phone, busy)),
            (partial(self._come_and_go, phone), [PAUSE_S, PAUSE_S, GRACE_S + 2]),
            (partial(self._come_and_go, busy), [4 * PAUSE_S]),
            (self._push_to_everyone, [4 * PAUSE_S]),
            (self._new_browser, [4 * PAUSE_S]),
        ]
        await asyncio.gather(*(self._repeat(work, pauses_s) for work, pauses_s in works))

    async def _repeat(self, work: Callable[[str], Awaitable[None]], pauses_s: Sequence[float]) -> None:
        for pause_s in itertools.cycle(pauses_s):
            with contextlib.suppress(httpx.TransportError, DeviceError, KeyError):
                await work(f"{self._end} {next(self._serial)}")
            await asyncio.sleep(pause_s)

    async def _push(self, to: Receiver, content: str) -> None:
        """Send a push, unless enough were sent. To the phone that is recalled it is urgent: there is no grace."""
        importance = "high" if to.name == BUSY else "normal"
        await self._send(to.name, [to], 5, content, importance, token={"android": to.token})

    async def _push_to_everyone(self, content: str) -> None:
        """Send a broadcast, whose start is in the log before it is sent."""
        await self._send(EVERYONE, list(self.receivers.values()), 1, content, "normal")

    async def _send(
        self, name: str, to: Sequence[Receiver], scope: int, content: str, importance: str, **target: Any
    ) -> None:
        if not self._pushes_left[name]:
            return
        option = {"period": 86_400, "channel": {"importance": importance}}
        body = message(self.app, scope, f"{name} {content}", option, **target)
        sent = await self._server.push(body, self.app.secret_key)
        self._pushes_left[name] -= 1
        if sent["result"] == 0:
            for receiver in to:
                receiver.due[f"{name} {content}"] = sent["id"]

    async def _come_and_go(self, receiver: Receiver, _: str) -> None:
        async with receiver.connected(seconds=2):
            await asyncio.sleep(PAUSE_S)

    async def _new_browser(self, content: str) -> None:
        """Register another browser, whose address the registry and targeting follow."""
        address = self._address(f"{content.replace(' ', '.')}-{self._end}")
        await Receiver("another", "").register(self.installation, self.app, address)

    async def check(self) -> None:
        """Start without a crash point: all is shown, by one way each, and the audits say by which.

        What the own connection has shown, and a kill has left without an acknowledgement, the push service may bring
        later: apps drop what they have had. Never is it the other way round. What a push service refuses after a kill,
        and may have accepted before it, is not shown: the audit calls it failed.
        """
        _, refused, _, busy = self.receivers.values()
        self._push_service.calm.add(busy.subscription)
        await asyncio.to_thread(self.installation.start)
        channel = connect(f"unix:{self.installation.data / SOCKET_NAME}")
        analytics = AnalyticsServiceStub(channel)
        async with refused.connected(), busy.connected():
            await until_holds(lambda: self._missing().keys() <= {REFUSED}, LIMIT_S)

            async def refused_ones_ended() -> bool:
                missing = self._missing().get(REFUSED, set())
                return all([await self._ends(analytics, refused, content) == _FAILED for content in missing])

            await until(refused_ones_ended, LIMIT_S)
            failed = self._missing().get(REFUSED, set())
        for receiver, content in self.around_kills:
            await until(partial(self._is_told, analytics, receiver, content), LIMIT_S)
        await channel.close()
        await asyncio.to_thread(self.installation.stop)
        assert {name: missing - failed for name, missing in self._missing().items()} in ({}, {REFUSED: set()})
        for receiver in self.receivers.values():
            assert not receiver.repeated, "shown twice by the own connection"
            brought = self._by_service(receiver)
            assert {len(each.topics) for each in brought.values()} <= {1}, "a repetition has another topic"
            by_both = brought.keys() & receiver.by_own.keys()
            assert receiver.name in (PHONE, BUSY) or not by_both, "shown by two ways"
            assert not {content for content in by_both if receiver.by_own[content] > brought[content].at_s}
        assert not self._by_service(refused)
        assert self._firefox is None or set(self._firefox.shown.values()) == {1}, "shown twice by Firefox"
        await self._server.close()

    async def is_replayed(self) -> bool:
        """Whether a replay of delivery equals its state; the process has stopped."""
        command = ("replay", "delivery", "--verify", "--json")
        answer = await asyncio.to_thread(self.installation.carillon, *command, check=False)
        return bool(json.loads(answer)["equal"])

    async def _is_told(self, analytics: Any, receiver: Receiver, content: str) -> bool:
        """Whether the audit tells the end of the message that was seen; it may be behind the log.

        A message that was shown without an acknowledgement may be brought by the push service meanwhile.
        """
        ends = await self._ends(analytics, receiver, content)
        by_service, by_own = content in self._by_service(receiver), content in receiver.by_own
        if by_service and by_own:
            return True
        if not by_service and not by_own:
            return ends == _FAILED
        if by_own:
            return ends == {"received": ""}
        if receiver.name == AWAY and self._firefox is not None:  # its worker acknowledges, also before the answer
            return {"handed_over": "", "received": ""}.items() >= ends.items() != set()
        return ends == {"handed_over": ""}

    async def _ends(self, analytics: Any, receiver: Receiver, content: str) -> dict[str, str]:
        """Return the ends of the message on the device that the audit has, with their reasons."""
        asked = AuditPushRequest(msgid=receiver.due[content], token=receiver.token, device_only=True)
        try:
            answer = await analytics.AuditPush(asked, timeout=30)
        except CarillonError:
            return {}
        ends = ("handed_over", "received", "failed")
        return {entry.event: entry.reason for entry in answer.device.timeline if entry.event in ends}

    def _by_service(self, receiver: Receiver) -> dict[str, Brought]:
        """Return what the push service has brought the receiver, by content."""
        if receiver.name == AWAY and self._firefox is not None:
            return {content: Brought(0, {None}) for content in self._firefox.shown}
        return self._push_service.brought.get(receiver.subscription, {})

    def _missing(self) -> dict[str, set[str]]:
        """Return by device the contents that are due and were shown by no way."""
        found = {
            each.name: each.due.keys() - each.by_own.keys() - self._by_service(each).keys()
            for each in self.receivers.values()
        }
        return {name: contents for name, contents in found.items() if contents}


@pytest.fixture
async def push_service() -> AsyncIterator[KillingPushService]:
    service = KillingPushService()
    async with running_services([service]):
        yield service


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("points", "has_firefox"),
    [
        pytest.param(SOME_POINTS, False, id="6"),
        pytest.param(POINTS, False, marks=pytest.mark.seeds, id="20"),
        pytest.param(POINTS, True, marks=pytest.mark.seeds, id="20 with Firefox"),
    ],
)
async def test_a_kill_at_points_of_a_hand_over_loses_and_repeats_nothing(
    tmp_path: Path, push_service: KillingPushService, points: Sequence[Sequence[str]], has_firefox: bool
) -> None:
    """Each push answered with 0 is shown once: by the push service or the own connection, and the audit says which.

    A replay of delivery equals its state, and asks the push service for nothing.
    """
    paths = [tmp_path / str(number) for number in range(len(points))]
    sites = [FirefoxSite(tmp_path / f"site{number}") if has_firefox else None for number in range(len(points))]
    lanes = [Lane(number, path, push_service, sites[number]) for number, path in enumerate(paths)]
    pages = [site.url for site in sites if site is not None]

    async def run(lane: Lane, points_of_lane: Sequence[str]) -> None:
        await lane.set_up()
        for point in points_of_lane:
            await lane.crash_at(point)
        await lane.check()

    try:
        async with contextlib.AsyncExitStack() as stack:
            if pages:
                await stack.enter_async_context(running_firefox(tmp_path / "profile", push_service, *pages))
            async with asyncio.TaskGroup() as group:
                for lane, points_of_lane in zip(lanes, points, strict=True):
                    group.create_task(run(lane, points_of_lane))
        requests = push_service.requests
        assert await asyncio.gather(*(lane.is_replayed() for lane in lanes)) == [True] * len(lanes)
        assert push_service.requests == requests
    finally:
        for lane in lanes:
            lane.installation.close()
        for site in filter(None, sites):
            await site.close()
