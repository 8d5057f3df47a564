"""Session facts in the log: openings, closings, app activity and connection counts."""

import asyncio
from collections import Counter

import pytest
from picows import WSCloseCode
from structlog.testing import capture_logs

from protos.gateway.v1.sessions_pb2 import SessionEventKind
from services.domain.topics import SESSIONS, decode, device_key
from services.gateway import session_writer
from services.gateway.connections import DeviceSession
from services.gateway.session_writer import SessionWriter
from services.log.port import Partition
from services.log.topics import partition_of
from services.replica.health import Health
from testkit.gateway.role import ANDROID, NOON_MS, PARTITIONS, RunningGateway
from testkit.gateway.websocket import DeviceClient
from testkit.services import running_services
from testkit.waiting import until_holds

Kind = SessionEventKind


async def test_the_facts_of_a_session_are_recorded_in_order(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    welcome = await client.hello(ANDROID)
    for number, event in enumerate(("login", "logout", "open"), 7):
        client.send(type="activity", event=event, id=number)
    for number in (7, 8, 9):
        assert await client.next() == {"type": "ok", "id": number}
    assert len((await gateway.session_facts(enough=4))[0]) == 4, "what is confirmed is in the log"
    gateway.clock.move(60)
    await gateway.session_facts(enough=5)
    client.transport.send_close(WSCloseCode.OK)
    events, counts = await gateway.session_facts(enough=6)
    assert [Kind.Name(event.kind).removeprefix("SESSION_EVENT_KIND_") for event in events] == [
        "OPENED",
        "LOGGED_IN",
        "LOGGED_OUT",
        "APP_OPENED",
        "CLOSED",
    ]
    assert {event.number for event in events} == {0}
    assert welcome["token"] not in str(events)
    assert len({event.connection for event in events}) == 1
    assert [event.time_ms - NOON_MS for event in events] == [0, 0, 0, 0, 60_000]
    assert events[-1].reason == ""
    assert counts[0].connections_by_app == {ANDROID: 1}


async def test_events_are_in_the_devices_partition_in_one_record_a_flush(gateway: RunningGateway) -> None:
    clients = [await DeviceClient.connect(gateway.port) for _ in range(12)]
    tokens = [(await client.hello(ANDROID))["token"] for client in clients]
    await gateway.session_facts(enough=12)
    await gateway.stop()
    closed: dict[int, list[list[int]]] = {number: [] for number in range(PARTITIONS)}
    reader = await gateway.log.open({Partition(SESSIONS.name, number): 0 for number in closed})
    while sum(len(numbers) for batches in closed.values() for numbers in batches) < 12:
        for record in await reader.read():
            numbers = [event.number for event in decode(record).batch.events if event.reason == "draining"]
            closed[record.partition] += [numbers] if numbers else []
    expected = Counter(partition_of(device_key(ANDROID, token), PARTITIONS) for token in tokens)
    assert {number: sum(map(len, batches)) for number, batches in closed.items() if batches} == expected
    assert max(len(batches) for batches in closed.values()) == 1


async def test_connections_are_counted_at_every_full_minute(gateway: RunningGateway) -> None:
    gateway.clock.move(59)
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    gateway.clock.move(1)
    await gateway.session_facts(enough=2)
    client.transport.send_close(WSCloseCode.OK)
    await gateway.session_facts(enough=3)
    gateway.clock.move(60)
    _, counts = await gateway.session_facts(enough=4)
    assert [(count.minute_ms, dict(count.connections_by_app)) for count in counts] == [
        (NOON_MS + 60_000, {ANDROID: 1}),
        (NOON_MS + 120_000, {}),
    ]
    assert len({count.gateway for count in counts}) == 1


async def test_a_failed_count_of_connections_is_a_problem_of_the_process(gateway: RunningGateway) -> None:
    def fail() -> dict[str, int]:
        raise RuntimeError("no count")

    writer = SessionWriter(gateway.log, gateway.context.peers, gateway.clock, "gateway-1", PARTITIONS, fail)
    async with running_services([writer]):
        await asyncio.sleep(0)
        gateway.clock.move(60)
        await until_holds(lambda: bool(Health(gateway.clock).problems()))
        assert Health(gateway.clock).problems() == {"count of connections": "failed: RuntimeError: no count"}


async def test_events_that_are_dropped_while_the_log_is_away_are_counted_in_the_log_line(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_writer, "MAX_EVENTS", 3)
    writer = SessionWriter(gateway.log, gateway.context.peers, gateway.clock, "gateway-1", PARTITIONS, dict)
    for connection in range(5):
        writer.record(DeviceSession(connection, ANDROID, "token", 0, 0), Kind.SESSION_EVENT_KIND_OPENED)
    with capture_logs() as logs:
        async with running_services([writer]):
            events, _ = await gateway.session_facts(enough=3)
    assert [event.connection for event in events] == [2, 3, 4]
    assert [line["count"] for line in logs if "were dropped" in line["event"]] == [2]
