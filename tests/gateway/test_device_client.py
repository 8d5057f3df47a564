"""The virtual device and `carillon device run`, over the real gateway."""

import asyncio
import json
import os
import signal
import sys
from typing import Any

import pytest

from edge.device_client import DeviceEndedError, Event, VirtualDevice
from protos.push.v1.push_pb2 import Message
from services.runtime.errors import DeadlineError, UnavailableError
from tests.gateway.conftest import ANDROID, IOS, House
from tests.gateway.scripted import BOUND_S, Client


def url(house: House) -> str:
    return f"ws://127.0.0.1:{house.port}/device/v1"


async def event(device: VirtualDevice, kind: str) -> Event:
    """The next event of that type; others before it are passed over."""
    async with asyncio.timeout(BOUND_S):
        while (found := await device.events.get())["type"] != kind:
            pass
        return found


async def test_it_registers_asks_and_leaves(house: House) -> None:
    device = VirtualDevice(url(house), ANDROID, attributes={"brand": "Acme"})
    await device.connect()
    assert (await event(device, "welcome"))["new"] is True
    assert (await device.request({"type": "set_alias", "alias": "anna"}))["type"] == "ok"
    read = await device.request({"type": "get_device"})
    assert (read["alias"], read["device"]) == ("anna", {"brand": "Acme"})
    assert (await device.request({"type": "set_alias", "alias": ""}))["type"] == "error"
    await device.close()
    events, _ = await house.session_facts(enough=2)
    assert events[-1].reason == ""
    with pytest.raises(UnavailableError):
        await device.request({"type": "get_device"})


async def test_it_acknowledges_every_push_and_shows_each_once(house: House) -> None:
    device = VirtualDevice(url(house), ANDROID)
    await device.connect()
    (connection,) = await house.delivery.until(house.delivery.connections)
    house.delivery.send(Message(is_notif=True, content="first"), [connection], [1])
    house.delivery.send(Message(is_notif=True, content="first"), [connection], [1])
    house.delivery.send(Message(content="second"), [connection], [2])
    assert [(await event(device, "push"))["content"] for _ in range(2)] == ["first", "second"]
    await house.delivery.until(lambda: len(house.delivery.reports()) == 4)
    assert [report[1:] for report in house.delivery.reports()] == [(1, 2), (1, 3), (1, 2), (2, 2)]
    await device.close()


async def test_it_comes_back_as_the_same_device(house: House) -> None:
    device = VirtualDevice(url(house), ANDROID)
    await device.connect()
    first = await event(device, "welcome")
    (connection,) = await house.delivery.until(house.delivery.connections)
    house.delivery.close(connection, "draining")
    gone = await event(device, "disconnected")
    assert gone["reason"] == "draining"
    house.clock.move(1)
    device_again = VirtualDevice(url(house), ANDROID, token=first["token"], key=first["key"])
    await device_again.connect()
    again = await event(device_again, "welcome")
    assert (again["token"], again["new"]) == (first["token"], False)
    await device.close()
    await device_again.close()


async def test_it_reconnects_by_itself_after_a_lost_connection(house: House) -> None:
    device = VirtualDevice(url(house), ANDROID)
    await device.connect()
    first = await event(device, "welcome")
    device.send({"type": "no such"})
    assert (await event(device, "error"))["code"] == 400
    device._transport.disconnect(graceful=False)  # type: ignore[union-attr]
    assert (await event(device, "disconnected"))["reason"] == "connection lost"
    again = await event(device, "welcome")
    assert (again["token"], again["new"]) == (first["token"], False)
    await device.close()


async def test_final_goodbyes_end_it(house: House) -> None:
    stranger = VirtualDevice(url(house), IOS)
    with pytest.raises(DeviceEndedError, match="does not accept this appkey"):
        await stranger.connect()
    device = VirtualDevice(url(house), ANDROID)
    await device.connect()
    other = await Client.connect(house.port)
    await other.hello(ANDROID, token=device.token, key=device.key)
    with pytest.raises(DeviceEndedError) as ended:
        await device.ended()
    assert ended.value.reason == "replaced"


async def test_it_waits_for_a_gateway_that_is_not_there_yet() -> None:
    device = VirtualDevice("ws://127.0.0.1:1/device/v1", ANDROID)
    with pytest.raises(DeadlineError):
        await device.connect(seconds=0.05)
    assert (await event(device, "disconnected"))["retry_ms"] >= 0
    await device.close()


class Running:
    """`carillon device run` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    @classmethod
    async def start(cls, house: House, *options: str) -> "Running":
        code = "from edge.cli.device import device; device()"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, "run", *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "CARILLON_GATEWAY_PORT": str(house.port)},
        )  # fmt: skip
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(30):
            return (await self.process.stdout.readline()).decode()

    async def end(self) -> tuple[int, str, str]:
        async with asyncio.timeout(30):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


async def test_the_command_prints_a_json_object_for_each_event(house: House) -> None:
    options = "--alias anna --tag 5 --tag -7 --stag news --attribute brand=Acme --json"
    running = await Running.start(house, "--appkey", ANDROID, *options.split())
    printed: list[dict[str, Any]] = [json.loads(await running.line()) for _ in range(4)]
    assert [each["type"] for each in printed] == ["welcome", "ok", "ok", "ok"]
    device = await house.device(printed[0]["token"])
    assert (device.alias, list(device.tags), list(device.stags)) == ("anna", [-7, 5], ["news"])
    assert device.attributes.brand == "Acme"
    (connection,) = await house.delivery.until(house.delivery.connections)
    house.delivery.send(Message(is_notif=True, content="hi"), [connection], [42])
    push = json.loads(await running.line())
    assert (push["type"], push["msgid"], push["content"]) == ("push", 42, "hi")
    await house.delivery.until(lambda: [row[1:] for row in house.delivery.reports()] == [(42, 2), (42, 3)])
    running.process.send_signal(signal.SIGINT)
    assert (await running.end())[::2] == (0, "")


async def test_the_command_prints_readable_lines_for_many_devices(house: House) -> None:
    running = await Running.start(house, "--appkey", ANDROID, "--count", "3")
    lines = [await running.line() for _ in range(3)]
    assert sorted(line.split()[2] for line in lines) == ["1", "2", "3"]
    assert all("welcome" in line and "key=" not in line for line in lines)
    running.process.send_signal(signal.SIGTERM)
    assert (await running.end())[0] == 0


async def test_the_command_ends_with_1_when_the_gateway_refuses(house: House) -> None:
    running = await Running.start(house, "--appkey", "1999999999", "--json")
    code, out, err = await running.end()
    assert code == 1
    assert "unauthorized: the gateway does not accept this appkey" in err
    assert json.loads(out.splitlines()[0])["type"] == "goodbye"


async def test_the_command_says_what_is_wrong_with_its_options(house: House) -> None:
    running = await Running.start(house, "--appkey", ANDROID, "--attribute", "colour=red")
    code, _, err = await running.end()
    assert code == 2
    assert "brand" in err
