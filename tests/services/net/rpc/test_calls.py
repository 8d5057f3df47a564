"""Calls between roles: the same behaviour inside one process and over a socket."""

import asyncio

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from protos.analytics.v1.analytics_pb2 import AuditPushRequest
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub
from protos.runtime.v1.errors_pb2 import ErrorDetail
from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from services.errors import BY_STATUS, CarillonError, Code, DeadlineError, InputError, UnavailableError
from services.net.rpc.calls import channel_error, error_metadata
from tests.services.net.rpc.servicers import BOUND_S, CANARY, ServicersOnChannel, fails_with


async def test_an_answer_arrives_unchanged(servicers: ServicersOnChannel) -> None:
    asked = AwaitRequest(positions=[Position(topic="devices", partition=3, offset=2**40)])
    assert list((await servicers.wait(asked)).produced) == list(asked.positions)


@pytest.mark.parametrize("kind", BY_STATUS.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "text",
    ["tags: 3 is too many", "标签：不对 – “x”\nline two", "x" * 3000, "日" * 3000],
    ids=["short", "two lines", "long", "3 bytes a character"],
)
async def test_every_error_arrives_as_itself(
    servicers: ServicersOnChannel, kind: type[CarillonError], text: str
) -> None:
    servicers.positions.answer = fails_with(kind(text))
    with pytest.raises(CarillonError) as raised:
        await servicers.wait()
    assert type(raised.value) is kind
    assert str(raised.value) == text


async def test_the_code_and_fields_of_an_error_arrive(servicers: ServicersOnChannel) -> None:
    raised_there = InputError(Code.NO_TAG_RANGE, at="标签", text="5..x", least=-(2**40), most=2**40)
    servicers.positions.answer = fails_with(raised_there)
    with pytest.raises(InputError) as raised:
        await servicers.wait()
    assert (raised.value.code, raised.value.fields) == (Code.NO_TAG_RANGE, raised_there.fields)
    assert str(raised.value) == str(raised_there)


async def test_fields_that_are_too_large_for_metadata_leave_the_text(servicers: ServicersOnChannel) -> None:
    servicers.positions.answer = fails_with(InputError(Code.NO_WHOLE_NUMBERS, at="tag", text="x" * 100_000))
    with pytest.raises(InputError, match=r"^tag must be whole numbers, not x+$") as raised:
        await servicers.wait()
    assert raised.value.code in (None, Code.NO_WHOLE_NUMBERS)  # in one process the error itself is passed on


@pytest.mark.parametrize("fields", [{"least": 2**80}, {"at": "\ud800"}, {"at": "x" * 4096}])
def test_fields_that_metadata_cannot_hold_are_left_out(fields: dict[str, int | str]) -> None:
    assert error_metadata(InputError(Code.OUT_OF_BOUNDS, **{"at": "a", "least": 1, "most": 2, **fields})) == ()
    assert error_metadata(InputError("a text")) == ()


@pytest.mark.parametrize(
    "detail",
    [
        b"",
        b"\xff\xff",
        ErrorDetail(code="OF_A_NEWER_PEER", texts={"at": "name"}).SerializeToString(),
        ErrorDetail(code="OUT_OF_RANGE", texts={"at": "name"}).SerializeToString(),
    ],
    ids=["of an older peer", "damaged", "unknown code", "fields that lack one"],
)
def test_an_error_without_a_known_detail_is_a_text(detail: bytes) -> None:
    metadata = grpc.aio.Metadata(*((("carillon-error-bin", detail),) if detail else ()))
    error = channel_error(
        "m", grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), metadata, "name: is wrong")
    )
    assert (type(error), str(error), error.code, error.fields) == (InputError, "name: is wrong", None, {})


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
    for seconds in (0.05, 0.5, 5):  # on a busy machine a short deadline is over before the servicer is called
        with pytest.raises(DeadlineError):
            await servicers.wait(seconds=seconds)
        if servicers.positions.began.is_set():
            break
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
