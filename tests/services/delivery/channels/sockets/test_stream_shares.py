"""The share of one app in the memory for messages that wait for a gateway."""

import pytest

from protos.push.v1.push_pb2 import Message
from services.delivery.channels.sockets import gateway_stream
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import OTHER_APP, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)
PHONE = 100
"""The connection of the other app's device."""


@pytest.mark.parametrize("kind", ["broadcasts", "lists", "paced"])
async def test_an_app_that_fills_its_share_of_a_gateways_stream_breaks_it_for_no_other_app(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Together the messages exceed the budget, beyond which the stream fails and all devices are announced again."""
    monkeypatch.setattr(gateway_stream, "MAX_QUEUED_BYTES", 20_000)
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        await delivery.register(A, appkey=OTHER_APP)
        gateway.connect((1, A), (2, B))
        gateway.connect((PHONE, A), appkey=OTHER_APP)
        await run_ready_tasks()
        gateway.reads.clear()
        noisy = [await send(delivery, kind, number) for number in range(60)]
        unicast = await delivery.send(A, appkey=OTHER_APP)
        await delivery.advance(60, steps=60)
        assert not gateway.task.done()
        gateway.reads.set()
        await gateway.wait_until(lambda: any(message.connection == PHONE for message in gateway.received))
        assert [message.connection for message in gateway.received].index(PHONE) <= 6
        await receive_all(delivery, gateway, noisy)
        for connection in (1, 2):
            got = [message.msgid for message in gateway.received if message.connection == connection]
            assert (got if kind != "paced" else sorted(got)) == noisy
        assert [message.msgid for message in gateway.received if message.connection == PHONE] == [unicast]
    assert (await delivery.verify()).equal


async def send(delivery: DeliveryHarness, kind: str, number: int) -> int:
    """Send a push of the noisy app to both of its devices, about 600 bytes in the stream."""
    devices = (A, B) if kind == "lists" else ()
    qps = {"qps": 1000} if kind == "paced" else {}
    msgid = await delivery.send(*devices, message=Message(is_notif=True, content=f"{number}".rjust(500)), **qps)
    await run_ready_tasks()
    return msgid


async def receive_all(delivery: DeliveryHarness, gateway: GatewayClient, msgids: list[int]) -> None:
    """Acknowledge what comes over the noisy app's connections until both have had all messages."""
    acknowledged = 0
    while acknowledged < 2 * len(msgids):
        new = [message for message in gateway.received if message.connection != PHONE][acknowledged:]
        gateway.acknowledge(*((message.msgid, A if message.connection == 1 else B) for message in new))
        acknowledged += len(new)
        await delivery.advance(0.1)
