"""Streams of events: as they come, on from a position, chosen, and for as many programs as there may be."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import EVENT_KIND_MESSAGE_FAILED, EVENT_KIND_MESSAGE_RECEIVED
from protos.webhooks.v1.webhooks_pb2 import (
    EventPosition,
    TopicPosition,
    WatchEventsRequest,
    WatchEventsResponse,
)
from services.errors import BusyError, InputError
from services.process.clock import ManualClock
from services.webhooks import event_queue, event_streams
from tests.services.webhooks.conftest import APP, NOW_MS, OTHER, TEAM, Installation
from tests.services.webhooks.test_push_labels import push

BOUND_S = 60


class Stream:
    """A program that reads events."""

    def __init__(self, responses: Any) -> None:
        self.position = b""
        self.events: list[dict[str, Any]] = []
        self._responses = responses

    async def read(self) -> WatchEventsResponse:
        async with asyncio.timeout(BOUND_S):
            response: WatchEventsResponse = await anext(self._responses)
        self.position = response.position
        self.events += [json.loads(event) for event in response.events_json]
        return response

    async def read_until(self, count: int) -> list[str]:
        """Return the ids of so many events."""
        while len(self.events) < count:
            await self.read()
        return [event["id"] for event in self.events]


def watching(installation: Installation, appkey: str = APP, **fields: Any) -> Any:
    async def one() -> AsyncIterator[WatchEventsRequest]:
        yield WatchEventsRequest(appkey=appkey, **fields)
        await asyncio.Event().wait()

    return aclosing(installation.stub.WatchEvents(one()))


async def test_events_come_and_go_on_from_a_position(installation: Installation) -> None:
    await installation.report(2)
    async with installation.running():
        async with watching(installation) as responses:
            stream = Stream(responses)
            assert not (await stream.read()).events_json
            expected = await installation.report(2, partition=1, first_number=99)
            await installation.report(1, appkey=OTHER)
            assert await stream.read_until(2) == expected
            assert [event["data"] for event in stream.events] == [
                {"msgid": 7, "token": "token-1-99"},
                {"msgid": 7, "token": None},
            ]
            position = stream.position
        missed = await installation.report(3)
        async with watching(installation, position=position) as responses:
            again = Stream(responses)
            assert await again.read_until(3) == missed
            further = await installation.report(1)
            assert (await again.read_until(4))[3:] == further


async def test_a_program_reads_the_events_of_a_team(installation: Installation) -> None:
    async with installation.running():
        await installation.give_app(APP, TEAM)
        async with watching(installation, "", team_id=TEAM) as responses:
            stream = Stream(responses)
            await stream.read()
            await installation.report(1, appkey=OTHER)
            expected = await installation.report(1)
            assert await stream.read_until(1) == expected
            assert stream.events[0]["data"]["appkey"] == APP


async def test_a_slow_program_misses_nothing(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "MAX_QUEUED", 5)
    async with installation.running(), watching(installation) as responses:
        stream = Stream(responses)
        await stream.read()
        expected = [event for _ in range(20) for event in await installation.report(3)]
        assert await stream.read_until(60) == expected


async def test_kinds_and_messages_are_chosen(installation: Installation) -> None:
    async with installation.running():
        wanted, other = [EVENT_KIND_MESSAGE_RECEIVED], [EVENT_KIND_MESSAGE_FAILED]
        async with (
            watching(installation, kinds=wanted, msgids=[7]) as chosen,
            watching(installation, kinds=other) as empty,
        ):
            stream, nothing = Stream(chosen), Stream(empty)
            await stream.read()
            await nothing.read()
            expected = await installation.report(2)
            assert await stream.read_until(2) == expected
            assert not nothing.events


async def test_wrong_positions_and_too_many_programs_are_refused(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "MAX_STREAMS", 1)
    async with installation.running():
        await installation.report(2)
        async with watching(installation) as responses:
            stream = Stream(responses)
            await stream.read()
            async with watching(installation) as second:
                with pytest.raises(BusyError, match="too many"):
                    await Stream(second).read()
        async with watching(installation, position=b"\xff") as wrong:
            with pytest.raises(InputError, match="position"):
                await Stream(wrong).read()
        async with watching(installation, position=stream.position) as right:
            await Stream(right).read()
        ahead = EventPosition(topics=[TopicPosition(topic="deliveries", next=[5])])
        async with watching(installation, position=ahead.SerializeToString()) as wrong:
            with pytest.raises(InputError, match="gone back"):
                await Stream(wrong).read()


async def test_the_programs_of_one_app_leave_some_for_those_of_others(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "MAX_STREAMS_OF_ONE", 1)
    async with installation.running():
        async with watching(installation) as first:
            await Stream(first).read()
            async with watching(installation) as second:
                with pytest.raises(BusyError, match="too many"):
                    await Stream(second).read()
            async with watching(installation, appkey=OTHER) as others:
                await Stream(others).read()
        async with watching(installation) as again:
            await Stream(again).read()


async def test_pushes_are_chosen_by_their_labels(installation: Installation) -> None:
    async with installation.running():
        await push(installation, 10, "spring")
        installation.clock.move(1)
        async with watching(installation, labels=["spring"], kinds=[EVENT_KIND_MESSAGE_RECEIVED]) as responses:
            stream = Stream(responses)
            await stream.read()
            await push(installation, 11, "spring")
            await push(installation, 12, "autumn")
            for msgid in (10, 12):
                await installation.report(1, msgid=msgid)
            expected = await installation.report(1, msgid=11)
            assert await stream.read_until(1) == expected
        installation.clock.move(event_streams.KEPT_LABEL_MS / 1000 - 1)
        kept = await installation.report(2, msgid=11)
        async with watching(installation, labels=["spring"], position=stream.position) as responses:
            again = Stream(responses)
            assert await again.read_until(2) == kept
        installation.clock.move(event_streams.KEPT_LABEL_MS / 1000)
        forgotten = await installation.report(1, msgid=10)
        async with watching(installation, labels=["spring"], position=again.position) as responses:
            late = Stream(responses)
            assert await late.read_until(1) == forgotten
        async with watching(installation, labels=["", "spring"]) as wrong:
            with pytest.raises(InputError, match="label"):
                await Stream(wrong).read()


def test_labels_of_streams_are_kept_for_an_hour_and_the_latest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "MAX_STREAMED_LABELS", 2)
    clock = ManualClock(NOW_MS)
    labels = event_streams.StreamLabels(clock)
    labels.enter({"a"}, goes_on=False)
    clock.move(1)
    labels.enter({"a", "b"}, goes_on=True)
    assert labels.labels() == {"a": NOW_MS, "b": 0}
    assert labels.next_change_ms() is None
    labels.leave({"a", "b"})
    assert labels.next_change_ms() == clock.now_ms() + event_streams.KEPT_LABEL_MS
    clock.move(event_streams.KEPT_LABEL_MS / 1000)
    assert labels.labels() == {"a": NOW_MS}
    for label in ("a", "c", "d"):
        labels.enter({label} - {"a"}, goes_on=False)
        labels.leave({label})
    assert list(labels.labels()) == ["c", "d"]
