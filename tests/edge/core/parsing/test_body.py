"""The deadline of a request body."""

import asyncio
from typing import Any

import pytest

from edge.core.parsing.body import BodyTimeout

PART = {"type": "http.request", "body": b"part", "more_body": True}


async def answers(application: Any, *parts: dict[str, Any]) -> list[Any]:
    """Return the answer of an application that gets only these parts of a body, with a deadline of 0 s."""
    sent: list[Any] = []
    waiting = list(parts)

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(BodyTimeout(application, seconds=0)({"type": "http"}, receive, send), 60)
    return sent


async def until_late() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_an_application_at_work_is_not_interrupted_and_its_next_receive_fails_at_once() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await until_late()
        await send("worked")
        await receive()

    worked, start, _ = await answers(application, PART)
    assert worked == "worked"
    assert start["status"] == 408


async def test_an_application_that_waits_for_the_body_gets_the_error() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        while True:
            await receive()

    start, body = await answers(application, PART, PART)
    assert start["status"] == 408
    assert body["body"] == b'{"result":408,"desc":"no body within 0 s"}'
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def test_a_whole_body_ends_the_deadline() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await until_late()
        await send((await receive())["type"])

    assert await answers(application, {**PART, "more_body": False}, {"type": "http.disconnect"}) == ["http.disconnect"]


async def test_cancelling_a_request_is_not_taken_for_a_late_body() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        waiting.set()
        await receive()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    waiting = asyncio.Event()
    request = asyncio.create_task(BodyTimeout(application)({"type": "http"}, receive, send))
    await waiting.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
