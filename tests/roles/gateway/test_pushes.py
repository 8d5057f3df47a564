"""From delivery to the device: one frame for many, the right fields, the right number."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.gateway.connection import HEADROOM
from services.gateway.push_frames import PushFrames
from tests.roles.gateway.conftest import ANDROID, House
from tests.roles.gateway.scripted import Client

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


async def devices(house: House, count: int) -> tuple[list[Client], list[int]]:
    clients = [await Client.connect(house.port) for _ in range(count)]
    for client in clients:
        await client.hello(ANDROID)
    return clients, await house.delivery.until(lambda: len(c := house.delivery.connections()) == count and c)


async def test_a_notification_has_all_its_fields(house: House) -> None:
    (client,), (connection,) = await devices(house, 1)
    house.delivery.send(NOTIFICATION, [connection], [2**53 - 1], expires_ms=1_800_000_000_123)
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


async def test_a_message_that_is_passed_through_has_few(house: House) -> None:
    (client,), (connection,) = await devices(house, 1)
    style = AndroidStyle(title="T", sound=True, click_action=2, click_param_json='"u"')
    house.delivery.send(Message(content="c", android=style), [connection], [7])
    assert await client.next() == {"type": "push", "msgid": 7, "is_notif": 0, "content": "c", "expires_at": 5}


async def test_one_message_reaches_many_connections_with_one_number_or_each_with_its_own(house: House) -> None:
    clients, connections = await devices(house, 5)
    house.delivery.send(NOTIFICATION, [*connections, 12345], [11])
    house.delivery.send(NOTIFICATION, connections, [21, 22, 23, 24, 25])
    for index, client in enumerate(clients):
        assert [(await client.next())["msgid"] for _ in range(2)] == [11, 21 + index]


async def test_a_message_for_more_connections_than_one_chunk_reaches_each_once(house: House) -> None:
    (client,), (connection,) = await devices(house, 1)
    gone = list(range(1, 700))
    house.delivery.send(NOTIFICATION, [*gone, connection, *gone], [9])
    assert (await client.next())["msgid"] == 9
    assert (await client.ask(type="get_device", id=1))["type"] == "ok"


async def test_a_frame_longer_than_the_short_websocket_header_allows(house: House) -> None:
    clients, connections = await devices(house, 2)
    for size in (10, 200, 70_000):
        house.delivery.send(Message(content="x" * size), connections, [size])
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
def test_the_spliced_frame_is_what_a_plain_encoding_says(
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
    frame = PushFrames(message, 77).frame(msgid)
    assert json.loads(frame[HEADROOM:]) == plain


@pytest.mark.parametrize("broken", ["{", "NaN", "1 2", "[" * 5000])
def test_a_parameter_that_is_no_json_does_not_break_the_frame(broken: str) -> None:
    style = AndroidStyle(click_action=1, click_param_json=broken)
    frame = json.loads(PushFrames(Message(is_notif=True, android=style), 1).frame(1)[HEADROOM:])
    assert frame["click"] == {"action": 1}
