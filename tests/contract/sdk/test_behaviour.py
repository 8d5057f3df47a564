"""What every client library must do, played with both SDKs against a gateway that misbehaves in each way.

`random` is always 0.5, so a jittered wait is half of its bound; waits end when the test says so.
"""

import json
import ssl
from pathlib import Path
from typing import Any

import pytest
from picows import WSMsgType

from testkit.certificates import Authority
from tests.contract.sdk.conftest import Start
from tests.contract.sdk.driven import Driven
from tests.contract.sdk.gateway import ScriptedGateway, Visit, push


async def connected(start: Start, gateway: ScriptedGateway, **welcome: Any) -> tuple[Driven, Visit]:
    device = await start()
    visit = await gateway.greeted(**welcome)
    await device.welcomed()
    return device, visit


async def gone(device: Driven) -> int:
    """How long the device waits before it connects again."""
    return int((await device.event("disconnected"))["retry_ms"])


async def test_it_says_hello_and_keeps_what_the_welcome_gave(start: Start, gateway: ScriptedGateway) -> None:
    device = await start(attributes={"brand": "Acme"}, heartbeat=600)
    visit = await gateway.visit()
    hello = {"type": "hello", "appkey": "1000000001", "device": {"brand": "Acme"}, "heartbeat": 600}
    assert await visit.next() == hello
    visit.send({"type": "welcome", "token": "t", "key": "k", "heartbeat": 600, "new": True})
    await device.welcomed()
    await device.close()
    assert await visit.closed() == 1000
    await start()
    again = await gateway.visit()
    assert await again.next() == {"type": "hello", "appkey": "1000000001", "token": "t", "key": "k"}


async def test_it_comes_back_as_the_same_device_after_a_lost_connection(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.drop()
    assert await gone(device) == 100
    device.elapse(100)
    again = await gateway.visit()
    hello = await again.next()
    assert (hello["token"], hello["key"]) == ("t-1", "k-1")


async def test_it_waits_longer_after_each_failure_up_to_half_a_minute(start: Start, gateway: ScriptedGateway) -> None:
    device = await start()
    waits = []
    for _ in range(9):
        (await gateway.visit()).drop()
        waits.append(await gone(device))
        device.elapse(waits[-1])
    assert waits == [200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]
    visit = await gateway.greeted()
    await device.welcomed()
    visit.drop()
    assert await gone(device) == 100


GOODBYES = [
    ({"reason": "draining", "retry_after_ms": 1500}, 1500),
    ({"reason": "draining"}, 100),
    ({"reason": "idle", "retry_after_ms": 0}, 100),
    ({"reason": "idle", "retry_after_ms": "soon"}, 100),
    ({"reason": "a reason of later days", "retry_after_ms": 20}, 20),
    ({"reason": "draining", "retry_after_ms": 10**12}, 86_400_000),
]


@pytest.mark.parametrize(("goodbye", "wait_ms"), GOODBYES)
async def test_it_comes_back_when_the_goodbye_says(
    start: Start, gateway: ScriptedGateway, goodbye: dict[str, Any], wait_ms: int
) -> None:
    device, visit = await connected(start, gateway)
    visit.goodbye(**goodbye)
    assert await device.event("goodbye") == {"type": "goodbye", **goodbye}
    assert await gone(device) == wait_ms
    device.elapse(wait_ms)
    await gateway.greeted()
    await device.event("welcome")


async def test_a_goodbye_may_come_instead_of_the_welcome(start: Start, gateway: ScriptedGateway) -> None:
    device = await start()
    (await gateway.visit()).goodbye(reason="draining", retry_after_ms=700)
    await device.event("goodbye")
    assert await gone(device) == 700
    device.elapse(700)
    await gateway.greeted()
    await device.welcomed()


@pytest.mark.parametrize("reason", ["unauthorized", "replaced", "protocol"])
async def test_a_final_goodbye_ends_it(start: Start, gateway: ScriptedGateway, reason: str) -> None:
    device = await start()
    (await gateway.visit()).goodbye(reason=reason, retry_after_ms=60_000)
    await device.event("goodbye")
    assert (await device.event("ended"))["reason"] == reason
    assert await device.next("connect") == "ended"
    device.call("ended")
    assert await device.next("raised") == ["ended", None]
    await device.close()
    assert gateway.visits.empty()


async def test_it_acknowledges_together_what_is_handled_together(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "slow"), push(2, "b"), push(1, "slow"), push(3, "c"))
    assert await device.shown() == "slow"
    device.call("clear_alias")
    visit.send({"type": "ok", "id": (await visit.next())["id"]})
    await device.next("returned")
    device.elapse(5000)
    assert [await device.shown(), await device.shown()] == ["b", "c"]
    assert await visit.next() == {"type": "ack", "msgids": [1, 2, 1, 3]}


async def test_a_push_that_crosses_the_close_is_shown_once_in_all(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.parting = [push(7, "late")]
    device.tell(do="close")
    last_words = []
    while "closed" not in (told := await device.line()):
        last_words.append(told["push"]["content"])
    device, visit = await connected(start, gateway)
    visit.send(push(7, "late"), push(8, "next"))
    shown = [*last_words, await device.shown()]
    while shown[-1] != "next":
        shown.append(await device.shown())
    assert shown == ["late", "next"]


async def test_a_push_that_comes_again_is_acknowledged_again_and_not_shown(
    start: Start, gateway: ScriptedGateway
) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "a"))
    assert await device.shown() == "a"
    assert await visit.next() == {"type": "ack", "msgids": [1]}
    visit.drop()
    device.elapse(await gone(device))
    visit = await gateway.greeted()
    await device.event("welcome")
    visit.send(push(1, "a"))
    assert await visit.next() == {"type": "ack", "msgids": [1]}
    await device.close()
    device = await start()
    visit = await gateway.greeted()
    await device.welcomed()
    visit.send(push(1, "a"), push(2, "b"))
    assert await device.shown() == "b"


async def test_it_remembers_the_last_thousand(start: Start, gateway: ScriptedGateway, tmp_path: Path) -> None:
    device, visit = await connected(start, gateway)
    visit.send(*(push(number) for number in range(1, 1002)))
    acknowledged: list[int] = []
    while len(acknowledged) < 1001:
        ack = await visit.next()
        assert len(json.dumps(ack)) < 8192
        acknowledged += ack["msgids"]
    assert acknowledged == list(range(1, 1002))
    assert json.loads((tmp_path / "state.json").read_text())["msgids"] == list(range(2, 1002))
    for _ in acknowledged:
        await device.shown()
    visit.send(push(2, "still known"), push(1, "forgotten"))
    assert await device.shown() == "forgotten"


async def test_what_is_acknowledged_is_saved(start: Start, gateway: ScriptedGateway, tmp_path: Path) -> None:
    _, visit = await connected(start, gateway)
    state = tmp_path / "state.json"
    assert json.loads(state.read_text()) == {"token": "t-1", "key": "k-1", "msgids": []}
    for number in range(1, 30):
        visit.send(push(number))
        assert await visit.next() == {"type": "ack", "msgids": [number]}
        assert json.loads(state.read_text())["msgids"] == list(range(1, number + 1))


async def test_what_the_app_failed_on_is_not_acknowledged_and_comes_again(
    start: Start, gateway: ScriptedGateway
) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "fail"), push(2, "fine"))
    assert [await device.shown(), await device.shown()] == ["fail", "fine"]
    assert await visit.next() == {"type": "ack", "msgids": [2]}
    visit.drop()
    device.elapse(await gone(device))
    visit = await gateway.greeted()
    await device.event("welcome")
    visit.send(push(1, "now it works"))
    assert await device.shown() == "now it works"
    assert await visit.next() == {"type": "ack", "msgids": [1]}


async def test_a_push_is_acknowledged_after_the_app_is_done_with_it(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "slow"), push(2, "next"))
    assert await device.shown() == "slow"
    device.call("report", "shown", 9)
    await device.next("returned")
    assert (await visit.next())["type"] == "report"
    device.elapse(5000)
    assert await device.shown() == "next"
    assert await visit.next() == {"type": "ack", "msgids": [1, 2]}


async def test_an_app_that_hangs_is_given_up_after_half_a_minute(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "hang"), push(2, "next"))
    assert await device.shown() == "hang"
    device.elapse(30_000)
    assert await device.shown() == "next"
    assert await visit.next() == {"type": "ack", "msgids": [2]}


async def test_with_too_many_pushes_waiting_it_drops_the_connection(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.send(push(1, "hang"), *(push(number) for number in range(2, 1100)))
    assert await device.shown() == "hang"
    await visit.closed()


async def test_it_passes_over_what_it_does_not_know(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    visit.send({"type": "news", "id": 1}, {"type": "ok", "id": 77}, {"type": "ok", "id": [1]}, {"no": "type"})
    visit.send({"type": "push"}, {"type": "push", "msgid": "1"}, {"type": "goodbye"}, {"type": "welcome"})
    for text in (b"{", b'"text"', b"[1]", b"null", b"5"):
        visit.raw(text)
    visit.raw(b"\0\xff", WSMsgType.BINARY)
    visit.raw(json.dumps(push(1, "in two parts")).encode()[:20], fin=False)
    visit.raw(json.dumps(push(1, "in two parts")).encode()[20:], WSMsgType.CONTINUATION)
    assert await device.shown() == "in two parts"
    assert await visit.next() == {"type": "ack", "msgids": [1]}


async def test_it_gives_signs_of_life_in_the_agreed_rhythm(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway, heartbeat=78)
    device.elapse(39_000)
    assert await visit.next() == {"type": "heartbeat"}
    for _ in range(2):
        device.elapse(78_000)
        assert await visit.next() == {"type": "heartbeat"}
    visit.answers_heartbeats = False
    device.elapse(78_000)
    assert await visit.next() == {"type": "heartbeat"}
    device.elapse(10_000)
    assert await gone(device) == 100


async def test_it_gives_up_a_gateway_that_does_not_welcome_it(start: Start, gateway: ScriptedGateway) -> None:
    device = await start()
    visit = await gateway.visit()
    await visit.next()
    visit.send({"type": "welcome", "token": 5})
    device.elapse(10_000)
    assert await gone(device) == 200


REQUESTS: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("set_alias", ["alice"], {"type": "set_alias", "alias": "alice"}),
    ("clear_alias", [], {"type": "clear_alias"}),
    ("add_tags", [[1, -2]], {"type": "add_tags", "tags": [1, -2]}),
    ("remove_tags", [[1]], {"type": "remove_tags", "tags": [1]}),
    ("add_stags", [["n"]], {"type": "add_stags", "stags": ["n"]}),
    ("remove_stags", [["n"]], {"type": "remove_stags", "stags": ["n"]}),
    ("set_attributes", [{"brand": "b"}], {"type": "set_attributes", "device": {"brand": "b"}}),
]


async def test_requests_are_sent_and_answered(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    for number, (method, arguments, frame) in enumerate(REQUESTS, 1):
        device.call(method, *arguments)
        assert await visit.next() == {**frame, "id": number}
        visit.send({"type": "ok", "id": number})
        await device.next("returned")
    device.call("get_device")
    asked = await visit.next()
    visit.send({"type": "ok", "id": asked["id"], "alias": None, "tags": [], "stags": [], "device": {}})
    assert (await device.next("returned"))["tags"] == []
    for method, frame in (("report", {"event": "clicked", "msgid": 5}), ("activity", {"event": "open"})):
        device.call(method, *frame.values())
        assert await visit.next() == {"type": method, **frame}
        await device.next("returned")


async def test_requests_fail_in_four_ways(start: Start, gateway: ScriptedGateway) -> None:
    device, visit = await connected(start, gateway)
    device.call("set_alias", "")
    visit.send({"type": "error", "id": (await visit.next())["id"], "code": 400, "desc": "input error: alias"})
    assert await device.next("raised") == ["refused", 400]
    device.call("clear_alias")
    late = await visit.next()
    device.elapse(10_000)
    assert await device.next("raised") == ["deadline", None]
    visit.send({"type": "ok", "id": late["id"]}, {"type": "error", "code": 400, "desc": "for a report"})
    assert (await device.event("error"))["desc"] == "for a report"
    device.call("clear_alias")
    await visit.next()
    visit.drop()
    told = {**await device.line(), **await device.line()}
    assert (told["raised"], told["event"]["type"]) == (["unavailable", None], "disconnected")
    device.call("activity", "open")
    assert await device.next("raised") == ["unavailable", None]


async def test_it_speaks_tls_with_a_gateway_it_trusts_and_with_no_other(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    issued = authority.issue("gateway")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    secure = ScriptedGateway(context)
    await secure.open()
    await gone(await start(secure.url))
    device = await start(secure.url, ca=str(authority.file))
    await secure.greeted()
    await device.welcomed()
    await device.close()
    await secure.close()
