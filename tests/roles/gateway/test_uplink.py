"""What delivery hears, whatever happens to the stream."""

import asyncio
from random import Random

import pytest

from protos.delivery.v1.delivery_pb2 import AttachRequest, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.push.v1.push_pb2 import Message
from services.domain.device_protocol import report_kind
from services.gateway.connections import Session
from services.gateway.uplink import MAX_REPORTS, UnreportedQueue, Uplink
from services.runtime.rpc.transport import Server, connect, serve
from tests.roles.gateway.conftest import ANDROID, NOON_MS, PARTITIONS, House, start, stop
from tests.roles.gateway.scripted import Client, ScriptedDelivery

RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


def session(connection: int, number: int = 0) -> Session:
    return Session(connection, ANDROID, f"token-{connection}", 1, number)


async def test_acks_and_reports_arrive_in_order_under_the_devices_number(house: House) -> None:
    client = await Client.connect(house.port)
    welcome = await client.hello(ANDROID)
    number = house.keys.device_number(ANDROID, welcome["token"], welcome["key"])
    client.send(type="ack", msgids=[5, 6])
    client.send(type="report", event="shown", msgid=5)
    client.send(type="report", event="clicked", msgid=5)
    client.send(type="report", event="dismissed", msgid=6)
    await house.delivery.until(lambda: len(house.delivery.reports()) == 5)
    assert house.delivery.reports() == [(number, 5, 2), (number, 6, 2), (number, 5, 3), (number, 5, 4), (number, 6, 5)]
    assert house.delivery.requests[0].gateway
    told = next(reports for request in house.delivery.requests for reports in request.reports)
    assert told.appkey == ANDROID
    assert int.from_bytes(told.times_ms[:8], "little") == NOON_MS
    assert int.from_bytes(told.partitions[:2], "little") in range(PARTITIONS)


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "ack", "msgids": []},
        {"type": "ack", "msgids": [0]},
        {"type": "ack", "msgids": [2**53]},
        {"type": "report", "event": "eaten", "msgid": 1},
        {"type": "report", "event": "shown"},
    ],
)
async def test_a_report_that_makes_no_sense_is_an_error_without_an_id(house: House, frame: dict[str, object]) -> None:
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    answer = await client.ask(**frame)
    assert (answer["type"], answer["code"], "id" in answer) == ("error", 400, False)


async def test_after_a_broken_stream_all_is_announced_again_and_unrecorded_reports_are_repeated(house: House) -> None:
    house.delivery.confirms = False
    stays, goes = await Client.connect(house.port), await Client.connect(house.port)
    await stays.hello(ANDROID)
    await goes.hello(ANDROID)
    staying, _ = await house.delivery.until(lambda: len(c := house.delivery.connections()) == 2 and c)
    stays.send(type="ack", msgids=[5])
    await house.delivery.until(house.delivery.reports)
    goes.transport.disconnect(graceful=False)
    await house.delivery.until(house.delivery.disconnected)
    house.delivery.requests.clear()
    house.delivery.break_stream()
    await house.delivery.until(lambda: house.delivery.connections() and house.delivery.reports())
    assert house.delivery.attached == 2
    assert house.delivery.requests[0].gateway
    assert house.delivery.connections() == [staying]
    assert [msgid for _, msgid, _ in house.delivery.reports()] == [5]
    house.delivery.send(Message(content="after"), [staying], [6])
    assert (await stays.next())["content"] == "after"


async def test_reports_of_a_stop_arrive(house: House) -> None:
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    await house.delivery.until(house.delivery.connections)
    client.send(type="ack", msgids=list(range(1, 500)))
    assert (await client.ask(type="get_device", id=1))["type"] == "ok"
    await house.stop_gateway()
    assert len(house.delivery.reports()) == 499
    assert len(house.delivery.disconnected()) == 1


def test_what_the_log_may_not_have_is_handed_in_again_before_anything_else() -> None:
    queue = UnreportedQueue()
    for msgid in (1, 2, 3):
        queue.report(session(1), [msgid], RECEIVED, NOON_MS)
        assert queue.take() is not None
    queue.recorded(1)
    queue.report(session(1), [4], RECEIVED, NOON_MS)
    queue.restart([session(7)])
    batches = told(queue)
    assert [(batch.sequence, batch.reports[0].msgids[0]) for batch in batches] == [(2, 2), (3, 3), (4, 4)]
    assert [len(batch.connected) for batch in batches] == [0, 0, 1]
    queue.restart([])
    queue.recorded(3)
    queue.restart([])
    assert [batch.sequence for batch in told(queue)] == [4]
    queue.recorded(4)
    assert queue.unrecorded == 0
    queue.restart([])
    assert told(queue) == []


def test_who_left_and_who_came_is_told_after_what_devices_said() -> None:
    queue = UnreportedQueue()
    queue.disconnected(session(1))
    queue.connected(session(2))
    queue.report(session(1), list(range(1, 15_001)), RECEIVED, NOON_MS)
    queue.report(session(1), [20_000], RECEIVED, NOON_MS)
    first, second = told(queue)
    assert (len(first.connected), len(first.disconnected), len(first.reports[0].kinds)) == (0, 0, 15_000)
    assert (len(second.connected), len(second.disconnected), len(second.reports[0].kinds)) == (1, 1, 1)


def told(queue: UnreportedQueue) -> list[AttachRequest]:
    batches = []
    while (batch := queue.take()) is not None:
        batches.append(batch)
    return batches


def test_a_connection_that_went_before_it_was_announced_is_never_mentioned() -> None:
    queue = UnreportedQueue()
    queue.connected(session(1))
    queue.disconnected(session(1))
    assert queue.take() is None
    queue.connected(session(2))
    assert queue.take() is not None
    queue.disconnected(session(2))
    batch = queue.take()
    assert batch is not None
    assert list(batch.disconnected) == [2]


def test_batches_are_bounded_and_keep_the_order() -> None:
    queue = UnreportedQueue()
    for connection in range(1, 7001):
        queue.connected(session(connection, connection))
    for first in range(1, 25_001, 1000):
        queue.report(session(1), list(range(first, first + 1000)), RECEIVED, NOON_MS)
    batches = told(queue)
    assert [len(batch.connected) for batch in batches] == [0, 0, 5000, 2000]
    assert not batches.pop().sequence
    assert [len(batch.reports[0].kinds) for batch in batches] == [10_000, 10_000, 5_000]
    msgids = b"".join(batch.reports[0].msgids for batch in batches)
    assert [int.from_bytes(msgids[at : at + 8], "little") for at in range(0, len(msgids), 8)] == list(range(1, 25_001))
    assert queue.unrecorded == 25_000


def test_waiting_reports_are_bounded() -> None:
    queue = UnreportedQueue()
    for _ in range(MAX_REPORTS // 100_000 + 1):
        queue.report(session(1), [7] * 100_000, report_kind("shown"), NOON_MS)
    assert queue.unrecorded == MAX_REPORTS


async def test_over_a_socket_a_delivery_that_restarts_hears_everything() -> None:
    queue = UnreportedQueue()
    current = [session(1)]
    delivery = ScriptedDelivery()
    delivery.confirms = False
    handed: asyncio.Queue[object] = asyncio.Queue()
    server, port = await _serve(delivery, 0)
    channel = connect(f"127.0.0.1:{port}")
    uplink = await start(Uplink(channel, "gateway-1", queue, lambda: current, handed.put, Random(1)))
    await delivery.until(delivery.connections)
    queue.report(session(1), [1], RECEIVED, NOON_MS)
    await delivery.until(delivery.reports)
    delivery.send(Message(content="a"), [1], [1])
    async with asyncio.timeout(10):
        await handed.get()
    await server.stop(0)
    queue.report(session(1), [2], RECEIVED, NOON_MS)
    restarted = ScriptedDelivery()
    server, _ = await _serve(restarted, port)
    await restarted.until(lambda: len(restarted.reports()) == 2)
    assert restarted.connections() == [1]
    assert [msgid for _, msgid, _ in restarted.reports()] == [1, 2]
    queue.report(session(1), [3], RECEIVED, NOON_MS)
    await stop([uplink])
    assert [msgid for _, msgid, _ in restarted.reports()] == [1, 2, 3]
    await channel.close()
    await server.stop(0)


async def _serve(delivery: ScriptedDelivery, port: int) -> tuple[Server, int]:
    server = serve([])
    add_DeliveryServiceServicer_to_server(delivery, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port
