"""Connections of the SDKs to a scripted gateway: hello, heartbeats, goodbyes, reconnects, TLS, frames beyond the rules.

`random` is always 0.5, so that a jittered delay is half of its bound. Waits end when the test orders it.
"""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from services.gateway.websocket.frames import TEXT, encode
from testkit.certificates import Authority
from testkit.gateway.scripted_gateway import WELCOME, ScriptedGateway, push
from tests.contract.sdk.driven_device import StartDevice, connected, vectors


async def test_hello_and_the_identity_of_the_welcome_after_a_restart(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device = await start_device(attributes={"brand": "Acme"}, heartbeat=600)
    connection = await gateway.next_connection()
    hello = {"type": "hello", "appkey": "1000000001", "device": {"brand": "Acme"}, "heartbeat": 600}
    assert await connection.next() == hello
    connection.send({"type": "welcome", "token": "t", "key": "k", "heartbeat": 600, "new": True})
    await device.welcomed()
    await device.close()
    assert await connection.closed() == 1000
    await start_device()
    again = await gateway.next_connection()
    assert await again.next() == {"type": "hello", "appkey": "1000000001", "token": "t", "key": "k"}


async def test_a_device_that_the_service_has_lost_stores_the_new_key_of_its_token(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.goodbye(reason="draining", retry_after_ms=20)
    await device.event("goodbye")
    device.elapse(await device.retry_ms())
    await gateway.welcome_next(key="k-2", new=True)
    assert (await device.event("welcome"))["new"] is True, "the app sets alias and tags again"
    await device.close()
    await start_device()
    again = await (await gateway.next_connection()).next()
    assert (again["token"], again["key"]) == ("t-1", "k-2")


async def test_it_reconnects_as_the_same_device_after_a_lost_connection(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.drop()
    assert await device.retry_ms() == 100
    device.elapse(100)
    again = await gateway.next_connection()
    hello = await again.next()
    assert (hello["token"], hello["key"]) == ("t-1", "k-1")


@pytest.mark.parametrize("vector", vectors("delays")["reconnect"], ids=lambda vector: str(vector["chance"]))
async def test_back_off_doubles_after_each_failure_up_to_30_s(
    start_device: StartDevice, gateway: ScriptedGateway, vector: dict[str, Any]
) -> None:
    device = await start_device(chance=vector["chance"])
    waits = []
    for _ in vector["retry_ms"]:
        (await gateway.next_connection()).drop()
        waits.append(await device.retry_ms())
        device.elapse(waits[-1])
    assert waits == vector["retry_ms"]
    connection = await gateway.welcome_next()
    await device.welcomed()
    connection.drop()
    assert await device.retry_ms() == 200 * vector["chance"]


async def test_back_off_doubles_while_the_identity_cannot_be_saved(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    state = tmp_path / "later" / "state.json"
    device = await start_device(state=state)
    waits = []
    for _ in range(4):
        await gateway.welcome_next()
        waits.append(await device.retry_ms())
        device.elapse(waits[-1])
    assert waits == [200, 400, 800, 1600]
    state.parent.mkdir()
    connection = await gateway.welcome_next()
    await device.welcomed()
    connection.drop()
    assert await device.retry_ms() == 100


@pytest.mark.parametrize("vector", vectors("delays")["goodbye"], ids=lambda vector: str(vector["goodbye"]))
async def test_it_reconnects_after_the_delay_of_the_goodbye(
    start_device: StartDevice, gateway: ScriptedGateway, vector: dict[str, Any]
) -> None:
    goodbye, wait_ms = vector["goodbye"], vector["retry_ms"]
    device, connection = await connected(start_device, gateway)
    connection.goodbye(**goodbye)
    assert await device.event("goodbye") == {"type": "goodbye", **goodbye}
    assert await device.retry_ms() == wait_ms
    device.elapse(wait_ms)
    await gateway.welcome_next()
    await device.event("welcome")


async def test_a_goodbye_before_the_welcome_is_obeyed_and_its_reason_shown(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device = await start_device()
    connection = await gateway.next_connection()
    connection.send({"type": "error", "code": 429, "desc": "too many devices"})
    connection.goodbye(reason="draining", retry_after_ms=700)
    assert (await device.event("error"))["desc"] == "too many devices"
    await device.event("goodbye")
    assert await device.retry_ms() == 700
    device.elapse(700)
    await gateway.welcome_next()
    await device.welcomed()


@pytest.mark.parametrize("reason", ["unauthorized", "replaced", "protocol"])
async def test_a_final_goodbye_ends_the_device(
    start_device: StartDevice, gateway: ScriptedGateway, reason: str
) -> None:
    device = await start_device()
    (await gateway.next_connection()).goodbye(reason=reason, retry_after_ms=60_000)
    await device.event("goodbye")
    assert (await device.event("ended"))["reason"] == reason
    assert await device.next("connect") == "ended"
    device.call("ended")
    assert await device.next("raised") == ["ended", None]
    await device.close()
    assert gateway.connections.empty()


@pytest.mark.parametrize("reason", ["replaced", "draining"])
async def test_a_goodbye_right_behind_the_welcome_is_obeyed(
    start_device: StartDevice, gateway: ScriptedGateway, reason: str
) -> None:
    device = await start_device()
    connection = await gateway.next_connection()
    await connection.next()
    goodbye = {"type": "goodbye", "reason": reason, "retry_after_ms": 700}
    frames = [encode(TEXT, json.dumps(each).encode()) for each in (WELCOME, goodbye)]
    connection.transport.underlying_transport.write(b"".join(frames))
    await device.event("welcome")
    await device.event("goodbye")
    if reason == "replaced":
        await device.event("ended")
        assert await device.next("connect") == "ended"
    else:
        assert await device.retry_ms() == 700
        device.elapse(700)
        await gateway.welcome_next()
        await device.welcomed()


async def test_heartbeats_follow_the_agreed_interval(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway, heartbeat=78)
    device.elapse(39_000)
    assert await connection.next() == {"type": "heartbeat"}
    for _ in range(2):
        device.elapse(78_000)
        assert await connection.next() == {"type": "heartbeat"}
    connection.answers_heartbeats = False
    device.elapse(78_000)
    assert await connection.next() == {"type": "heartbeat"}
    device.elapse(10_000)
    assert await device.retry_ms() == 100


async def test_it_reconnects_when_no_welcome_comes_in_time(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device = await start_device()
    connection = await gateway.next_connection()
    await connection.next()
    connection.send({"type": "welcome", "token": 5})
    device.elapse(10_000)
    assert await device.retry_ms() == 200


async def test_the_connection_and_the_welcome_have_10_s_each(start_device: StartDevice) -> None:
    gateway = ScriptedGateway()
    gateway.listen()
    device = await start_device(gateway.url)
    await gateway.wait_connecting()
    await device.move(9000)
    await gateway.open()
    connection = await gateway.next_connection()
    assert (await connection.next())["type"] == "hello"
    await device.move(9000)
    connection.send(WELCOME)
    await device.welcomed()
    await gateway.close()


async def test_it_follows_no_redirect(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        location = gateway.url.replace("ws://", "http://")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        device = await start_device(f"ws://127.0.0.1:{port}/device/v1")
        assert await device.retry_ms() == 200
    assert gateway.connections.empty()


async def test_tls_needs_a_certificate_of_a_trusted_authority_for_the_host(
    start_device: StartDevice, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    secure = ScriptedGateway(context)
    await secure.open()
    await (await start_device(secure.url)).retry_ms()
    other_name = secure.url.replace("127.0.0.1", "localhost")
    await (await start_device(other_name, ca=str(authority.file))).retry_ms()
    device = await start_device(secure.url, ca=str(authority.file))
    await secure.welcome_next()
    await device.welcomed()
    await device.close()
    await secure.close()


@pytest.mark.parametrize("extra", [0, 1], ids=["1 MiB", "over 1 MiB"])
async def test_a_frame_of_1_mib_is_taken_and_a_larger_one_costs_the_connection_at_most(
    start_device: StartDevice, gateway: ScriptedGateway, extra: int
) -> None:
    device, connection = await connected(start_device, gateway)
    frame = b'{"type": "news", "text": "%s"}'
    connection.send_payload(frame % (b"x" * (2**20 - len(frame) + 2 + extra)))
    connection.send(push(1, "behind it"))
    line = await device.line()
    if extra and "event" in line:
        assert line["event"]["type"] == "disconnected"
        device.elapse(line["event"]["retry_ms"])
        connection = await gateway.welcome_next()
        await device.event("welcome")
        connection.send(push(1, "behind it"))
        line = await device.line()
    assert line["push"]["content"] == "behind it"
    assert await connection.next() == {"type": "ack", "msgids": [1]}


async def test_text_that_is_not_utf_8_ends_the_connection_and_it_reconnects(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send_payload(b'{"type": "push", "msgid": 1, "is_notif": 0, "content": "\xff", "expires_at": 1}')
    if device.sdk == "okhttp":  # which puts a character in the place of such bytes, and cannot be told not to
        assert await device.shown() == "\ufffd"
        return
    assert await device.retry_ms() == 100
    assert await connection.closed() in {1007, None}
    device.elapse(100)
    again = await gateway.welcome_next()
    await device.event("welcome")
    again.send(push(1, "whole"))
    assert await device.shown() == "whole"


@pytest.mark.parametrize("version", [2, "2", 1.5, None])
async def test_a_state_in_a_later_form_is_kept_and_nothing_connects(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path, version: object
) -> None:
    state = tmp_path / "state.json"
    later = json.dumps({"version": version, "token": "t", "key": "k", "msgids": [7]})
    state.write_text(later)
    device = await start_device()
    line = await device.line()
    if "event" in line:
        assert line["event"] == {"type": "ended", "reason": "storage"}
        line = await device.line()
    assert line == {"connect": "storage"}
    await device.close()
    assert state.read_text() == later
    assert gateway.connections.empty()


async def test_what_a_later_version_has_stored_keeps_the_identity(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"version": 1, "token": "t", "key": "k", "msgids": [7], "later": {"a": [1]}}))
    device = await start_device()
    connection = await gateway.next_connection()
    hello = await connection.next()
    assert (hello["token"], hello["key"]) == ("t", "k")
    connection.send({**WELCOME, "token": "t", "key": "k", "new": False})
    await device.welcomed()
    connection.send(push(7, "had before"), push(8, "new"))
    assert await device.shown() == "new"
    await connection.next()
