"""Requests of a welcomed device, and what it reads afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from protos.push.v1.push_pb2 import Message
from protos.registry.v1.devices_pb2 import DeviceCommand
from protos.registry.v1.registry_pb2 import FindAliasesRequest
from services.domain.topics import DEVICE_COMMANDS, SESSIONS
from services.errors import UnavailableError
from services.gateway.connection import MAX_QUEUED_REQUESTS
from services.gateway.connections import DeviceSession
from services.gateway.session_writer import SessionWriter
from services.log.port import NewRecord
from testkit.gateway import websocket
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.scripted_delivery import BOUND_S
from testkit.gateway.websocket import PING, PONG, TEXT, DeviceClient, RawClient
from testkit.subscriptions import subscription_keys_as_text
from testkit.waiting import run_ready_tasks, until

NOTIFICATION = Message(is_notif=True, content="for alice")


@pytest.fixture
async def client(gateway: RunningGateway) -> AsyncIterator[DeviceClient]:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    yield client
    client.transport.disconnect(graceful=False)


async def record(client: DeviceClient) -> dict[str, Any]:
    answer = await client.request(type="get_device", id=99)
    assert (answer.pop("type"), answer.pop("id")) == ("ok", 99)
    return answer


async def test_every_change_is_answered_and_readable_at_once(client: DeviceClient) -> None:
    assert await record(client) == {"alias": None, "tags": [], "stags": [], "device": {}}
    changes: list[dict[str, Any]] = [
        {"type": "set_alias", "alias": "é" * 20},
        {"type": "add_tags", "tags": [5, -32767, 32767]},
        {"type": "remove_tags", "tags": [5, 6]},
        {"type": "add_stags", "stags": ["b", "a", "c"]},
        {"type": "remove_stags", "stags": ["c"]},
        {"type": "set_attributes", "device": {"brand": "Acme", "os_version": "14"}},
    ]
    for number, change in enumerate(changes):
        assert await client.request(**change, id=number) == {"type": "ok", "id": number}
    assert await record(client) == {
        "alias": "é" * 20,
        "tags": [-32767, 32767],
        "stags": ["a", "b"],
        "device": {"brand": "Acme", "os_version": "14"},
    }
    assert await client.request(type="clear_alias", id=7) == {"type": "ok", "id": 7}
    assert (await record(client))["alias"] is None


async def test_an_address_is_set_over_the_connection_and_moves_to_another_device(
    gateway: RunningGateway, client: DeviceClient
) -> None:
    endpoint = "https://push.example.org/wpush/v2/secret-part"
    change = {"type": "set_address", "channel": "webpush", "address": endpoint, "keys": subscription_keys_as_text()}
    assert await client.request(**change, id=1) == {"type": "ok", "id": 1}
    assert await client.request(type="set_address", channel="fcm", address="token", id=2) == {"type": "ok", "id": 2}
    assert (await record(client))["channels"] == ["webpush", "fcm"]
    gateway.clock.move(1)
    other = await DeviceClient.connect(gateway.port)
    await other.hello(ANDROID)
    assert await other.request(**change, id=1) == {"type": "ok", "id": 1}
    assert (await record(other))["channels"] == ["webpush"]

    async def has_one_channel() -> bool:
        return bool((await record(client))["channels"] == ["fcm"])

    await until(has_one_channel, BOUND_S)
    assert await client.request(type="clear_address", channel="fcm", id=3) == {"type": "ok", "id": 3}
    assert "channels" not in await record(client)
    other.transport.disconnect(graceful=False)


async def test_a_change_of_the_alias_is_confirmed_once_delivery_has_dropped_what_waited(
    gateway: RunningGateway, client: DeviceClient
) -> None:
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    gateway.aliases.dropped = [11, 12]
    gateway.aliases.answers.clear()
    client.send(type="set_alias", id=1, alias="bob")
    await asyncio.wait_for(gateway.aliases.asked.wait(), BOUND_S)
    gateway.delivery.send(NOTIFICATION, [connection], [11])
    assert (await client.next())["msgid"] == 11
    gateway.aliases.answers.set()
    assert await client.next() == {"type": "ok", "id": 1}
    gateway.delivery.send(NOTIFICATION, [connection], [12])
    gateway.delivery.send(NOTIFICATION, [connection], [13])
    assert (await client.next())["msgid"] == 13
    client.send(type="ack", msgids=[11, 13])
    gateway.aliases.dropped = []
    assert await client.request(type="clear_alias", id=2) == {"type": "ok", "id": 2}
    assert await client.request(type="add_tags", id=3, tags=[1]) == {"type": "ok", "id": 3}
    assert [row[1] for row in await gateway.delivery.until(gateway.delivery.reports)] == [11, 13]
    (_, partition, number), again = gateway.aliases.checked
    assert again == (ANDROID, partition, number)


async def test_a_change_of_the_alias_that_delivery_does_not_confirm_is_to_be_repeated(
    gateway: RunningGateway, client: DeviceClient
) -> None:
    gateway.aliases.error = UnavailableError("it is away")
    refused = await client.request(type="set_alias", id=1, alias="bob")
    assert (refused["type"], refused["code"], refused["id"]) == ("error", 500, 1)
    assert "repeat the request" in refused["desc"]
    gateway.aliases.error = None
    assert await client.request(type="set_alias", id=1, alias="bob") == {"type": "ok", "id": 1}


async def test_a_device_gives_itself_at_most_a_thousand_string_tags(client: DeviceClient) -> None:
    tags = [f"s{number:04}" for number in range(1001)]
    for start in range(0, 1000, 100):
        assert (await client.request(type="add_stags", stags=tags[start : start + 100], id=1))["type"] == "ok"
    full = await client.request(type="add_stags", stags=tags[-2:], id=2)
    assert (full["code"], full["desc"]) == (400, "input error: stags: a device has at most 1000 string tags")
    assert await client.request(type="add_stags", stags=tags[:2], id=3) == {"type": "ok", "id": 3}
    assert (await record(client))["stags"] == tags[:1000]
    assert (await client.request(type="remove_stags", stags=tags[:1], id=4))["type"] == "ok"


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        ({"type": "set_alias"}, "alias"),
        ({"type": "set_alias", "alias": ""}, "alias"),
        ({"type": "set_alias", "alias": "é" * 20 + "x"}, "alias"),
        ({"type": "set_alias", "alias": "a\0"}, "alias"),
        ({"type": "set_alias", "alias": 7}, "alias"),
        ({"type": "set_address", "address": "a"}, "channel"),
        ({"type": "set_address", "channel": "apns", "address": "a"}, "channel must be one of webpush, fcm"),
        ({"type": "set_address", "channel": "fcm", "address": ""}, "address must have 1 to 2048 characters"),
        ({"type": "set_address", "channel": "fcm", "address": "a", "keys": {"p256dh": "a", "auth": "b"}}, "leave them"),
        ({"type": "set_address", "channel": "webpush", "address": "https://h/a"}, "keys are missing"),
        ({"type": "clear_address"}, "channel"),
        ({"type": "clear_address", "channel": "email"}, "channel must be one of"),
        ({"type": "add_tags", "tags": []}, "tags"),
        ({"type": "add_tags", "tags": [32768]}, "tags[0]"),
        ({"type": "add_tags", "tags": [1, -32768]}, "tags[1]"),
        ({"type": "remove_tags", "tags": [1.5]}, "tags[0]"),
        ({"type": "add_tags", "tags": [1] * 101}, "tags"),
        ({"type": "add_stags", "stags": ["a", "x" * 41]}, "stags"),
        ({"type": "remove_stags", "stags": ["a"] * 101}, "stags"),
        ({"type": "remove_stags", "stags": "a"}, "stags"),
        ({"type": "set_attributes", "device": {"brand": [3]}}, "device.brand"),
        ({"type": "add_stags", "stags": ["a", "b\0"]}, "stags[1]"),
        ({"type": "set_attributes", "device": {"brand": "\0"}}, "device.brand"),
        ({"type": "get_device", "unread": {"x": ["\0"]}}, "unread.x[0]"),
        ({"type": "set_attributes"}, "device"),
        ({"type": "dance"}, "type"),
        ({}, "type"),
    ],
)
async def test_an_error_names_the_field_and_the_connection_stays_open(
    client: DeviceClient, frame: dict[str, Any], named: str
) -> None:
    answer = await client.request(**frame, id=3)
    assert (answer["type"], answer["id"], answer["code"]) == ("error", 3, 400)
    assert answer["desc"].startswith("input error: ")
    assert named in answer["desc"]
    assert (await client.request(type="clear_alias", id=4))["type"] == "ok"


async def test_a_request_without_a_valid_id_is_answered_by_an_error(client: DeviceClient) -> None:
    for frame in (
        {"type": "get_device"},
        {"type": "get_device", "id": "x"},
        {"type": "set_alias", "id": -1, "alias": "a"},
    ):
        answer = await client.request(**frame)
        assert (answer["type"], answer["code"], "id" in answer["desc"]) == ("error", 400, True)


async def test_requests_of_one_device_are_answered_in_order(client: DeviceClient) -> None:
    for number in range(20):
        client.send(type="set_alias", id=2 * number, alias=f"a{number}")
        client.send(type="get_device", id=2 * number + 1)
    answers = [await client.next() for _ in range(40)]
    assert [answer["id"] for answer in answers] == list(range(40))
    assert [answer["alias"] for answer in answers[1::2]] == [f"a{number}" for number in range(20)]


@pytest.mark.parametrize("held_up", ["begin_session", "set_alias"])
async def test_a_request_that_was_held_up_has_no_effect_after_those_over_a_later_connection(
    gateway: RunningGateway, client: DeviceClient, monkeypatch: pytest.MonkeyPatch, held_up: str
) -> None:
    append, arrived, go_on, appended = gateway.log.append, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold_up_first(new_records: Sequence[NewRecord]) -> list[int]:
        is_command = new_records[0].topic == DEVICE_COMMANDS.name
        kind = DeviceCommand.FromString(new_records[0].value).WhichOneof("command") if is_command else None
        if kind != held_up or arrived.is_set():
            return await append(new_records)
        arrived.set()
        await go_on.wait()
        offsets = await append(new_records)
        appended.set()
        return offsets

    identity = json.loads(client.texts[0])
    monkeypatch.setattr(gateway.log, "append", hold_up_first)
    client.send(type="set_alias", id=1, alias="earlier")
    await arrived.wait()
    client.transport.disconnect(graceful=False)
    again = await DeviceClient.connect(gateway.port)
    assert not (await again.hello(ANDROID, token=identity["token"], key=identity["key"]))["new"]
    assert (await again.request(type="set_alias", id=1, alias="later"))["type"] == "ok"
    go_on.set()
    await appended.wait()
    assert (await again.request(type="add_tags", id=2, tags=[1]))["type"] == "ok"
    assert (await record(again))["alias"] == "later"
    again.transport.disconnect(graceful=False)


async def test_a_change_waits_until_the_device_has_answered_a_ping_over_its_connection(gateway: RunningGateway) -> None:
    client = await RawClient.welcomed(gateway.port, ANDROID)
    client.send_json(type="set_alias", id=1, alias="a")
    ping = await client.next_frame()
    assert ping.opcode == PING
    client.send(websocket.frame(PONG, b"unasked"))
    client.send_json(type="get_device", id=2)
    gateway.clock.move(59)
    client.send(websocket.frame(PONG, ping.payload))
    assert [(await client.next_json())["type"] for _ in range(2)] == ["ok", "ok"]
    client.send_json(type="add_tags", id=3, tags=[1])
    assert (await client.next_frame()).opcode == TEXT, "there is one ping a connection"

    silent = await RawClient.welcomed(gateway.port, ANDROID)
    silent.send_json(type="set_alias", id=1, alias="b")
    assert (await silent.next_frame()).opcode == PING
    gateway.clock.move(61)
    assert json.loads((await silent.next_frame()).payload)["reason"] == "idle"


async def test_internal_errors_do_not_reveal_details(gateway: RunningGateway, client: DeviceClient) -> None:
    async def refuse(new_records: object) -> list[int]:
        raise UnavailableError("disk of /secret/place is full")

    gateway.log.append = refuse  # type: ignore[method-assign]
    answer = await client.request(type="set_alias", id=1, alias="a")
    assert answer == {
        "type": "error",
        "id": 1,
        "code": 500,
        "desc": "the service could not finish this; repeat the request",
    }


async def test_a_device_that_cannot_be_registered_gets_a_goodbye_with_a_retry_time(gateway: RunningGateway) -> None:
    async def refuse(new_records: object) -> list[int]:
        raise UnavailableError("the log is away")

    append, gateway.log.append = gateway.log.append, refuse  # type: ignore[method-assign]
    client = await DeviceClient.connect(gateway.port)
    goodbye = await client.hello(ANDROID)
    assert (goodbye["reason"], goodbye["retry_after_ms"] > 0) == ("draining", True)
    gateway.log.append = append  # type: ignore[method-assign]
    again = await DeviceClient.connect(gateway.port)
    assert (await again.hello(ANDROID))["type"] == "welcome"


async def test_a_device_with_too_many_queued_requests_is_disconnected(
    gateway: RunningGateway, client: DeviceClient
) -> None:
    gate = asyncio.Event()
    append = gateway.log.append

    async def wait(new_records: Any) -> list[int]:
        await gate.wait()
        return await append(new_records)

    gateway.log.append = wait  # type: ignore[method-assign]
    for number in range(MAX_QUEUED_REQUESTS + 1):
        client.send(type="clear_alias", id=number)
    assert await client.goodbye() == "protocol"
    gate.set()


async def test_an_ok_covers_what_the_device_reported_while_an_earlier_request_waited(
    gateway: RunningGateway, client: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, go_on = gateway.log.append, asyncio.Event()
    held: asyncio.Queue[None] = asyncio.Queue()

    async def append_slowly(new_records: Sequence[NewRecord]) -> list[int]:
        if new_records[0].topic == SESSIONS.name:
            held.put_nowait(None)
            await go_on.wait()
            go_on.clear()
        return await append(new_records)

    other = await DeviceClient.welcomed(gateway.port, ANDROID)
    await gateway.session_facts(enough=2)
    monkeypatch.setattr(gateway.log, "append", append_slowly)
    client.send(type="activity", event="open")
    client.send(type="get_device", id=1)
    await held.get()
    client.send(type="activity", event="login")
    client.send(type="get_device", id=2)
    assert (await client.request(type="ping"))["type"] == "pong"
    go_on.set()
    assert (await client.next())["id"] == 1
    await held.get()
    assert (await other.request(type="get_device", id=1))["type"] == "ok"
    await run_ready_tasks()
    assert client.frames.empty(), "the registry has answered both devices by now"
    go_on.set()
    assert (await client.next())["id"] == 2


async def test_a_request_waits_for_reported_activity_until_a_wait_succeeds(
    client: DeviceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[DeviceSession] = []

    async def fail_once(writer: SessionWriter, session: DeviceSession) -> None:
        waits.append(session)
        if len(waits) == 1:
            raise UnavailableError("the log is away")

    monkeypatch.setattr(SessionWriter, "wait_applied", fail_once)
    client.send(type="activity", event="open")
    answers = [await client.request(type="get_device", id=number) for number in range(3)]
    assert [answer["type"] for answer in answers] == ["error", "ok", "ok"]
    assert len(waits) == 2


async def test_after_ok_a_push_to_the_alias_goes_to_the_device_that_opened_the_app_last(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is slow to take the app open; the answer waits for it, and for the registry."""
    clients = [await DeviceClient.connect(gateway.port) for _ in range(2)]
    tokens = []
    for client in clients:
        tokens.append((await client.hello(ANDROID))["token"])
        assert (await client.request(type="set_alias", id=1, alias="anna"))["type"] == "ok"
        gateway.clock.move(1)
    await gateway.session_facts(enough=2)
    append, arrived, go_on = gateway.log.append, asyncio.Event(), asyncio.Event()

    async def append_slowly(new_records: Sequence[NewRecord]) -> list[int]:
        if new_records[0].topic == SESSIONS.name:
            arrived.set()
            await go_on.wait()
        return await append(new_records)

    monkeypatch.setattr(gateway.log, "append", append_slowly)
    clients[0].send(type="activity", event="open")
    answered = asyncio.create_task(clients[0].request(type="get_device", id=2))
    await arrived.wait()
    assert (await clients[1].request(type="get_device", id=3))["type"] == "ok"
    await run_ready_tasks()
    assert not answered.done(), "the registry has answered both devices by now"
    go_on.set()
    assert (await answered)["type"] == "ok"
    (found,) = (await gateway.registry.FindAliases(FindAliasesRequest(appkey=ANDROID, aliases=["anna"]))).aliases
    assert found.devices[0].token == tokens[0]
