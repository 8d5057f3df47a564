"""What delivery gets over the stream of a gateway, also when the stream breaks."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import AttachResponse, OutcomeKind
from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.push.v1.push_pb2 import Message
from services.errors import PermissionDeniedError
from services.gateway.connections import DeviceSession
from services.gateway.uplink import UnreportedQueue, Uplink
from services.net.rpc.caller import ShardOfRole
from services.net.rpc.channel import connect
from services.net.rpc.server import Server, serve
from services.replica.instances import OwnerOfShard
from testkit.gateway.role import ANDROID, NOON_MS, PARTITIONS, RunningGateway, start_service, stop_services
from testkit.gateway.scripted_delivery import ScriptedDelivery
from testkit.gateway.websocket import DeviceClient
from testkit.waiting import until_holds

RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED
NO_OWNER = OwnerOfShard(None, "delivery", 0)


def session(connection: int, number: int = 0) -> DeviceSession:
    return DeviceSession(connection, ANDROID, f"token-{connection}", 1, number)


async def test_acknowledgements_and_reports_arrive_in_order_with_the_device_number(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    welcome = await client.hello(ANDROID)
    number = gateway.keys.device_number(ANDROID, welcome["token"], welcome["key"])
    client.send(type="ack", msgids=[5, 6])
    client.send(type="report", event="shown", msgid=5)
    client.send(type="report", event="clicked", msgid=5)
    client.send(type="report", event="dismissed", msgid=6)
    await gateway.delivery.until(lambda: len(gateway.delivery.reports()) == 5)
    assert gateway.delivery.reports() == [
        (number, 5, 2),
        (number, 6, 2),
        (number, 5, 3),
        (number, 5, 4),
        (number, 6, 5),
    ]
    assert gateway.delivery.requests[0].gateway
    reports = next(each for request in gateway.delivery.requests for each in request.reports)
    assert reports.appkey == ANDROID
    assert int.from_bytes(reports.times_ms[:8], "little") == NOON_MS
    assert int.from_bytes(reports.partitions[:2], "little") in range(PARTITIONS)


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
async def test_an_invalid_report_is_answered_by_an_error_without_an_id(
    gateway: RunningGateway, frame: dict[str, object]
) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    answer = await client.request(**frame)
    assert (answer["type"], answer["code"], "id" in answer) == ("error", 400, False)


async def test_a_new_stream_announces_connections_and_repeats_unrecorded_reports(
    gateway: RunningGateway,
) -> None:
    gateway.delivery.confirms = False
    stays, goes = await DeviceClient.connect(gateway.port), await DeviceClient.connect(gateway.port)
    await stays.hello(ANDROID)
    await goes.hello(ANDROID)
    staying, _ = await gateway.delivery.until(lambda: len(c := gateway.delivery.connections()) == 2 and c)
    stays.send(type="ack", msgids=[5])
    await gateway.delivery.until(gateway.delivery.reports)
    goes.transport.disconnect(graceful=False)
    await gateway.delivery.until(gateway.delivery.disconnected)
    gateway.delivery.requests.clear()
    gateway.delivery.break_stream()
    await gateway.delivery.until(lambda: gateway.delivery.connections() and gateway.delivery.reports())
    assert gateway.delivery.attached == 2
    assert gateway.delivery.requests[0].gateway
    assert gateway.delivery.connections() == [staying]
    assert [msgid for _, msgid, _ in gateway.delivery.reports()] == [5]
    gateway.delivery.send(Message(content="after"), [staying], [6])
    assert (await stays.next())["content"] == "after"


async def test_what_a_new_owner_of_delivery_sends_again_is_not_written_to_the_same_connection(
    gateway: RunningGateway,
) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    for msgid in (5, 6, 7):
        gateway.delivery.send(Message(content="c"), [connection], [msgid])
        assert (await client.next())["msgid"] == msgid
    gateway.delivery.requests.clear()
    gateway.delivery.break_stream()
    await gateway.delivery.until(gateway.delivery.connections)
    client.send(type="ack", msgids=[5])
    await gateway.delivery.until(gateway.delivery.reports)
    for msgid in (5, 6, 8):
        gateway.delivery.send(Message(content="c"), [connection], [msgid])
    assert (await client.next())["msgid"] == 8
    for msgid in (7, 8, 9):
        gateway.delivery.send(Message(content="c"), [connection], [msgid])
    assert (await client.next())["msgid"] == 9


async def test_what_a_device_acknowledges_over_its_next_connection_is_not_sent_to_it_there(
    gateway: RunningGateway,
) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    client.send(type="ack", msgids=[5])
    await gateway.delivery.until(gateway.delivery.reports)
    for msgid in (5, 6):
        gateway.delivery.send(Message(content="c"), [connection], [msgid])
    assert (await client.next())["msgid"] == 6


async def test_a_report_with_an_id_is_confirmed_once_the_log_has_it(
    gateway: RunningGateway,
) -> None:
    gateway.delivery.confirms = False
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    client.send(type="report", event="shown", msgid=5, id=1)
    client.send(type="report", event="clicked", msgid=5, id=2)
    client.send(type="report", event="shown", msgid=6)
    await gateway.delivery.until(lambda: len(gateway.delivery.reports()) == 3)
    assert (await client.request(type="ping"))["type"] == "pong", "nothing is confirmed before the log has it"
    gateway.delivery.confirms = True
    gateway.delivery.break_stream()
    assert [await client.next(), await client.next()] == [{"type": "ok", "id": 1}, {"type": "ok", "id": 2}]
    assert (await client.request(type="ping"))["type"] == "pong", "what has no id is not answered"


async def test_reports_made_before_a_stop_arrive(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    await gateway.delivery.until(gateway.delivery.connections)
    client.send(type="ack", msgids=list(range(1, 500)))
    assert (await client.request(type="get_device", id=1))["type"] == "ok"
    await gateway.stop()
    assert len(gateway.delivery.reports()) == 499
    assert len(gateway.delivery.disconnected()) == 1


async def test_a_restarted_delivery_gets_connections_and_unrecorded_reports() -> None:
    queue = UnreportedQueue()
    current = [session(1)]
    delivery = ScriptedDelivery()
    delivery.confirms = False
    responses: asyncio.Queue[object] = asyncio.Queue()
    server, port = await _serve(delivery, 0)
    channel = connect(f"127.0.0.1:{port}")
    uplink = await start_service(
        Uplink(channel, NO_OWNER, "gateway-1", queue, lambda: current, responses.put, Random(1))
    )
    await delivery.until(delivery.connections)
    queue.report(session(1), [1], RECEIVED, NOON_MS)
    await delivery.until(delivery.reports)
    delivery.send(Message(content="a"), [1], [1])
    async with asyncio.timeout(60):
        await responses.get()
    await server.stop(0)
    queue.report(session(1), [2], RECEIVED, NOON_MS)
    restarted = ScriptedDelivery()
    server, _ = await _serve(restarted, port)
    await restarted.until(lambda: len(restarted.reports()) == 2)
    assert restarted.connections() == [1]
    assert [msgid for _, msgid, _ in restarted.reports()] == [1, 2]
    queue.report(session(1), [3], RECEIVED, NOON_MS)
    await stop_services([uplink])
    assert [msgid for _, msgid, _ in restarted.reports()] == [1, 2, 3]
    await channel.close()
    await server.stop(0)


async def _serve(delivery: ScriptedDelivery, port: int) -> tuple[Server, int]:
    server = serve([])
    add_DeliveryServiceServicer_to_server(delivery, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    return server, port


async def test_a_gateway_with_another_list_of_delivery_instances_ends_and_says_so(tmp_path: Path) -> None:
    """It would hand devices to an instance that does not own them, and they would get no push."""
    address = f"unix:{tmp_path / 'delivery.sock'}"
    server = serve([address], shard=ShardOfRole("delivery", 0, 2))
    add_DeliveryServiceServicer_to_server(ScriptedDelivery(), server)
    await server.start()
    channel = connect(address, shard=ShardOfRole("delivery", 0, 3))

    async def handle(_: AttachResponse) -> None:
        raise AssertionError("nothing is sent")

    uplink = Uplink(channel, NO_OWNER, "gateway-1", UnreportedQueue(), list, handle, Random(1))
    with pytest.raises(PermissionDeniedError, match="CARILLON_DELIVERY_ADDR must be the same list for all"):
        await asyncio.wait_for(uplink.run(asyncio.Event()), 60)
    await channel.close()
    await server.stop(None)


async def test_the_name_and_the_log_lines_of_a_stream_say_its_shard(tmp_path: Path) -> None:
    channel = connect(f"unix:{tmp_path / 'nobody.sock'}")

    async def handle(_: AttachResponse) -> None:
        raise AssertionError("nothing is sent")

    with capture_logs() as logs:
        uplinks = [
            Uplink(
                channel, OwnerOfShard(None, "delivery", shard), "gateway-1", UnreportedQueue(), list, handle, Random(1)
            )
            for shard in range(2)
        ]
        assert [uplink.name for uplink in uplinks] == ["gateway-uplink-0", "gateway-uplink-1"]
        running = [await start_service(uplink) for uplink in uplinks]
        await until_holds(lambda: {line.get("shard") for line in logs} == {0, 1})
        await stop_services(running)
    await channel.close()
