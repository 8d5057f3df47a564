"""Calls between roles: the same behaviour inside one process and over a socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from protos.analytics.v1.analytics_pb2 import AuditPushRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse, Close
from protos.delivery.v1.delivery_pb2_grpc import (
    DeliveryServiceServicer,
    DeliveryServiceStub,
    add_DeliveryServiceServicer_to_server,
)
from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import (
    PositionsServiceServicer,
    PositionsServiceStub,
    add_PositionsServiceServicer_to_server,
)
from services.runtime.errors import BY_CODE, CarillonError, DeadlineError, InputError, NotFoundError, UnavailableError
from services.runtime.rpc.channel import Channel, connect
from services.runtime.rpc.local import LocalServer
from services.runtime.rpc.server import Context, Server, serve

BOUND_S = 10.0
CANARY = "canary-7f3a"


class Positions(PositionsServiceServicer):
    """A servicer that answers as the test says, and records when a call began and whether it was cancelled."""

    def __init__(self) -> None:
        self.answer: Callable[[AwaitRequest], AwaitResponse] = lambda request: AwaitResponse(produced=request.positions)
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self.hangs = False

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        self.began.set()
        try:
            if self.hangs:
                await asyncio.Event().wait()
            return self.answer(request)
        finally:
            self.ended.set()


class Delivery(DeliveryServiceServicer):
    """A servicer that returns each gateway's name; the name may ask for an error instead."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        try:
            async for request in requests:
                if request.gateway == "wrong":
                    raise InputError("gateway: not this one")
                if request.gateway == "broken":
                    raise ValueError(CANARY)
                yield AttachResponse(closes=[Close(reason=request.gateway)])
        finally:
            self.ended.set()

    async def GetBroadcast(self, request: Any, context: Context) -> Any:
        raise NotFoundError("no broadcast is known here")


class ServicersOnChannel:
    """The servicers and a channel to them."""

    def __init__(self) -> None:
        self.positions = Positions()
        self.delivery = Delivery()
        self.channel: Channel
        self.server: Server | None = None

    def add_to(self, server: Server | LocalServer) -> None:
        add_PositionsServiceServicer_to_server(self.positions, cast(Server, server))
        add_DeliveryServiceServicer_to_server(self.delivery, cast(Server, server))

    async def wait(self, request: AwaitRequest | None = None, seconds: float | None = None) -> AwaitResponse:
        stub = PositionsServiceStub(self.channel)
        return await asyncio.wait_for(stub.Await(request or AwaitRequest(), timeout=seconds), BOUND_S)

    def attach(self, requests: AsyncIterator[AttachRequest]) -> Any:
        return aclosing(cast(Any, aiter(DeliveryServiceStub(self.channel).Attach(requests))))

    async def converse(self, requests: AsyncIterator[AttachRequest], answers: list[str]) -> None:
        """Attach, and record the answers until the stream ends."""
        async with asyncio.timeout(BOUND_S), self.attach(requests) as responses:
            async for response in responses:
                answers += [close.reason for close in response.closes]


@pytest.fixture(params=["in the process", "over a socket"])
async def servicers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServicersOnChannel]:
    servicers = ServicersOnChannel()
    if request.param == "in the process":
        local = LocalServer()
        servicers.add_to(local)
        servicers.channel = local.channel()
        yield servicers
        return
    async with OverASocket(servicers, tmp_path):
        yield servicers


class OverASocket:
    """Serve the servicers on a Unix socket while the block runs."""

    def __init__(self, servicers: ServicersOnChannel, directory: Path) -> None:
        self._servicers = servicers
        self._address = f"unix:{directory}/s"

    async def __aenter__(self) -> ServicersOnChannel:
        server = serve([self._address])
        self._servicers.server = server
        self._servicers.add_to(server)
        await server.start()
        self._servicers.channel = connect(self._address)
        return self._servicers

    async def __aexit__(self, *_: object) -> None:
        assert self._servicers.server is not None
        await self._servicers.channel.close()
        await self._servicers.server.stop(0)


def fails_with(error: BaseException) -> Callable[[AwaitRequest], AwaitResponse]:
    def answer(request: AwaitRequest) -> AwaitResponse:
        raise error

    return answer


async def names(*gateways: str, then: asyncio.Event | None = None) -> AsyncIterator[AttachRequest]:
    for gateway in gateways:
        yield AttachRequest(gateway=gateway)
    if then is not None:
        await then.wait()


async def test_an_answer_arrives_unchanged(servicers: ServicersOnChannel) -> None:
    asked = AwaitRequest(positions=[Position(topic="devices", partition=3, offset=2**40)])
    assert list((await servicers.wait(asked)).produced) == list(asked.positions)


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", ["tags: 3 is too many", "标签：不对 – “x”\nline two", "x" * 3000, "日" * 3000])
async def test_every_error_arrives_as_itself(
    servicers: ServicersOnChannel, kind: type[CarillonError], text: str
) -> None:
    servicers.positions.answer = fails_with(kind(text))
    with pytest.raises(CarillonError) as raised:
        await servicers.wait()
    assert type(raised.value) is kind
    assert str(raised.value) == text


async def test_a_subclass_of_an_error_arrives_as_its_base_class(servicers: ServicersOnChannel) -> None:
    class TagsError(InputError):
        pass

    servicers.positions.answer = fails_with(TagsError("tags: none"))
    with pytest.raises(InputError, match=r"^tags: none$"):
        await servicers.wait()


@pytest.mark.parametrize("error", [ValueError(CANARY), KeyError(CANARY), TimeoutError(CANARY), OSError(5, CANARY)])
async def test_the_text_of_an_unexpected_error_is_not_sent(servicers: ServicersOnChannel, error: Exception) -> None:
    servicers.positions.answer = fails_with(error)
    with capture_logs() as logs, pytest.raises(CarillonError) as raised:
        await servicers.wait()
    assert type(raised.value) is CarillonError
    assert str(raised.value) == "internal error"
    assert raised.value.__cause__ is None
    (line,) = logs
    assert (line["event"], line["exc_info"]) == ("a call failed", error)
    assert line["method"] == "/protos.runtime.v1.PositionsService/Await"


async def test_a_servicer_that_awaited_a_cancelled_future_cancels_no_caller(servicers: ServicersOnChannel) -> None:
    servicers.positions.answer = fails_with(asyncio.CancelledError())
    with pytest.raises(UnavailableError):
        await servicers.wait()


async def test_a_deadline_ends_the_call_on_both_sides(servicers: ServicersOnChannel) -> None:
    servicers.positions.hangs = True
    with pytest.raises(DeadlineError):
        await servicers.wait(seconds=0.05)
    await asyncio.wait_for(servicers.positions.ended.wait(), BOUND_S)


async def test_a_call_that_its_caller_gives_up_is_cancelled_in_the_servicer(servicers: ServicersOnChannel) -> None:
    servicers.positions.hangs = True
    call = asyncio.create_task(servicers.wait())
    await asyncio.wait_for(servicers.positions.began.wait(), BOUND_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(servicers.positions.ended.wait(), BOUND_S)


async def test_messages_beyond_the_default_limit_pass_both_ways(servicers: ServicersOnChannel) -> None:
    asked = AwaitRequest(positions=[Position(topic="x" * (6 * 1024 * 1024))])
    assert list((await servicers.wait(asked)).produced) == list(asked.positions)


async def test_a_method_that_is_not_served_is_unavailable(servicers: ServicersOnChannel) -> None:
    with pytest.raises(UnavailableError):
        await AnalyticsServiceStub(servicers.channel).AuditPush(AuditPushRequest(msgid=1))


async def test_a_stream_answers_while_requests_arrive(servicers: ServicersOnChannel) -> None:
    answers: list[str] = []
    await servicers.converse(names("a", "b", "x" * (6 * 1024 * 1024)), answers)
    assert answers == ["a", "b", "x" * (6 * 1024 * 1024)]


@pytest.mark.parametrize(
    ("gateway", "kind", "text"),
    [("wrong", InputError, "gateway: not this one"), ("broken", CarillonError, "internal error")],
)
async def test_an_error_in_mid_stream_comes_after_the_answers_before_it(
    servicers: ServicersOnChannel, gateway: str, kind: type[CarillonError], text: str
) -> None:
    answers: list[str] = []
    with pytest.raises(CarillonError) as raised:
        await servicers.converse(names("a", gateway, "b", then=asyncio.Event()), answers)
    assert (type(raised.value), str(raised.value), answers) == (kind, text, ["a"])
    await asyncio.wait_for(servicers.delivery.ended.wait(), BOUND_S)


async def test_a_stream_that_its_caller_leaves_ends_in_the_servicer(servicers: ServicersOnChannel) -> None:
    async with servicers.attach(names("a", then=asyncio.Event())) as responses:
        async for _ in responses:
            break
    await asyncio.wait_for(servicers.delivery.ended.wait(), BOUND_S)


async def test_a_stream_whose_caller_is_cancelled_ends_in_the_servicer(servicers: ServicersOnChannel) -> None:
    first = asyncio.Event()

    async def follow() -> None:
        async with servicers.attach(names("a", then=asyncio.Event())) as responses:
            async for _ in responses:
                first.set()

    following = asyncio.create_task(follow())
    await asyncio.wait_for(first.wait(), BOUND_S)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await asyncio.wait_for(servicers.delivery.ended.wait(), BOUND_S)


async def test_requests_that_fail_end_the_stream_with_an_error_and_not_with_a_cancellation(
    servicers: ServicersOnChannel,
) -> None:
    async def broken() -> AsyncIterator[AttachRequest]:
        yield AttachRequest(gateway="a")
        raise ValueError(CANARY)

    with pytest.raises(CarillonError) as raised:
        await servicers.converse(broken(), [])
    assert CANARY not in str(raised.value)
    await asyncio.wait_for(servicers.delivery.ended.wait(), BOUND_S)


async def test_a_server_that_stops_makes_calls_and_streams_unavailable(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as servicers:
        servicers.positions.hangs = True
        call = asyncio.create_task(servicers.wait())
        await asyncio.wait_for(servicers.positions.began.wait(), BOUND_S)
        async with servicers.attach(names("a", then=asyncio.Event())) as responses:
            await anext(responses)
            assert servicers.server is not None
            await servicers.server.stop(grace=0.05)
            with pytest.raises(UnavailableError):
                await asyncio.wait_for(anext(responses), BOUND_S)
        with pytest.raises(UnavailableError):
            await call
        with pytest.raises(UnavailableError):
            await servicers.wait()


async def test_a_call_in_flight_is_answered_before_the_server_stops(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as servicers:
        opened = asyncio.Event()

        async def slow(request: AwaitRequest, context: Context) -> AwaitResponse:
            servicers.positions.began.set()
            await opened.wait()
            return AwaitResponse()

        servicers.positions.Await = slow  # type: ignore[method-assign]
        assert servicers.server is not None
        add_PositionsServiceServicer_to_server(servicers.positions, servicers.server)
        call = asyncio.create_task(servicers.wait())
        await asyncio.wait_for(servicers.positions.began.wait(), BOUND_S)
        stopping = asyncio.create_task(servicers.server.stop(grace=BOUND_S))
        opened.set()
        assert await call == AwaitResponse()
        await stopping


async def test_a_channel_reconnects_soon_after_the_server_restarts(tmp_path: Path) -> None:
    async with OverASocket(ServicersOnChannel(), tmp_path) as first:
        await first.wait()
        channel = connect(f"unix:{tmp_path}/s")
        stub = PositionsServiceStub(channel)
        await stub.Await(AwaitRequest())
    for _ in range(20):
        with pytest.raises(UnavailableError):
            await stub.Await(AwaitRequest())
    async with OverASocket(ServicersOnChannel(), tmp_path), asyncio.timeout(3):
        await stub.Await(AwaitRequest(), wait_for_ready=True)
        await channel.close()


async def test_two_servers_cannot_share_a_port(tmp_path: Path) -> None:
    first = serve([f"unix:{tmp_path}/first"])
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    with pytest.raises(CarillonError, match=rf"127\.0\.0\.1:{port}.*in use"):
        serve([f"127.0.0.1:{port}"])
    await first.stop(0)


async def test_an_address_that_cannot_be_listened_at_is_one_clear_line(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/{'x' * 120}"
    with pytest.raises(CarillonError) as raised:
        serve([address])
    assert address in str(raised.value)
    assert "\n" not in str(raised.value)
