"""Pushes from delivery to devices: shared frames, their fields, and their message ids."""

import asyncio
import json
from array import array
from collections.abc import Callable
from random import Random
from struct import pack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.delivery.v1.delivery_pb2 import AttachResponse, Send
from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.gateway.connection import NOTHING_SENT, DeviceConnection
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.push_frames import SLICE, PushFrames
from services.gateway.push_sender import PushSender
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient
from testkit.waiting import run_ready_tasks

NOTIFICATION = Message(
    is_notif=True,
    content='Käse\n"x" \\ \u2028',
    extra='{"a": 1}',
    android=AndroidStyle(
        title="T",
        sound=True,
        removable=True,
        click_action=3,
        click_param_json='{"intent": "#Intent;end", "n": [1, 2.50]}',
        badge=0,
    ),
)


async def devices(gateway: RunningGateway, count: int) -> tuple[list[DeviceClient], list[int]]:
    clients = [await DeviceClient.connect(gateway.port) for _ in range(count)]
    for client in clients:
        await client.hello(ANDROID)
    return clients, await gateway.delivery.until(lambda: len(c := gateway.delivery.connections()) == count and c)


async def test_a_notification_has_all_its_fields(gateway: RunningGateway) -> None:
    (client,), (connection,) = await devices(gateway, 1)
    gateway.delivery.send(NOTIFICATION, [connection], [2**53 - 1], expires_ms=1_800_000_000_123)
    assert await client.next() == {
        "type": "push",
        "msgid": 2**53 - 1,
        "is_notif": 1,
        "content": 'Käse\n"x" \\ \u2028',
        "title": "T",
        "sound": True,
        "vibrate": False,
        "removable": True,
        "click": {"action": 3, "param": {"intent": "#Intent;end", "n": [1, 2.5]}},
        "badge": 0,
        "extra": '{"a": 1}',
        "expires_at": 1_800_000_000_123,
    }


async def test_a_message_that_is_no_notification_has_no_notification_fields(gateway: RunningGateway) -> None:
    (client,), (connection,) = await devices(gateway, 1)
    style = AndroidStyle(title="T", sound=True, click_action=2, click_param_json='"u"')
    gateway.delivery.send(Message(content="c", android=style), [connection], [7])
    assert await client.next() == {"type": "push", "msgid": 7, "is_notif": 0, "content": "c", "expires_at": 5}


async def test_connections_get_a_shared_message_id_or_their_own(
    gateway: RunningGateway,
) -> None:
    clients, connections = await devices(gateway, 5)
    gateway.delivery.send(NOTIFICATION, [*connections, 12345], [11])
    gateway.delivery.send(NOTIFICATION, connections, [21, 22, 23, 24, 25])
    for index, client in enumerate(clients):
        assert [(await client.next())["msgid"] for _ in range(2)] == [11, 21 + index]


async def test_a_message_for_more_connections_than_a_chunk_reaches_each_once(gateway: RunningGateway) -> None:
    (client,), (connection,) = await devices(gateway, 1)
    closed = list(range(1, 700))
    gateway.delivery.send(NOTIFICATION, [*closed, connection, *closed], [9])
    assert (await client.next())["msgid"] == 9
    assert (await client.request(type="get_device", id=1))["type"] == "ok"


async def test_frames_of_every_websocket_header_length_arrive(gateway: RunningGateway) -> None:
    clients, connections = await devices(gateway, 2)
    for size in (10, 200, 70_000):
        gateway.delivery.send(Message(content="x" * size), connections, [size])
        assert [len((await client.next())["content"]) for client in clients] == [size, size]


text = st.text(st.characters(codec="utf-8"))
params = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=8,
)


@given(
    msgid=st.integers(1, 2**53 - 1),
    notification=st.booleans(),
    content=text,
    extra=st.none() | text,
    title=st.none() | text,
    badge=st.none() | st.integers(-(2**31), 2**31 - 1),
    action=st.integers(0, 8),
    param=params,
    with_param=st.booleans(),
    indent=st.sampled_from([None, 1]),
)
def test_a_spliced_frame_equals_the_plain_encoding(
    msgid: int,
    notification: bool,
    content: str,
    extra: str | None,
    title: str | None,
    badge: int | None,
    action: int,
    param: Any,
    with_param: bool,
    indent: int | None,
) -> None:
    style = AndroidStyle(
        title=title,
        vibrate=True,
        badge=badge,
        click_action=action,
        click_param_json=json.dumps(param, indent=indent) if with_param else "",
    )
    message = Message(is_notif=notification, content=content, extra=extra, android=style)
    plain: dict[str, Any] = {"type": "push", "msgid": msgid, "is_notif": int(notification), "content": content}
    if notification:
        plain |= {} if title is None else {"title": title}
        plain |= {"sound": False, "vibrate": True, "removable": False}
        plain |= {"click": {"action": action} | ({"param": param} if with_param else {})} if action else {}
    plain |= {} if badge is None else {"badge": badge}
    plain |= {} if extra is None else {"extra": extra}
    plain["expires_at"] = 77
    assert json.loads(PushFrames(message, 77).text(msgid)) == plain


@pytest.mark.parametrize("broken", ["{", "NaN", "1 2", "[" * 5000])
def test_a_click_param_that_is_no_json_is_left_out(broken: str) -> None:
    style = AndroidStyle(click_action=1, click_param_json=broken)
    frame = json.loads(PushFrames(Message(is_notif=True, android=style), 1).text(1))
    assert frame["click"] == {"action": 1}


class WrittenFrames(list[tuple[str, int]]):
    """The app and the message id of each frame, in the order of writing."""

    def connection(self, appkey: str) -> DeviceConnection:
        """Return a connection of the app that notes what it is sent."""
        session = SimpleNamespace(appkey=appkey)
        write = SimpleNamespace(
            session=session,
            send_push=lambda frame, msgid, now_ms: self.append((appkey, msgid)),
            sent=NOTHING_SENT,
            send_pushes=lambda frames, msgids, now_ms: self.extend((appkey, msgid) for msgid in msgids),
            goodbye=lambda reason, *_, **__: self.append((appkey, 0)),
        )
        return cast(DeviceConnection, write)


def to(connections: range, msgid: int) -> Send:
    return Send(message=Message(content="c"), connections=array("Q", connections).tobytes(), msgids=pack("<Q", msgid))


def sender(
    written: WrittenFrames,
    broadcast: int,
    is_paused: Callable[[str], bool] = lambda appkey: False,
    now_ms: Callable[[], int] = lambda: 0,
) -> PushSender:
    """Return a sender with connections 1 to `broadcast` of app `noisy`, and connection 0 of app `quiet`."""
    table: ConnectionTable[DeviceConnection] = ConnectionTable()
    for number in range(broadcast + 1):
        appkey = "noisy" if number else "quiet"
        table.add(DeviceSession(number, appkey, f"token {number}", 0, number), written.connection(appkey))
    return PushSender(table, now_ms, Random(0), is_paused)


async def test_a_message_does_not_wait_for_another_apps_broadcast() -> None:
    written = WrittenFrames()
    pushes = sender(written, 50 * SLICE)
    await pushes.handle(AttachResponse(sends=[to(range(1, 50 * SLICE + 1), 1)]))
    await asyncio.sleep(0)
    await pushes.handle(AttachResponse(sends=[to(range(1), 2)]))
    assert written.index(("quiet", 2)) <= 2 * SLICE
    while len(written) < 50 * SLICE + 1:
        await asyncio.sleep(0)
    assert written.count(("noisy", 1)) == 50 * SLICE


async def test_one_step_of_the_loop_writes_a_bounded_number_of_frames() -> None:
    written = WrittenFrames()
    pushes = sender(written, 1)
    await pushes.handle(AttachResponse(sends=[to(range(1, 2), msgid) for msgid in range(1, 5 * SLICE)]))
    before = 0
    while len(written) < 5 * SLICE - 1:
        assert len(written) - before <= SLICE
        before = len(written)
        await asyncio.sleep(0)
    assert [msgid for _, msgid in written] == list(range(1, 5 * SLICE))


async def test_an_error_of_one_connection_stops_no_other_message() -> None:
    written = WrittenFrames()
    table: ConnectionTable[DeviceConnection] = ConnectionTable()
    for number in range(3 * SLICE):
        table.add(DeviceSession(number, "quiet", f"token {number}", 0, number), written.connection("quiet"))
    broken = cast(DeviceConnection, SimpleNamespace(session=SimpleNamespace(appkey="broken")))
    table.add(DeviceSession(3 * SLICE, "broken", "token", 0, 0), broken)
    pushes = PushSender(table, lambda: 0, Random(0), lambda appkey: False)
    to_broken, to_others = to(range(3 * SLICE, 3 * SLICE + 1), 1), to(range(3 * SLICE), 2)
    await pushes.handle(AttachResponse(sends=[to_broken, to_others, to_broken, to_others]))
    await run_ready_tasks()
    assert written == [("quiet", 2)] * 6 * SLICE
