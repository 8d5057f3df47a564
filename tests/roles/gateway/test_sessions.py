"""Session facts in the log, and the table of connections."""

import msgspec
from picows import WSCloseCode

from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import App, Platform
from services.domain.device_protocol.frames import Hello
from services.domain.topics import SESSIONS, decode, device_key
from services.gateway.connections import ConnectionIds, ConnectionTable, Session
from services.gateway.decide import decide_hello, end_reason
from services.gateway.settings import GatewaySettings
from services.runtime.log.port import Partition
from services.runtime.log.topics import partition_of
from testkit.gateway.role import ANDROID, NOON_MS, PARTITIONS, RunningGateway
from testkit.gateway.websocket import DeviceClient

Kind = SessionEventKind


async def test_the_facts_of_a_session_are_recorded_in_order(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    welcome = await client.hello(ANDROID)
    for event in ("login", "logout", "open"):
        client.send(type="activity", event=event)
    assert (await client.request(type="get_device", id=1))["type"] == "ok"
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
    assert {event.token for event in events} == {welcome["token"]}
    assert len({event.connection for event in events}) == 1
    assert [event.time_ms - NOON_MS for event in events] == [0, 0, 0, 0, 60_000]
    assert events[-1].reason == ""
    assert counts[0].connections_by_app == {ANDROID: 1}


async def test_events_are_in_the_devices_partition_in_one_record_a_flush(gateway: RunningGateway) -> None:
    clients = [await DeviceClient.connect(gateway.port) for _ in range(12)]
    for client in clients:
        await client.hello(ANDROID)
    await gateway.session_facts(enough=12)
    await gateway.stop()
    closed: dict[int, list[list[str]]] = {number: [] for number in range(PARTITIONS)}
    reader = await gateway.log.open({Partition(SESSIONS.name, number): 0 for number in closed})
    while sum(len(tokens) for batches in closed.values() for tokens in batches) < 12:
        for record in await reader.read():
            events = decode(record).batch.events
            assert {partition_of(device_key(ANDROID, event.token), PARTITIONS) for event in events} == {
                record.partition
            }
            tokens = [event.token for event in events if event.reason == "draining"]
            closed[record.partition] += [tokens] if tokens else []
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


async def test_a_drain_says_goodbye_to_all_and_spreads_their_reconnects(gateway: RunningGateway) -> None:
    clients = [await DeviceClient.connect(gateway.port) for _ in range(20)]
    for client in clients:
        await client.hello(ANDROID)
    unwelcomed = await DeviceClient.connect(gateway.port)
    await gateway.stop()
    goodbyes = [await client.next() for client in clients]
    assert {goodbye["reason"] for goodbye in goodbyes} == {"draining"}
    assert len({goodbye["retry_after_ms"] for goodbye in goodbyes}) > 5
    assert await unwelcomed.goodbye() == "draining"


def test_connection_ids_grow_and_differ_between_gateways() -> None:
    one, other = ConnectionIds(1), ConnectionIds(2)
    ids = [one.take(NOON_MS) for _ in range(100)]
    assert ids == sorted(set(ids))
    assert one.take(NOON_MS - 5000) > ids[-1]
    assert one.take(NOON_MS + 1000) > ids[-1]
    assert other.take(NOON_MS) not in ids
    assert ids[-1] < 2**63


def test_removing_a_replaced_connection_keeps_the_newer_one() -> None:
    connections: ConnectionTable[str] = ConnectionTable()
    old, new = Session(1, ANDROID, "t", 3, 0), Session(2, ANDROID, "t", 3, 0)
    assert connections.add(old, "old") is None
    assert connections.add(new, "new") == "old"
    assert connections.remove(old)
    assert not connections.remove(old)
    assert (connections.counts(), connections.find(2), len(connections)) == ({ANDROID: 1}, "new", 1)
    assert (list(connections.sessions(1, 2)), list(connections.sessions(0, 2))) == ([new], [])
    assert connections.remove(new)
    assert connections.counts() == {}


def test_only_android_apps_have_connections() -> None:
    android, ios = App(platform=Platform.PLATFORM_ANDROID), App(platform=Platform.PLATFORM_IOS)
    new, known = Hello(appkey=ANDROID), Hello(appkey=ANDROID, token="t", key="k")
    assert [decide_hello(new, app, None) for app in (android, ios, None)] == ["register", "refuse", "refuse"]
    assert [decide_hello(known, app, 0) for app in (android, ios, None)] == ["welcome", "refuse", "refuse"]
    assert decide_hello(known, android, None) == "refuse"


def test_each_deadline_ends_a_connection_in_time() -> None:
    limits = msgspec.structs.replace(GatewaySettings().limits(), hello_ms=10, slow_ms=50, ack_ms=70, goodbye_ms=5)

    class Waiting(msgspec.Struct):
        last_frame_ms: int = 0
        idle_after_ms: int = 100
        paused_ms: int | None = None
        closing_ms: int | None = None
        oldest_unacknowledged_ms: int | None = None

    def at(now: int, **since: int) -> str | None:
        return end_reason(now, Waiting(**since), limits)

    assert [at(now, idle_after_ms=10) for now in (9, 10)] == [None, "idle"]
    assert [at(now) for now in (99, 100)] == [None, "idle"]
    assert [at(now, paused_ms=20) for now in (69, 70)] == [None, "slow"]
    assert [at(now, oldest_unacknowledged_ms=20) for now in (89, 90)] == [None, "unacknowledged"]
    assert [at(now, closing_ms=200) for now in (204, 205)] == [None, "gone"]
