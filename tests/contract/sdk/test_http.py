"""Acknowledgements and reports over HTTP, by the SDKs of browsers and of iPhones, to a scripted endpoint."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from testkit.edge.scripted_endpoint import ScriptedEndpoint, ScriptedRequest
from testkit.swift_sdk import MARKS
from tests.contract.sdk.driven_device import DrivenDevice, Json, StartDevice, vectors

TOKEN = "ab" * 32
CLICKS = 1000


@pytest.fixture(params=["webpush", pytest.param("swift", marks=MARKS)])
async def start_http_device(
    request: pytest.FixtureRequest, endpoint: ScriptedEndpoint, tmp_path: Path
) -> AsyncIterator[StartDevice]:
    devices: list[DrivenDevice] = []

    async def start() -> DrivenDevice:
        state = str(tmp_path / "state.json")
        device = await DrivenDevice.start(request.param, endpoint.url, state, None, {"token": TOKEN})
        devices.append(device)
        return device

    yield start
    for device in devices:
        await device.kill()


async def registered(start: StartDevice, endpoint: ScriptedEndpoint) -> tuple[DrivenDevice, Json]:
    """Start a device that the service welcomes; return it with the fields that its frames have from then on."""
    device = await start()
    hello = await endpoint.next("hello")
    identity = {"token": hello.frame.get("token", "t-1"), "key": "k-1"}
    hello.answer({"type": "welcome", "heartbeat": 240, "new": True, **identity})
    if device.sdk == "webpush":
        (await endpoint.next("set_address")).ok()
    await device.event("welcome")
    return device, {"appkey": "1000000001", **identity}


@pytest.fixture
async def opened(endpoint: ScriptedEndpoint, tmp_path: Path) -> AsyncIterator[Callable[[Json | None], Awaitable[str]]]:
    """Returns the address that the service worker opens at the click of a push; its site is "/"."""
    device = await DrivenDevice.start("webpush", endpoint.url, str(tmp_path / "state"), None, {})

    async def opened(click: Json | None) -> str:
        device.command(do="notification", event="clicked", msgid=1, click=click)
        return str(await device.next("returned"))

    yield opened
    await device.kill()


async def test_a_click_opens_web_pages_alone(opened: Callable[[Json | None], Awaitable[str]]) -> None:
    shared = vectors("web_addresses")
    for param, url in [*shared["opened"], *((param, "/") for param in shared["refused"])]:
        assert await opened({"action": 2, "param": param}) == url, param


async def test_each_click_action_opens_in_a_browser_what_the_shared_vectors_say(
    opened: Callable[[Json | None], Awaitable[str]],
) -> None:
    for vector in vectors("clicks"):
        expected = {"browser": vector["worker"].get("url"), "site": "/"}[vector["worker"]["opens"]]
        assert await opened(vector["click"]) == expected, vector["what"]


SCHEMES = ("https://", "http:", "HTTPS://", "//", "\\", "javascript:", "data:", "intent:", "blob:", "file:///")
OTHERS = ("example.org", "@", ":", "/", "?", "#", "%0A", "%", "\n", "\t", "\0", "\ud800", "\u3002", " ", "[::1]")


def random_value(random: Random, depth: int = 0) -> Any:
    """Return a value of JSON; its texts are made of parts of addresses."""
    match random.randrange(8 if depth < 3 else 6):
        case 0:
            return random.choice([None, True, 0, 2, 2.5, -1, 1e300])
        case 6:
            return [random_value(random, depth + 1) for _ in range(random.randrange(3))]
        case 7:
            names = random.sample(["action", "param", "url", "toString", "__proto__"], 3)
            return {name: random_value(random, depth + 1) for name in names}
        case _:
            return "".join(random.choices([*SCHEMES, *OTHERS], k=random.randint(1, 6)))


async def test_no_click_opens_more_than_a_web_page_or_the_site(opened: Callable[[Any], Awaitable[str]]) -> None:
    random = Random(1)
    pages = 0
    for _ in range(CLICKS):
        click = {"action": random.choice([2, 2, 7, 8, 3, "2", None]), "param": random_value(random)}
        clicked = click if random.random() < 0.9 else random_value(random)
        url = await opened(clicked)
        pages += url != "/"
        assert url == "/" or re.match(r"https?://[^/?#]", url), (clicked, url)
    assert 0 < pages < CLICKS


def notification(device: DrivenDevice, event: str, msgid: int) -> None:
    device.command(do="notification", event=event, msgid=msgid)


async def test_what_happens_to_a_notification_is_told(
    start_http_device: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device, identity = await registered(start_http_device, endpoint)
    notification(device, "shown", 5)
    acknowledged = await endpoint.next("ack")
    assert acknowledged.frame == {"type": "ack", "msgids": [5], **identity}
    acknowledged.ok()
    for event in ("shown", "clicked", "dismissed"):
        if event != "shown":
            notification(device, event, 5)
        reported = await endpoint.next("report")
        assert reported.frame == {"type": "report", "event": event, "msgid": 5, **identity}
        reported.ok()
        await device.next("returned")
    await device.close()


FAULTS: dict[str, Callable[[ScriptedRequest], None]] = {
    "no answer": ScriptedRequest.drop,
    "a fault of the service": lambda request: request.refuse(500),
    "a role that is away": lambda request: request.refuse(503),
    "a proxy's page": lambda request: request.answer("<html>Bad Gateway</html>", 502),
    "no frame": lambda request: request.answer("{}"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_what_is_not_confirmed_is_told_again_with_the_next_event(
    start_http_device: StartDevice, endpoint: ScriptedEndpoint, fault: Callable[[ScriptedRequest], None]
) -> None:
    device, _ = await registered(start_http_device, endpoint)
    notification(device, "shown", 5)
    fault(await endpoint.next("ack"))
    await device.next("returned")
    assert endpoint.requests.empty()
    notification(device, "clicked", 5)
    (await endpoint.next("ack")).ok()
    for event in ("shown", "clicked"):
        reported = await endpoint.next("report")
        assert reported.frame["event"] == event
        reported.ok()
    await device.next("returned")


async def test_what_the_service_finds_wrong_is_told_once(
    start_http_device: StartDevice, endpoint: ScriptedEndpoint
) -> None:
    device, _ = await registered(start_http_device, endpoint)
    notification(device, "shown", 5)
    (await endpoint.next("ack")).refuse(400, "input error: msgids")
    (await endpoint.next("report")).refuse(400, "input error: event")
    await device.next("returned")
    notification(device, "dismissed", 6)
    reported = await endpoint.next("report")
    assert (reported.frame["event"], reported.frame["msgid"]) == ("dismissed", 6)
    reported.ok()
    await device.next("returned")


async def test_no_other_address_gets_the_key(start_http_device: StartDevice, endpoint: ScriptedEndpoint) -> None:
    other = ScriptedEndpoint()
    await other.open()
    try:
        device, _ = await registered(start_http_device, endpoint)
        notification(device, "shown", 5)
        (await endpoint.next("ack")).redirect(other.url)
        await device.next("returned")
        assert other.requests.empty()
        notification(device, "clicked", 5)
        (await endpoint.next("ack")).ok()
    finally:
        await other.close()
