"""Streams between roles: the same behaviour inside one process and over a socket."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from protos.delivery.v1.delivery_pb2 import AttachRequest
from services.errors import CarillonError, InputError, UnavailableError
from tests.services.net.rpc.servicers import BOUND_S, CANARY, ServicersOnChannel, names


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
        await servicers.converse(names("a", gateway, then=asyncio.Event()), answers)
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


async def test_a_stream_that_ends_while_its_client_writes_is_no_internal_error(servicers: ServicersOnChannel) -> None:
    """gRPC for asyncio hides the server's status from most clients that are still writing."""

    async def endless() -> AsyncIterator[AttachRequest]:
        while True:
            yield AttachRequest(gateway="wrong")
            await asyncio.sleep(0)

    for _ in range(20):
        with pytest.raises((InputError, UnavailableError)):
            await servicers.converse(endless(), [])
