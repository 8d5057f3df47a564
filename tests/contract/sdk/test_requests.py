"""Requests of the SDKs to a scripted gateway: frames, answers and errors."""

from typing import Any

import pytest

from testkit.gateway.scripted_gateway import ScriptedGateway
from tests.contract.sdk.driven_device import StartDevice, connected, vectors

REQUESTS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("set_alias", ["alice"], {"type": "set_alias", "alias": "alice"}),
    ("clear_alias", [], {"type": "clear_alias"}),
    ("add_tags", [[1, -2]], {"type": "add_tags", "tags": [1, -2]}),
    ("remove_tags", [[1]], {"type": "remove_tags", "tags": [1]}),
    ("add_stags", [["n"]], {"type": "add_stags", "stags": ["n"]}),
    ("remove_stags", [["n"]], {"type": "remove_stags", "stags": ["n"]}),
    ("set_attributes", [{"brand": "b"}], {"type": "set_attributes", "device": {"brand": "b"}}),
    ("set_address", ["fcm", "token"], {"type": "set_address", "channel": "fcm", "address": "token"}),
    (
        "set_address",
        ["webpush", "https://push.example.org/1", {"keys": {"p256dh": "p", "auth": "a"}}],
        {
            "type": "set_address",
            "channel": "webpush",
            "address": "https://push.example.org/1",
            "keys": {"p256dh": "p", "auth": "a"},
        },
    ),
    ("clear_address", ["fcm"], {"type": "clear_address", "channel": "fcm"}),
]


async def test_requests_are_sent_and_answered(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    for number, (method, arguments, frame) in enumerate(REQUESTS, 1):
        device.call(method, *arguments)
        assert await connection.next() == {**frame, "id": number}
        connection.send({"type": "ok", "id": number})
        await device.next("returned")
    device.call("get_device")
    request = await connection.next()
    connection.send({"type": "ok", "id": request["id"], "alias": None, "tags": [], "stags": [], "device": {}})
    assert (await device.next("returned"))["tags"] == []


async def test_a_proof_goes_with_the_alias_and_the_tags(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    for method, field, value in (
        ("set_alias", "alias", "alice"),
        ("add_tags", "tags", [1]),
        ("add_stags", "stags", ["n"]),
    ):
        for proof in ("a.b.c", ["a.b.c"]):
            device.call(method, value, {"proof": proof})
            request = await connection.next()
            assert request == {"type": method, field: value, "proof": "a.b.c", "id": request["id"]}
            connection.send({"type": "ok", "id": request["id"]})
            await device.next("returned")


async def test_a_proof_that_is_refused_is_fetched_again_with_growing_delays(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    device.call("set_alias", "alice", {"proof": ["expired", "expired too", "fresh"]})
    for proof, delay_ms in (("expired", 4500), ("expired too", 9000)):
        request = await connection.next()
        assert request["proof"] == proof
        connection.send({"type": "error", "id": request["id"], "code": 401, "desc": "proof: it has expired"})
        device.elapse(delay_ms)
    request = await connection.next()
    assert request["proof"] == "fresh"
    connection.send({"type": "ok", "id": request["id"]})
    await device.next("returned")


@pytest.mark.parametrize(
    "vector", vectors("delays")["proof"], ids=lambda vector: f"{vector['code']}-{vector['chance']}"
)
async def test_only_proofs_that_are_wrong_or_too_many_are_fetched_again_and_at_most_twice(
    start_device: StartDevice, gateway: ScriptedGateway, vector: dict[str, Any]
) -> None:
    device = await start_device(chance=vector["chance"])
    connection = await gateway.welcome_next()
    await device.welcomed()
    device.call("add_stags", ["user:7"], {"proof": ["one", "two", "three", "four"]})
    for delay_ms in (*vector["delays_ms"], None):
        request = await connection.next()
        connection.send({"type": "error", "id": request["id"], "code": vector["code"], "desc": "no"})
        if delay_ms is not None:
            device.elapse(delay_ms)
    assert await device.next("raised") == ["refused", vector["code"]]


async def test_a_proof_that_is_given_as_text_is_handed_in_once(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    device, connection = await connected(start_device, gateway)
    device.call("set_alias", "alice", {"proof": "expired"})
    request = await connection.next()
    connection.send({"type": "error", "id": request["id"], "code": 401, "desc": "proof: it has expired"})
    assert await device.next("raised") == ["refused", 401]


async def test_reports_that_are_not_confirmed_are_sent_again(
    start_device: StartDevice, gateway: ScriptedGateway
) -> None:
    """A killed gateway has not confirmed the reports that it loses. A report without a connection waits for one."""
    device, connection = await connected(start_device, gateway)
    sent: list[dict[str, Any]] = []
    for method, values in (("report", ["clicked", 5]), ("report", ["shown", 6]), ("activity", ["open"])):
        device.call(method, *values)
        sent.append(await connection.next())
        await device.next("returned")
    assert sent == [
        {"type": "report", "event": "clicked", "msgid": 5, "id": 1},
        {"type": "report", "event": "shown", "msgid": 6, "id": 2},
        {"type": "activity", "event": "open", "id": 3},
    ]
    connection.send({"type": "ok", "id": 2})
    connection.drop()
    device.elapse(await device.retry_ms())
    connection = await gateway.welcome_next()
    assert [await connection.next() for _ in range(2)] == [sent[0], sent[2]]
    connection.send({"type": "ok", "id": 1}, {"type": "error", "id": 3, "code": 400, "desc": "input error: event"})
    await device.event("welcome")
    assert (await device.event("error"))["id"] == 3
    connection.drop()
    retry_ms = await device.retry_ms()
    device.call("report", "dismissed", 6)
    await device.next("returned")
    device.elapse(retry_ms)
    connection = await gateway.welcome_next()
    assert await connection.next() == {"type": "report", "event": "dismissed", "msgid": 6, "id": 4}


async def test_requests_fail_in_four_ways(start_device: StartDevice, gateway: ScriptedGateway) -> None:
    device, connection = await connected(start_device, gateway)
    device.call("set_alias", "")
    connection.send({"type": "error", "id": (await connection.next())["id"], "code": 400, "desc": "input error: alias"})
    assert await device.next("raised") == ["refused", 400]
    device.call("clear_alias")
    late = await connection.next()
    device.elapse(10_000)
    assert await device.next("raised") == ["deadline", None]
    connection.send({"type": "ok", "id": late["id"]}, {"type": "error", "code": 400, "desc": "for a report"})
    assert (await device.event("error"))["desc"] == "for a report"
    device.call("clear_alias")
    await connection.next()
    connection.drop()
    line = {**await device.line(), **await device.line()}
    assert (line["raised"], line["event"]["type"]) == (["unavailable", None], "disconnected")
    device.call("clear_alias")
    assert await device.next("raised") == ["unavailable", None]
