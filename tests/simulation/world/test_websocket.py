"""Simulated WebSocket connections: what arrives, in which order, and who is told of the end."""

import asyncio
from contextvars import Context
from pathlib import Path

import pytest
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from services.gateway.connection import HEADROOM
from services.gateway.pushes.frames import with_header
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.world import World
from tests.simulation.world.websocket import TransportEnd, text_frames


class Recorder(WSListener):
    """A listener that records what it is told."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.heard.append("connected")

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        closes = frame.msg_type == WSMsgType.CLOSE
        self.heard.append(frame.get_close_code() if closes else frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.heard.append("disconnected")


class Pair:
    """Two connected ends, and what their listeners heard."""

    def __init__(self, world: World) -> None:
        delay_s = Latency(world.random("delays"), 0.01)
        self.ends = [TransportEnd(world.loop, Context, name, delay_s) for name in ("left", "right")]
        self.ends[0].join(self.ends[1])
        self.listeners = [Recorder(), Recorder()]
        for end, listener in zip(self.ends, self.listeners, strict=True):
            end.open(listener)

    @property
    def heard(self) -> list[list[object]]:
        return [listener.heard[1:] for listener in self.listeners]


def test_frames_arrive_in_order_and_both_ends_are_told_of_the_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> list[list[object]]:
        pair = Pair(world)
        left, right = pair.ends
        for number in range(50):
            left.send(WSMsgType.TEXT, b"%d" % number)
        right.send_reuse_external_bytearray(WSMsgType.TEXT, bytearray(HEADROOM) + b"shared", HEADROOM)
        left.send_close(WSCloseCode.GOING_AWAY, b"why")
        left.send(WSMsgType.TEXT, b"after the close frame")
        left.disconnect()
        left.disconnect()
        await asyncio.gather(left.wait_disconnected(), right.wait_disconnected())
        return pair.heard

    left, right = World(3, tmp_path).run(scenario)
    assert right == [*(b"%d" % number for number in range(50)), WSCloseCode.GOING_AWAY, "disconnected"]
    assert left in (["disconnected"], [b"shared", "disconnected"])


def test_the_process_of_a_killed_end_hears_nothing_and_an_end_that_is_cut_off_tells_nobody(tmp_path: Path) -> None:
    async def scenario(world: World) -> list[list[list[object]]]:
        killed, cut = Pair(world), Pair(world)
        killed.ends[0].die()
        cut.ends[0].cut()
        cut.ends[0].send(WSMsgType.TEXT, b"lost")
        cut.ends[0].disconnect(graceful=False)
        await asyncio.sleep(10)
        return [killed.heard, cut.heard]

    assert World(3, tmp_path).run(scenario) == [[[], ["disconnected"]], [["disconnected"], []]]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 32 * 1024])
def test_complete_frames_are_split(size: int) -> None:
    payloads = [b"x" * size, b"next"]
    frames = b"".join(with_header(bytearray(HEADROOM) + payload) for payload in payloads)
    assert list(text_frames(frames)) == payloads
