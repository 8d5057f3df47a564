"""The SDKs with the real gateway."""

import asyncio
from pathlib import Path

import pytest

from carillon_device import DeadlineError, DeviceEndedError, Frame, RefusedError, UnavailableError
from protos.push.v1.push_pb2 import Message
from testkit.device import VirtualDevice
from testkit.gateway.role import ANDROID, IOS, RunningGateway
from testkit.gateway.websocket import BOUND_S, DeviceClient
from tests.contract.sdk.driven_device import DrivenDevice


def url(real_gateway: RunningGateway) -> str:
    return f"ws://127.0.0.1:{real_gateway.port}/device/v1"


async def event(device: VirtualDevice, kind: str) -> Frame:
    """Return the next event of that type; skip others."""
    async with asyncio.timeout(BOUND_S):
        while (found := await device.events.get())["type"] != kind:
            pass
        return found


async def test_it_registers_sends_requests_and_closes(real_gateway: RunningGateway) -> None:
    device = VirtualDevice(url(real_gateway), ANDROID, attributes={"brand": "Acme"})
    await device.connect()
    assert (await event(device, "welcome"))["new"] is True
    await device.set_alias("anna")
    read = await device.get_device()
    assert (read["alias"], read["device"]) == ("anna", {"brand": "Acme"})
    with pytest.raises(RefusedError, match="alias must have 1 to 40 bytes") as refused:
        await device.set_alias("")
    assert refused.value.code == 400
    await device.close()
    events, _ = await real_gateway.session_facts(enough=2)
    assert events[-1].reason == ""
    with pytest.raises(UnavailableError):
        await device.request({"type": "get_device"})


async def test_it_acknowledges_every_push_and_shows_each_once(real_gateway: RunningGateway) -> None:
    device = VirtualDevice(url(real_gateway), ANDROID)
    await device.connect()
    delivery = real_gateway.delivery
    (connection,) = await delivery.until(delivery.connections)
    delivery.send(Message(is_notif=True, content="first"), [connection], [1])
    assert (await event(device, "push"))["content"] == "first"
    await delivery.until(lambda: len(delivery.reports()) == 2)
    device._connection.drop()  # type: ignore[union-attr]
    _, again = await delivery.until(lambda: len(delivery.connections()) == 2 and delivery.connections())
    delivery.send(Message(is_notif=True, content="first"), [again], [1])
    delivery.send(Message(content="second"), [again], [2])
    assert (await event(device, "push"))["content"] == "second"
    await delivery.until(lambda: len(delivery.reports()) == 4)
    assert sorted(report[1:] for report in delivery.reports()) == [(1, 2), (1, 2), (1, 3), (2, 2)]
    await device.close()


async def test_it_reconnects_as_the_same_device(real_gateway: RunningGateway) -> None:
    device = VirtualDevice(url(real_gateway), ANDROID)
    await device.connect()
    first = await event(device, "welcome")
    (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
    real_gateway.delivery.close(connection, "draining")
    disconnected = await event(device, "disconnected")
    assert disconnected["reason"] == "draining"
    real_gateway.clock.move(1)
    device_again = VirtualDevice(url(real_gateway), ANDROID, token=first["token"], key=first["key"])
    await device_again.connect()
    again = await event(device_again, "welcome")
    assert (again["token"], again["new"]) == (first["token"], False)
    await device.close()
    await device_again.close()


async def test_it_reconnects_by_itself_after_a_lost_connection(real_gateway: RunningGateway) -> None:
    device = VirtualDevice(url(real_gateway), ANDROID)
    await device.connect()
    first = await event(device, "welcome")
    device.send({"type": "no such"})
    assert (await event(device, "error"))["code"] == 400
    device._connection.drop()  # type: ignore[union-attr]
    assert (await event(device, "disconnected"))["reason"] == "connection lost"
    again = await event(device, "welcome")
    assert (again["token"], again["new"]) == (first["token"], False)
    await device.close()


async def test_final_goodbyes_end_the_device(real_gateway: RunningGateway) -> None:
    refused = VirtualDevice(url(real_gateway), IOS)
    with pytest.raises(DeviceEndedError, match="does not accept this appkey"):
        await refused.connect()
    device = VirtualDevice(url(real_gateway), ANDROID)
    await device.connect()
    other = await DeviceClient.connect(real_gateway.port)
    await other.hello(ANDROID, token=device.token, key=device.key)
    with pytest.raises(DeviceEndedError) as ended:
        await device.ended()
    assert ended.value.reason == "replaced"


async def test_it_keeps_trying_while_the_gateway_is_away() -> None:
    device = VirtualDevice("ws://127.0.0.1:1/device/v1", ANDROID)
    with pytest.raises(DeadlineError):
        await device.connect(seconds=0.05)
    assert (await event(device, "disconnected"))["retry_ms"] >= 0
    await device.close()


@pytest.mark.parametrize("sdk", ["javascript", pytest.param("kotlin", marks=pytest.mark.long)])
async def test_the_other_sdks_register_send_requests_and_show_pushes(
    real_gateway: RunningGateway, tmp_path: Path, sdk: str
) -> None:
    state = str(tmp_path / "state.json")
    device = await DrivenDevice.start(sdk, url(real_gateway), state, None, {"heartbeat": 600})
    try:
        welcome = await device.event("welcome")
        assert (welcome["new"], welcome["heartbeat"]) == (True, 600)
        assert await device.next("connect") == "welcomed"
        device.call("add_stags", ["news"])
        await device.next("returned")
        device.elapse(300_000)
        device.elapse(600_000)
        device.call("get_device")
        assert (await device.next("returned"))["stags"] == ["news"]
        (connection,) = await real_gateway.delivery.until(real_gateway.delivery.connections)
        real_gateway.delivery.send(Message(content="first"), [connection], [1])
        assert await device.shown() == "first"
        await real_gateway.delivery.until(lambda: [row[1:] for row in real_gateway.delivery.reports()] == [(1, 2)])
        await device.close()
    finally:
        await device.kill()


async def test_a_ping_frame_is_answered(real_gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(real_gateway.port)
    await client.hello(ANDROID)
    assert await client.request(type="ping") == {"type": "pong"}
