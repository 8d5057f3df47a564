"""Devices leave nothing that only the cyclic garbage collector frees: its pauses would delay every other frame."""

from protos.push.v1.push_pb2 import Message
from testkit.garbage import cyclic_garbage
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient

ROUNDS = 10


async def _all_frames(gateway: RunningGateway, client: DeviceClient, connection: int, number: int) -> None:
    msgid = number + 1
    gateway.delivery.send(Message(content="text"), [connection], [msgid])
    assert (await client.next())["msgid"] == msgid
    client.send(type="ack", msgids=[msgid])
    client.send(type="report", event="shown", msgid=msgid)
    client.send(type="activity", event="open")
    requests = (
        {"type": "set_alias", "alias": "a"},
        {"type": "add_tags", "tags": [number]},
        {"type": "set_alias", "alias": 1},
        {"type": "get_device"},
    )
    for request in requests:
        await client.request(**request, id=number)


async def test_frames_leave_no_cyclic_garbage(gateway: RunningGateway) -> None:
    client = await DeviceClient.welcomed(gateway.port, ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    await _all_frames(gateway, client, connection, 0)
    with cyclic_garbage() as garbage:
        for number in range(1, ROUNDS + 1):
            await _all_frames(gateway, client, connection, number)
    assert not {kind: number for kind, number in garbage.items() if number >= ROUNDS}
    client.transport.disconnect(graceful=False)


async def test_connections_leave_no_cyclic_garbage(gateway: RunningGateway) -> None:
    for rounds in (1, ROUNDS):
        with cyclic_garbage() as garbage:
            for _ in range(rounds):
                client = await DeviceClient.welcomed(gateway.port, ANDROID)
                client.transport.disconnect()
                await client.closed()
    assert not {kind: number for kind, number in garbage.items() if number >= ROUNDS}
