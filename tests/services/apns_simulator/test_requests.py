"""Requests that the simulator refuses."""

import asyncio
import ssl

import httpx
import pytest

from services.apns_simulator.requests import ApnsRefusedError, validate
from services.apns_simulator.server import ApnsSimulator
from services.delivery.channels.apns.request import ApnsResult
from services.push_simulator.connection import HttpRequest
from testkit.delivery.apns import TOKEN, TOPIC, make_push, open_sender, send


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", f"/3/device/{TOKEN}", 405, "MethodNotAllowed"),
        ("POST", "/3/devices", 404, "BadPath"),
        ("POST", "/3/device/", 400, "MissingDeviceToken"),
        ("POST", f"/3/device/{TOKEN}/more", 404, "BadPath"),
    ],
)
async def test_invalid_requests_are_refused_with_apples_reason_and_an_id(
    simulator: ApnsSimulator, method: str, path: str, status: int, reason: str
) -> None:
    trust = ssl.create_default_context(cadata=simulator.authority)
    async with httpx.AsyncClient(http1=False, http2=True, verify=trust, trust_env=False) as client:
        response = await client.request(method, simulator.url + path, content=b"{}", headers={"apns-topic": TOPIC})
    assert (response.status_code, response.json()) == (status, {"reason": reason})
    assert response.http_version == "HTTP/2"
    assert len(response.headers["apns-id"]) == 36


async def test_bytes_that_are_not_http2_close_only_their_connection(simulator: ApnsSimulator) -> None:
    trust = ssl.create_default_context(cadata=simulator.authority)
    trust.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(*_address(simulator), ssl=trust)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    async with asyncio.timeout(60):
        await reader.read()
    writer.close()
    async with open_sender(simulator) as sender:
        assert await send(sender, make_push()) == [ApnsResult(200)]


@pytest.mark.parametrize(
    ("header", "value", "reason"),
    [
        ("apns-id", "7", "BadMessageId"),
        ("apns-push-type", "shout", "InvalidPushType"),
        ("apns-priority", "7", "BadPriority"),
        ("apns-expiration", "soon", "BadExpirationDate"),
        ("apns-collapse-id", "é" * 33, "BadCollapseId"),
    ],
)
def test_invalid_headers_are_refused(header: str, value: str, reason: str) -> None:
    headers = {":method": "POST", ":path": f"/3/device/{TOKEN}", "apns-topic": TOPIC, header: value}
    with pytest.raises(ApnsRefusedError, match=reason):
        validate(HttpRequest(list(headers.items()), bytearray(b"{}")))


def test_repeated_headers_and_background_pushes_of_high_priority_are_refused() -> None:
    base = [(":method", "POST"), (":path", f"/3/device/{TOKEN}"), ("apns-topic", TOPIC)]
    for more, reason in (
        ([("apns-topic", TOPIC)], "DuplicateHeaders"),
        ([("apns-push-type", "background"), ("apns-priority", "10")], "BadPriority"),
    ):
        with pytest.raises(ApnsRefusedError, match=reason):
            validate(HttpRequest(base + more, bytearray(b"{}")))


def _address(simulator: ApnsSimulator) -> tuple[str, int]:
    url = httpx.URL(simulator.url)
    assert url.port
    return url.host, url.port
