"""The deadline of a body: only who waits for it is late."""

import asyncio
from typing import Any

import pytest

from edge.core.parsing.body import BodyTimeout

PART = {"type": "http.request", "body": b"part", "more_body": True}


async def answers(door: Any, *parts: dict[str, Any]) -> list[Any]:
    """What a door answers when these parts of a body come and no more, with a deadline that is over at once."""
    sent: list[Any] = []
    waiting = list(parts)

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(BodyTimeout(door, seconds=0)({"type": "http"}, receive, send), 10)
    return sent


async def until_late() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_door_that_works_is_not_disturbed_and_its_next_wait_is_over_at_once() -> None:
    async def door(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await until_late()
        await send("worked")
        await receive()

    worked, start, _ = await answers(door, PART)
    assert worked == "worked"
    assert start["status"] == 408


async def test_a_door_that_waits_is_told() -> None:
    async def door(scope: Any, receive: Any, send: Any) -> None:
        while True:
            await receive()

    start, body = await answers(door, PART, PART)
    assert start["status"] == 408
    assert body["body"] == b'{"result":408,"desc":"no body within 0 s"}'
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def test_a_whole_body_has_no_deadline_any_more() -> None:
    async def door(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await until_late()
        await send((await receive())["type"])

    assert await answers(door, {**PART, "more_body": False}, {"type": "http.disconnect"}) == ["http.disconnect"]


async def test_cancelling_a_request_is_not_taken_for_a_late_body() -> None:
    async def door(scope: Any, receive: Any, send: Any) -> None:
        waiting.set()
        await receive()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    waiting = asyncio.Event()
    request = asyncio.create_task(BodyTimeout(door)({"type": "http"}, receive, send))
    await waiting.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
