"""RequestLimiter: which requests wait for others, beside which apps, and until when."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvicorn
from falcon.asgi import Request

from edge.core.parsing import canonical
from edge.core.request_limiter import LARGE_BODY_BYTES, MAX_WAITING_PER_KIND, REQUESTS_BESIDE_OTHERS, RequestLimiter
from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, GetBroadcastRequest, GetBroadcastResponse
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceServicer, add_DeliveryServiceServicer_to_server
from protos.push.v1.push_pb2 import SendPush
from services.domain.topics import TOPICS
from services.errors import NotFoundError, TooManyRequestsError, TryLaterError
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context, Server
from services.process.clock import ManualClock
from services.replica.peers import Peers

PUSH = SendPush(appkey="another of the request's apps", msgid=7)


async def steps() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class Delivery(DeliveryServiceServicer):
    """A delivery that has not read any push yet, and then starts it."""

    def __init__(self) -> None:
        self.read = self.started = False

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        if not self.read or (request.appkey, request.msgid) != (PUSH.appkey, PUSH.msgid):
            raise NotFoundError("not read yet")
        return GetBroadcastResponse(is_starting=not self.started)

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        raise AssertionError
        yield


class Edge:
    """Turns beside a delivery. `calls` are the requests that have entered."""

    def __init__(self, *active: str) -> None:
        self.clock = ManualClock(0)
        self.delivery = Delivery()
        server = LocalServer()
        add_DeliveryServiceServicer_to_server(self.delivery, cast(Server, server))
        self.limiter = RequestLimiter(self.clock, Peers({"delivery": [server.channel()]}, TOPICS))
        self.active = active
        self.entered: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._answered: dict[str, asyncio.Event] = {}

    async def begin(self) -> None:
        for appkey in self.active:
            await self.call(appkey)
            await self.answer(appkey)
        self.entered.clear()

    async def call(self, name: str, *, is_broadcast: bool = False, listed: int = 0, size: int = 100) -> None:
        """Start a request; the app is the name up to a digit."""
        self._answered[name] = asyncio.Event()
        task = asyncio.create_task(self._call(name, is_broadcast, listed, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await steps()

    async def answer(self, *names: str) -> None:
        for name in names:
            self._answered[name].set()
            await steps()

    async def move(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.clock.move(0.01)
            await steps()

    async def _call(self, name: str, is_broadcast: bool, listed: int, size: int) -> None:
        appkey = name.rstrip("0123456789")

        async def handle(scope: Any, receive: Any, send: Any) -> None:
            request = cast(Request, SimpleNamespace(scope=scope))
            await self.limiter.enter(request, appkey, size)
            if is_broadcast or listed:
                await self.limiter.enter_broadcast_or_multicast(request, appkey)
            self.entered.append(name)
            await self._answered[name].wait()
            if is_broadcast:
                self.limiter.keep_until_started(request, appkey, PUSH)
            elif listed:
                self.limiter.keep_for_targets(request, appkey, listed)

        async def unused(*_: Any) -> Any:
            raise AssertionError

        await self.limiter.application(handle)({}, unused, unused)


async def test_an_app_has_a_bounded_number_of_requests_in_work_and_another_enters_at_once() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    for number in range(REQUESTS_BESIDE_OTHERS + 3):
        await edge.call(f"noisy{number}")
    assert len(edge.entered) == REQUESTS_BESIDE_OTHERS
    await edge.call("quiet")
    assert edge.entered[-1] == "quiet"
    await edge.answer("noisy0")
    assert edge.entered[-1] == f"noisy{REQUESTS_BESIDE_OTHERS}"


async def test_an_app_alone_waits_for_nothing() -> None:
    edge = Edge("only")
    await edge.begin()
    for number in range(200):
        await edge.call(f"only{number}", is_broadcast=number % 2 == 0)
    assert len(edge.entered) == 200


async def test_beside_others_a_broadcast_waits_until_the_last_has_started_and_for_a_rest() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    await edge.call("noisy1", is_broadcast=True)
    await edge.call("noisy2", is_broadcast=True)
    await edge.answer("noisy1")
    await edge.move(0.1)
    edge.delivery.read = True
    await edge.move(0.1)
    assert edge.entered == ["noisy1"]
    edge.delivery.started = True
    await edge.move(0.1)
    assert edge.entered == ["noisy1"]
    await edge.call("noisy3")
    await edge.call("quiet1", is_broadcast=True)
    assert edge.entered == ["noisy1", "noisy3", "quiet1"]
    await edge.move(0.8)
    assert edge.entered[-1] == "noisy2"


async def test_a_delivery_that_starts_nothing_delays_an_app_by_a_bounded_time() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    edge.delivery.read = True
    await edge.call("noisy1", is_broadcast=True)
    await edge.answer("noisy1")
    await edge.call("noisy2", is_broadcast=True)
    await edge.move(4.1)
    assert edge.entered == ["noisy1", "noisy2"]


async def test_beside_others_a_long_list_waits_for_the_time_of_the_last_ones_targets_and_for_a_rest() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    await edge.call("noisy1", listed=1000)
    await edge.call("noisy2", listed=1000)
    await edge.call("quiet1", listed=1000)
    assert edge.entered == ["noisy1", "quiet1"]
    await edge.answer("noisy1")
    await edge.move(0.23)
    assert edge.entered == ["noisy1", "quiet1"]
    await edge.move(0.01)
    assert edge.entered == ["noisy1", "quiet1", "noisy2"]


async def test_an_app_alone_sends_long_lists_without_waiting() -> None:
    edge = Edge("only")
    await edge.begin()
    await edge.call("only1", listed=1000)
    await edge.answer("only1")
    await edge.call("only2", listed=1000)
    assert edge.entered == ["only1", "only2"]


async def test_beside_others_an_apps_queries_run_half_of_the_time_and_anothers_at_once() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    first, second, other = (cast(Request, SimpleNamespace(scope={})) for _ in range(3))
    await edge.limiter.enter_query(first, "noisy")
    waiting = asyncio.create_task(edge.limiter.enter_query(second, "noisy"))
    await edge.limiter.enter_query(other, "quiet")
    await edge.move(0.2)
    first.scope.pop("carillon.slot").release()
    await edge.move(0.19)
    assert not waiting.done()
    await edge.move(0.01)
    assert waiting.done()


async def test_waiting_broadcasts_are_bounded() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    for number in range(MAX_WAITING_PER_KIND + 1):
        await edge.call(f"noisy{number}", is_broadcast=True)
    refused = cast(Request, SimpleNamespace(scope={}))
    with pytest.raises(
        TooManyRequestsError, match="too many broadcasts, multicasts and long lists wait already"
    ) as error:
        await edge.limiter.enter_broadcast_or_multicast(refused, "noisy")
    assert error.value.retry_after_s == 1
    await edge.call("quiet", is_broadcast=True)
    assert edge.entered == ["noisy0", "quiet"]


async def test_a_request_that_waits_when_the_server_stops_is_answered_with_retry_after() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    await edge.call("noisy1", is_broadcast=True)
    request = cast(Request, SimpleNamespace(scope={}))
    reason = "Task cancelled, timeout graceful shutdown exceeded"
    assert reason in inspect.getsource(uvicorn.Server.shutdown)
    waiting = asyncio.create_task(edge.limiter.enter_broadcast_or_multicast(request, "noisy"))
    await steps()
    waiting.cancel(reason)
    with pytest.raises(TryLaterError, match="the service is stopping") as error:
        await waiting
    assert error.value.retry_after_s == 1


async def test_a_request_that_is_carried_out_when_the_server_stops_is_answered_as_a_fault() -> None:
    edge = Edge("noisy", "quiet")
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    for reason, expected in (("Task cancelled, timeout graceful shutdown exceeded", True), ("another reason", False)):
        sent.clear()
        limited = edge.limiter.application(application)
        request = asyncio.ensure_future(limited({"type": "http", "path": "/v2/push"}, None, send))  # type: ignore[arg-type]
        await steps()
        request.cancel(reason)
        await asyncio.wait([request])
        assert request.cancelled() is not expected
        assert [message.get("status") for message in sent] == ([200, None] if expected else [])
        assert not expected or json.loads(sent[1]["body"]) == {"result": 500, "desc": "internal error"}


async def test_large_bodies_are_parsed_address_by_address_and_small_ones_at_once() -> None:
    edge = Edge("noisy", "quiet")
    await edge.begin()
    large = b'{"sign":"x","fill":"' + b"x" * LARGE_BODY_BYTES + b'"}'
    parsed: list[str] = []

    async def parse(address: str, raw: bytes) -> None:
        await edge.limiter.in_turns(address, len(raw), canonical.reading(raw, len))
        parsed.append(address)

    slot = await edge.limiter._bodies.acquire("elsewhere")
    tasks = [asyncio.create_task(parse(address, large)) for address in ("a", "a", "a", "b")]
    await steps()
    await parse("c", b'{"sign":"x"}')
    assert parsed == ["c"]
    slot.release()
    await asyncio.gather(*tasks)
    assert parsed[:3] in (["c", "a", "b"], ["c", "b", "a"])
    assert parsed[3:] == ["a", "a"]


async def test_beside_an_app_large_bodies_of_all_addresses_together_are_parsed_a_quarter_of_the_time() -> None:
    edge = Edge("quiet")
    await edge.begin()
    slot = await edge.limiter._bodies.acquire("a")
    large = b'{"sign":"x","fill":"' + b"x" * LARGE_BODY_BYTES + b'"}'
    waiting = [
        asyncio.create_task(edge.limiter.in_turns(address, len(large), canonical.reading(large, len)))
        for address in ("a", "b", "c")
    ]
    await edge.move(0.2)
    slot.release()
    await edge.move(0.59)
    assert not any(task.done() for task in waiting)
    await edge.move(0.01)
    assert all(task.done() for task in waiting)
