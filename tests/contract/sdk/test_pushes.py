"""Pushes at the SDKs from a scripted gateway: handled once, saved, then acknowledged.

Waits end when the test orders it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from picows import WSMsgType

from testkit.gateway.scripted_gateway import ScriptedGateway, push
from tests.contract.sdk.driven_device import StartDevice, connected, vectors


async def test_pushes_handled_together_are_acknowledged_together(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "slow"))
    assert await device.shown() == "slow"
    connection.send(push(2, "b"), push(1, "slow"), push(2, "b"), push(1, "slow"), push(3, "c"))
    device.call("clear_alias")
    connection.send({"type": "ok", "id": (await connection.next())["id"]})
    await device.next("returned")
    device.elapse(5000)
    assert [await device.shown(), await device.shown()] == ["b", "c"]
    assert await connection.next() == {"type": "ack", "msgids": [1, 2, 1, 3]}


async def test_a_push_that_crosses_the_close_is_shown_once(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    connection.frames_on_close = [push(7, "late")]
    device.command(do="close")
    shown_at_close = []
    while "closed" not in (line := await device.line()):
        shown_at_close.append(line["push"]["content"])
    device, connection = await connected(start_device, gateway)
    connection.send(push(7, "late"), push(8, "next"))
    shown = [*shown_at_close, await device.shown()]
    while shown[-1] != "next":
        shown.append(await device.shown())
    assert shown == ["late", "next"]


async def test_a_repeated_push_is_acknowledged_again_and_not_shown(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "a"))
    assert await device.shown() == "a"
    assert await connection.next() == {"type": "ack", "msgids": [1]}
    connection.drop()
    device.elapse(await device.retry_ms())
    connection = await gateway.welcome_next()
    await device.event("welcome")
    connection.send(push(1, "a"))
    assert await connection.next() == {"type": "ack", "msgids": [1]}
    await device.close()
    device = await start_device()
    connection = await gateway.welcome_next()
    await device.welcomed()
    connection.send(push(1, "a"), push(2, "b"))
    assert await device.shown() == "b"


async def test_the_last_1000_message_ids_are_remembered(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(*(push(number) for number in range(1, 1002)))
    acknowledged: list[int] = []
    while len(acknowledged) < 1001:
        ack = await connection.next()
        assert len(json.dumps(ack)) < 8192
        acknowledged += ack["msgids"]
    assert acknowledged == list(range(1, 1002))
    assert json.loads((tmp_path / "state.json").read_text())["msgids"] == list(range(2, 1002))
    for _ in acknowledged:
        await device.shown()
    connection.send(push(2, "still known"), push(1, "forgotten"))
    assert await device.shown() == "forgotten"


@pytest.mark.parametrize("vector", vectors("seen"), ids=lambda vector: str(vector["what"]))
async def test_the_list_of_seen_ids_is_the_same_in_each_sdk(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path, vector: dict[str, Any]
) -> None:
    def numbers(ranges: list[list[int]]) -> list[int]:
        return [number for first, last in ranges for number in range(first, last + 1)]

    device, connection = await connected(start_device, gateway)
    for sent in vector["pushes"]:
        ids = numbers([sent])
        for start in range(0, len(ids), 500):  # fewer than a device lets wait
            batch = ids[start : start + 500]
            connection.send(*(push(number, str(number)) for number in batch))
            acknowledged: list[int] = []
            while len(acknowledged) < len(batch):
                acknowledged += (await connection.next())["msgids"]
            assert acknowledged == batch
    assert json.loads((tmp_path / "state.json").read_text())["msgids"] == numbers(vector["msgids"])
    assert [int(await device.shown()) for _ in numbers(vector["shown"])] == numbers(vector["shown"])


async def test_a_click_reaches_the_app_as_it_was_sent(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    for number, vector in enumerate(vectors("clicks"), start=1):
        click = {} if vector["click"] is None else {"click": vector["click"]}
        connection.send(push(number, vector["what"], **click))
        assert await device.next("push") == push(number, vector["what"], **click)


async def test_acknowledged_message_ids_are_saved(
    start_device: StartDevice, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    _, connection = await connected(start_device, gateway)
    state = tmp_path / "state.json"
    assert json.loads(state.read_text()) == {"token": "t-1", "key": "k-1", "msgids": []}
    for number in range(1, 30):
        connection.send(push(number))
        assert await connection.next() == {"type": "ack", "msgids": [number]}
        assert json.loads(state.read_text())["msgids"] == list(range(1, number + 1))


async def test_a_push_that_the_app_failed_on_is_not_acknowledged(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "fail"), push(2, "fine"))
    assert [await device.shown(), await device.shown()] == ["fail", "fine"]
    assert await connection.next() == {"type": "ack", "msgids": [2]}
    connection.drop()
    device.elapse(await device.retry_ms())
    connection = await gateway.welcome_next()
    await device.event("welcome")
    connection.send(push(1, "now it works"))
    assert await device.shown() == "now it works"
    assert await connection.next() == {"type": "ack", "msgids": [1]}


async def test_a_push_is_acknowledged_after_the_app_has_handled_it(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "slow"), push(2, "next"))
    assert await device.shown() == "slow"
    device.call("report", "shown", 9)
    await device.next("returned")
    assert (await connection.next())["type"] == "report"
    device.elapse(5000)
    assert await device.shown() == "next"
    assert await connection.next() == {"type": "ack", "msgids": [1, 2]}


async def test_a_callback_times_out_after_30_s(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "hang"), push(2, "next"))
    assert await device.shown() == "hang"
    device.elapse(30_000)
    assert await device.shown() == "next"
    assert await connection.next() == {"type": "ack", "msgids": [2]}


async def test_a_push_that_waits_for_the_app_is_not_queued_again(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    backlog = [push(number) for number in range(2, 17)]
    connection.send(push(1, "hang"), *backlog)
    assert await device.shown() == "hang"
    device.call("activity", "open")
    assert (await connection.next())["type"] == "activity"
    for _ in range(3):
        connection.send(push(1, "again"), *backlog)
        connection.goodbye(reason="idle", retry_after_ms=0)
        device.elapse(100)
        connection = await gateway.welcome_next()
        assert (await connection.next())["type"] == "activity", "what is not confirmed comes again after the welcome"
    connection.send(push(17))
    device.elapse(30_000)
    acknowledged: list[int] = []
    while 17 not in acknowledged:
        acknowledged += (await connection.next())["msgids"]
    assert acknowledged == [*range(2, 17), 1, 17]


async def test_while_too_many_pushes_wait_connections_are_dropped_and_back_off_grows(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send(push(1, "hang"), *(push(number) for number in range(2, 1100)))
    assert await device.shown() == "hang"
    await connection.closed()
    for wait_ms in (200, 400, 800):
        device.elapse(wait_ms)
        connection = await gateway.welcome_next()
        connection.send(push(2000))
        await connection.closed()
    device.elapse(1600)
    (await gateway.next_connection()).goodbye(reason="replaced")
    device.call("ended")
    device.elapse(30_000)
    lines = [await device.line()]
    while "raised" not in lines[-1]:
        lines.append(await device.line())
    assert lines[-1]["raised"] == ["ended", None]
    events = [line["event"]["type"] for line in lines if "event" in line]
    assert events == [*["disconnected", "welcome"] * 3, "disconnected", "goodbye", "ended"], (
        "the queue has room for them"
    )


async def test_unknown_frames_are_ignored(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    connection.send({"type": "news", "id": 1}, {"type": "ok", "id": 77}, {"type": "ok", "id": [1]}, {"no": "type"})
    connection.send({"type": "push"}, {"type": "push", "msgid": "1"}, {"type": "goodbye"}, {"type": "welcome"})
    for text in (b"{", b'"text"', b"[1]", b"null", b"5"):
        connection.send_payload(text)
    connection.send_payload(b"\0\xff", WSMsgType.BINARY)
    connection.send_payload(json.dumps(push(1, "in two parts")).encode()[:20], fin=False)
    connection.send_payload(json.dumps(push(1, "in two parts")).encode()[20:], WSMsgType.CONTINUATION)
    assert await device.shown() == "in two parts"
    assert await connection.next() == {"type": "ack", "msgids": [1]}
