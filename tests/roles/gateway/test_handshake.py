"""Who comes in, who does not, and who has to make room."""

import pytest
from picows import WSHandshakeError

from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import Platform
from services.domain.device_protocol import SUBPROTOCOL
from tests.roles.gateway.conftest import ANDROID, IOS, House
from tests.roles.gateway.listener.raw import CLOSE, Frame, RawClient, frame
from tests.roles.gateway.scripted import Client

OTHER = "1000000003"
POLICY_VIOLATION = 1008
OPENED = SessionEventKind.SESSION_EVENT_KIND_OPENED
CLOSED = SessionEventKind.SESSION_EVENT_KIND_CLOSED


async def test_a_new_device_gets_a_token_and_a_key_that_proves_its_number(house: House) -> None:
    client = await Client.connect(house.port)
    welcome = await client.hello(ANDROID, device={"brand": "Acme"})
    assert welcome["new"] is True
    assert welcome["heartbeat"] == 240
    device = await house.device(welcome["token"])
    assert house.keys.device_number(ANDROID, welcome["token"], welcome["key"]) == device.number
    assert device.attributes.brand == "Acme"


async def test_a_known_device_is_welcomed_by_its_key_and_may_change_its_attributes(house: House) -> None:
    first = await Client.connect(house.port)
    new = await first.hello(ANDROID)
    second = await Client.connect(house.port)
    again = await second.hello(ANDROID, token=new["token"], key=new["key"], device={"model": "X"})
    assert again == {**new, "new": False}
    events, _ = await house.session_facts(enough=3)
    assert [(event.kind, event.reason) for event in events] == [(OPENED, ""), (CLOSED, "replaced"), (OPENED, "")]
    read = await second.ask(type="get_device", id=1)
    assert read["device"] == {"model": "X"}


async def test_the_appkey_may_be_a_number(house: House) -> None:
    client = await Client.connect(house.port)
    assert (await client.ask(type="hello", appkey=int(ANDROID)))["type"] == "welcome"


async def test_a_device_registers_in_an_app_that_was_created_a_moment_ago(house: House) -> None:
    await house.create_app(OTHER, Platform.PLATFORM_ANDROID)
    client = await Client.connect(house.port)
    assert (await client.hello(OTHER))["type"] == "welcome"


async def test_all_refusals_look_alike(house: House) -> None:
    await house.create_app(OTHER, Platform.PLATFORM_ANDROID)
    known = await (await Client.connect(house.port)).hello(ANDROID)
    of_other = await (await Client.connect(house.port)).hello(OTHER)
    token, key = known["token"], known["key"]
    refused: dict[str, dict[str, str]] = {
        "unknown app": {"appkey": "1999999999"},
        "unknown app, with a key": {"appkey": "1999999999", "token": token, "key": key},
        "app of the other platform": {"appkey": IOS},
        "app of the other platform, with a key": {"appkey": IOS, "token": token, "key": key},
        "no key": {"appkey": ANDROID, "token": token},
        "no token": {"appkey": ANDROID, "key": key},
        "wrong key": {"appkey": ANDROID, "token": token, "key": ("A" if key[0] != "A" else "B") + key[1:]},
        "key that is no base64": {"appkey": ANDROID, "token": token, "key": "ü"},
        "key that is too short": {"appkey": ANDROID, "token": token, "key": key[:-1]},
        "key that is too long": {"appkey": ANDROID, "token": token, "key": key + "A"},
        "unknown token": {"appkey": ANDROID, "token": "0" * 32, "key": key},
        "device of another app": {"appkey": ANDROID, "token": of_other["token"], "key": of_other["key"]},
        "key of another app's device": {"appkey": ANDROID, "token": token, "key": of_other["key"]},
    }
    ends = {case: await end_of(house, hello) for case, hello in refused.items()}
    assert set(ends.values()) == {ends["wrong key"]}
    goodbye, close = ends["wrong key"]
    assert b'"unauthorized"' in goodbye.payload
    assert close.code == POLICY_VIOLATION


async def end_of(house: House, hello: dict[str, str]) -> tuple[Frame, ...]:
    """Every frame that answers it, to the byte, up to the end of the connection."""
    stranger = await RawClient.connect(house.port)
    stranger.say(type="hello", **hello)
    frames = [await stranger.next(), await stranger.next()]
    stranger.send(frame(CLOSE, frames[-1].payload))
    assert await stranger.rest() == b""
    return tuple(frames)


async def test_a_second_hello_of_a_device_replaces_its_older_connection(house: House) -> None:
    older = await Client.connect(house.port)
    welcome = await older.hello(ANDROID)
    newer = await Client.connect(house.port)
    await newer.hello(ANDROID, token=welcome["token"], key=welcome["key"])
    assert await older.goodbye() == "replaced"
    first, second = await house.delivery.until(
        lambda: len(house.delivery.connections()) == 2 and house.delivery.connections()
    )
    assert first < second
    await house.delivery.until(lambda: house.delivery.disconnected() == [first])
    answer = await newer.ask(type="get_device", id=1)
    assert answer["type"] == "ok"


async def test_delivery_may_end_a_connection(house: House) -> None:
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    (connection,) = await house.delivery.until(house.delivery.connections)
    house.delivery.close(connection, "replaced")
    assert await client.goodbye() == "replaced"


async def test_hello_comes_first_and_once(house: House) -> None:
    client = await Client.connect(house.port)
    client.send(type="get_device", id=1)
    assert await client.goodbye() == "protocol"
    client = await Client.connect(house.port)
    await client.hello(ANDROID)
    client.send(type="hello", appkey=ANDROID)
    assert await client.goodbye() == "protocol"


async def test_frames_sent_with_the_first_hello_wait_for_the_welcome(house: House) -> None:
    client = await Client.connect(house.port)
    client.send(type="hello", appkey=ANDROID)
    client.send(type="set_alias", id=1, alias="anna")
    client.send(type="get_device", id=2)
    assert (await client.next())["type"] == "welcome"
    assert await client.next() == {"type": "ok", "id": 1}
    assert (await client.next())["alias"] == "anna"


async def test_the_subprotocol_is_echoed_to_those_who_ask(house: House) -> None:
    asked = await Client.connect(house.port, {"Sec-WebSocket-Protocol": f"other, {SUBPROTOCOL}"})
    assert asked.transport.response.headers["Sec-WebSocket-Protocol"] == SUBPROTOCOL
    silent = await Client.connect(house.port)
    assert "Sec-WebSocket-Protocol" not in silent.transport.response.headers


async def test_other_paths_are_not_there(house: House) -> None:
    with pytest.raises(WSHandshakeError) as refused:
        await Client.connect(house.port, path="/device/v2")
    assert refused.value.response is not None
    assert refused.value.response.status == 404
