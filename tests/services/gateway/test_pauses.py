"""Frames of a paused app stop at the gateway too, and go on after the resume, unless they were cancelled or expired."""

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close, GetBroadcastRequest, GetBroadcastResponse, Send
from protos.delivery.v1.delivery_pb2_grpc import add_DeliveryServiceServicer_to_server
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import Pause
from services.domain.apps import AppDirectory
from services.gateway import push_sender as push_sender
from services.gateway.push_frames import SLICE
from services.gateway.push_sender import QUESTIONS, PushResumption
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Context, Server
from services.process.clock import ManualClock
from testkit.gateway.role import ANDROID, NOON_MS, RunningGateway, start_service, stop_services
from testkit.gateway.scripted_delivery import ScriptedDelivery
from testkit.waiting import run_ready_tasks
from tests.services.gateway.test_push_sender import WrittenFrames, devices, sender, to


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


class TwoApps:
    """The apps `noisy` and `quiet` in place of the directory, paused at first."""

    def __init__(self) -> None:
        self._paused = {"noisy", "quiet"}
        self.pauses_changed = asyncio.Event()

    def is_paused(self, appkey: str) -> bool:
        return appkey in self._paused

    async def set_paused(self, *appkeys: str) -> None:
        """Pause these apps and resume the others; let the gateway do what follows at once."""
        self._paused = set(appkeys)
        self.pauses_changed.set()
        self.pauses_changed = asyncio.Event()
        await run_ready_tasks()


class SilentDelivery(ScriptedDelivery):
    """Answers no question about the broadcasts `silent` until `answers` is set; counts the questions."""

    def __init__(self, silent: Collection[int]) -> None:
        super().__init__()
        self._silent = silent
        self.answers = asyncio.Event()
        self.asked = 0

    async def GetBroadcast(self, request: GetBroadcastRequest, context: Context) -> GetBroadcastResponse:
        self.asked += 1
        if request.msgid in self._silent:
            await self.answers.wait()
        return await super().GetBroadcast(request, context)


def lasting(connections: range, msgid: int) -> Send:
    """Return a message for connections whose time to live is not over at the time 0."""
    send = to(connections, msgid)
    send.expires_ms = 1000
    return send


def channel_to(delivery: ScriptedDelivery) -> Channel:
    server = LocalServer()
    add_DeliveryServiceServicer_to_server(delivery, cast(Server, server))
    return server.channel()


async def test_an_app_whose_broadcasts_delivery_does_not_answer_for_delays_no_other_app() -> None:
    apps, written, delivery = TwoApps(), WrittenFrames(), SilentDelivery({2})
    pushes = sender(written, 3, apps.is_paused)
    resumption = PushResumption(cast(AppDirectory, apps), pushes, [channel_to(delivery)], ManualClock(0))
    running = await start_service(resumption)
    await pushes.handle(AttachResponse(sends=[lasting(range(1, 4), 2), lasting(range(1), 1)]))
    await apps.set_paused()
    assert (written, pushes.held) == ([("quiet", 1)], ["noisy"])
    delivery.answers.set()
    await run_ready_tasks()
    assert written == [("quiet", 1), *[("noisy", 2)] * 3]
    await stop_services([running])


async def test_few_questions_about_broadcasts_are_in_flight_at_once() -> None:
    apps, written, delivery = TwoApps(), WrittenFrames(), SilentDelivery(range(1, 201))
    pushes = sender(written, 3, apps.is_paused)
    resumption = PushResumption(cast(AppDirectory, apps), pushes, [channel_to(delivery)], ManualClock(0))
    running = await start_service(resumption)
    await pushes.handle(AttachResponse(sends=[lasting(range(1, 4), msgid) for msgid in range(1, 201)]))
    await apps.set_paused()
    assert delivery.asked == QUESTIONS
    delivery.answers.set()
    while len(written) < 3 * 200:
        await asyncio.sleep(0)
    await stop_services([running])


async def test_what_delivery_answered_before_another_pause_does_not_count_after_it() -> None:
    apps, written, delivery = TwoApps(), WrittenFrames(), SilentDelivery({3})
    pushes = sender(written, 3, apps.is_paused)
    resumption = PushResumption(cast(AppDirectory, apps), pushes, [channel_to(delivery)], ManualClock(0))
    running = await start_service(resumption)
    await pushes.handle(AttachResponse(sends=[lasting(range(1, 4), msgid) for msgid in (2, 3)]))
    await apps.set_paused()
    await apps.set_paused("noisy")
    delivery.cancelled.add(2)
    await apps.set_paused()
    delivery.answers.set()
    await run_ready_tasks()
    assert written == [("noisy", 3)] * 3
    await stop_services([running])


async def test_another_instance_of_delivery_is_asked_while_one_is_away() -> None:
    apps, written, clock = TwoApps(), WrittenFrames(), ManualClock(0)
    pushes = sender(written, 3, apps.is_paused)
    channels = [LocalServer().channel(), channel_to(ScriptedDelivery())]
    running = await start_service(PushResumption(cast(AppDirectory, apps), pushes, channels, clock))
    await pushes.handle(AttachResponse(sends=[lasting(range(1, 4), 2)]))
    await apps.set_paused()
    clock.move(1)
    await run_ready_tasks()
    assert written == [("noisy", 2)] * 3
    await stop_services([running])
