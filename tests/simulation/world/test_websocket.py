"""Simulated WebSocket connections: what arrives, in which order, and who is told of the end."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from pathlib import Path

import pytest
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from services.gateway.websocket.frames import CLOSE, TEXT, Frame, Violation, close_code, encode
from services.gateway.websocket.protocol import WebSocket
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.world import World
from tests.simulation.world.websocket import DeviceEnd, GatewayEnd, text_frames


class DeviceRecorder(WSListener):
    """A listener at the device's end that records what it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_ws_connected(self, transport: WSTransport) -> None: ...

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        closes = frame.msg_type == WSMsgType.CLOSE
        self.heard.append(frame.get_close_code() if closes else frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.heard.append("disconnected")


class GatewayRecorder:
    """A listener at the gateway's end that records what it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def opened(self, socket: WebSocket, peer: str, forwarded: Sequence[str]) -> None: ...

    def received(self, frame: Frame) -> None:
        self.heard.append(close_code(frame.payload) if frame.opcode == CLOSE else frame.payload)

    def violated(self, violation: Violation) -> None: ...

    def closed(self) -> None:
        self.heard.append("disconnected")

    def pause_writing(self) -> None:
        self.heard.append("paused")

    def resume_writing(self) -> None:
        self.heard.append("resumed")


class Pair:
    """Two connected ends, and what their listeners heard."""

    def __init__(self, world: World) -> None:
        delay_s = Latency(world.random("delays"), 0.01)
        self.device, self.gateway = (
            DeviceEnd(world.loop, Context, delay_s),
            GatewayEnd(world.loop, Context, "192.0.2.1", delay_s),
        )
        self.device.join(self.gateway)
        self.at_device, self.at_gateway = DeviceRecorder(), GatewayRecorder()
        self.device.open(self.at_device)
        self.gateway.open(self.at_gateway)

    @property
    def heard(self) -> list[list[object]]:
        return [self.at_device.heard, self.at_gateway.heard]


def test_frames_arrive_in_order_and_both_ends_are_told_of_the_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> list[list[object]]:
        pair = Pair(world)
        for number in range(50):
            pair.device.send(WSMsgType.TEXT, b"%d" % number)
        pair.gateway.write(encode(TEXT, b"shared") + encode(TEXT, b"in one write"))
        pair.device.send_close(WSCloseCode.GOING_AWAY, b"why")
        pair.device.send(WSMsgType.TEXT, b"after the close frame")
        await asyncio.sleep(1)
        pair.gateway.close()
        pair.gateway.close()
        await pair.device.wait_disconnected()
        return pair.heard

    at_device, at_gateway = World(3, tmp_path).run(scenario)
    assert at_gateway == [*(b"%d" % number for number in range(50)), WSCloseCode.GOING_AWAY.value, "disconnected"]
    assert at_device == [b"shared", b"in one write", "disconnected"]


def test_the_process_of_a_killed_end_hears_nothing_and_an_end_that_is_cut_off_tells_nobody(tmp_path: Path) -> None:
    async def scenario(world: World) -> list[list[list[object]]]:
        killed, cut = Pair(world), Pair(world)
        killed.gateway.die()
        cut.gateway.cut()
        cut.gateway.send_text(b"lost")
        cut.gateway.abort()
        await asyncio.sleep(10)
        return [killed.heard, cut.heard]

    assert World(3, tmp_path).run(scenario) == [[["disconnected"], []], [[], ["disconnected"]]]


def test_an_end_whose_other_end_reads_nothing_is_paused_until_it_reads_all(tmp_path: Path) -> None:
    async def scenario(world: World) -> list[list[object]]:
        pair = Pair(world)
        pair.gateway.set_write_buffer_limits(40_000)
        pair.device.stop_reading()
        for number in range(3):
            pair.gateway.send_text(b"%010d" % number)
        pair.device.send(WSMsgType.TEXT, b"sent all the same")
        await asyncio.sleep(10)
        assert pair.gateway.get_write_buffer_size() == 60_000
        assert pair.heard == [[], ["paused", b"sent all the same"]]
        pair.device.read_again()
        await asyncio.sleep(1)
        assert pair.gateway.get_write_buffer_size() == 0
        return pair.heard

    at_device, at_gateway = World(3, tmp_path).run(scenario)
    assert at_device == [b"%010d" % number for number in range(3)]
    assert at_gateway == ["paused", b"sent all the same", "resumed"]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 32 * 1024])
def test_complete_frames_are_split(size: int) -> None:
    payloads = [b"x" * size, b"next"]
    frames = b"".join(encode(TEXT, payload) for payload in payloads)
    assert list(text_frames(frames)) == payloads
