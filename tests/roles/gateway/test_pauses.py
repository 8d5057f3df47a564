"""Frames of a paused app stop at the gateway too, and go on after the resume, unless they were cancelled or expired."""

import asyncio

import pytest

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import Pause
from services.gateway.pushes import sender as push_sender
from services.gateway.pushes.bursts import SLICE
from testkit.gateway.role import ANDROID, NOON_MS, RunningGateway
from testkit.waiting import run_ready_tasks
from tests.roles.gateway.test_pushes import WrittenFrames, devices, sender, to


async def test_a_broadcast_stops_within_a_slice_and_goes_on_after_the_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """More frames are held than the sender may queue, and another app's messages are written meanwhile."""
    monkeypatch.setattr(push_sender, "MAX_WAITING", 10 * SLICE)
    paused: set[str] = set()
    written, now_ms = WrittenFrames(), 0
    pushes = sender(written, 50 * SLICE, paused.__contains__, lambda: now_ms)
    broadcast = to(range(1, 50 * SLICE + 1), 1)
    broadcast.expires_ms = 1000
    handling = asyncio.create_task(pushes.handle(AttachResponse(sends=[broadcast])))
    while len(written) < 5 * SLICE:
        await asyncio.sleep(0)
    paused.add("noisy")
    before = len(written)
    await run_ready_tasks()
    await handling
    assert len(written) <= before + SLICE
    await pushes.handle(AttachResponse(sends=[to(range(1), 2)], closes=[Close(connection=7, reason="unauthorized")]))
    assert written[-2:] == [("quiet", 2), ("noisy", 0)]
    assert (pushes.held, pushes.held_broadcasts("noisy")) == (["noisy"], {1})
    paused.clear()
    await run_ready_tasks()
    assert len(written) <= before + SLICE + 2, "nothing is written before delivery was asked about cancels"
    pushes.release("noisy", cancelled=())
    while len(written) < 50 * SLICE + 2:
        await asyncio.sleep(0)
    assert written.count(("noisy", 1)) == 50 * SLICE


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_held_frames_that_are_cancelled_or_expired_are_not_written(is_cancelled: bool) -> None:
    written, now_ms = WrittenFrames(), 0
    pushes = sender(written, 3 * SLICE, lambda appkey: now_ms < 50, lambda: now_ms)
    broadcasts = [to(range(1, 3 * SLICE + 1), msgid) for msgid in (1, 2)]
    broadcasts[0].expires_ms, broadcasts[1].expires_ms = 1000 if is_cancelled else 60, 1000
    await pushes.handle(AttachResponse(sends=broadcasts))
    now_ms = 70
    pushes.release("noisy", cancelled={1} if is_cancelled else ())
    await run_ready_tasks()
    assert written == [("noisy", 2)] * 3 * SLICE


async def test_after_the_resume_delivery_is_asked_which_broadcasts_were_cancelled(gateway: RunningGateway) -> None:
    clients, connections = await devices(gateway, 2)
    await gateway.set_pause(ANDROID, Pause(since_ms=1))
    for msgid in (1, 2):
        gateway.delivery.send(Message(content=str(msgid)), connections, [msgid], expires_ms=NOON_MS + 1000)
    gateway.delivery.cancelled.add(1)
    assert (await clients[0].request(type="get_device", id=1))["type"] == "ok"
    await gateway.set_pause(ANDROID, None)
    assert [(await client.next())["content"] for client in clients] == ["2", "2"]
