"""Capacity: more devices than allowed, sockets that send nothing, and floods of registrations."""

import asyncio
import contextlib
import errno
import socket
import ssl
from pathlib import Path

import pytest

from protos.registry.v1.apps_pb2 import Platform
from services.gateway import main, rules
from services.gateway.acceptor import Acceptor, listen
from services.gateway.connections import ConnectionTable
from services.gateway.rules import Capacity
from services.gateway.settings import GatewaySettings
from testkit.certificates import Authority
from testkit.gateway.answering_listener import AnsweringListener
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import BOUND_S, PING, UPGRADE, RawClient, frame
from tests.services.gateway.conftest import StartGateway

SERVICE_RESTART = 1012


async def connect_until_welcomed(port: int) -> RawClient:
    async with asyncio.timeout(BOUND_S):
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                client = await RawClient.connect(port)
                client.send_json(type="hello", appkey=ANDROID)
                if (await client.next_json())["type"] == "welcome":
                    return client


def refused(goodbye: dict[str, object]) -> bool:
    after_ms = goodbye["retry_after_ms"]
    assert isinstance(after_ms, int)
    return (goodbye["type"], goodbye["reason"]) == ("goodbye", "draining") and 1000 <= after_ms < 21_000


async def test_a_full_gateway_refuses_devices_with_a_retry_time(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_max_connections=2)
    welcomed_clients = [await RawClient.welcomed(gateway.port, ANDROID) for _ in range(2)]
    refused_clients = [await RawClient.connect(gateway.port) for _ in range(10)]
    goodbyes = [await client.next_json() for client in refused_clients]
    assert all(map(refused, goodbyes))
    assert len({goodbye["retry_after_ms"] for goodbye in goodbyes}) > 5
    assert {(await client.closed()).code for client in refused_clients} == {SERVICE_RESTART}
    for client in welcomed_clients:
        client.send(frame(PING, b"still open"))
        assert (await client.next()).payload == b"still open"
    welcomed_clients[0].abort()
    await connect_until_welcomed(gateway.port)


async def test_sockets_over_the_pending_limit_are_closed_and_welcomed_devices_stay(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_capacity", lambda _settings: Capacity(connections=2, pending=4))
    gateway = await start_gateway()
    welcomed_client = await RawClient.welcomed(gateway.port, ANDROID)
    silent = [await RawClient.connect(gateway.port, upgrade=False) for _ in range(4)]
    for _ in range(20):
        excess = await RawClient.connect(gateway.port, upgrade=False)
        assert await excess.rest() == b""
    welcomed_client.send(frame(PING, b"still open"))
    assert (await welcomed_client.next()).payload == b"still open"
    silent[0].send(UPGRADE)
    await silent[0].upgraded()
    assert (await silent[0].hello(ANDROID))["type"] == "welcome"
    for client in silent[1:]:
        client.send(UPGRADE)
        await client.upgraded()
        assert refused(await client.next_json())
        await client.closed()
    welcomed_client.abort()
    await connect_until_welcomed(gateway.port)


async def test_a_full_gateway_bounds_the_goodbyes_in_progress(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_MAX_REFUSED_AT_ONCE", 3)
    gateway = await start_gateway(gateway_max_connections=1)
    welcomed_client = await RawClient.welcomed(gateway.port, ANDROID)
    refused_clients = [await RawClient.connect(gateway.port) for _ in range(3)]
    excess = await RawClient.connect(gateway.port, upgrade=False)
    assert await excess.rest() == b""
    for client in refused_clients:
        assert refused(await client.next_json())
        await client.closed()
    welcomed_client.abort()
    await connect_until_welcomed(gateway.port)


async def test_closed_pending_sockets_free_pending_capacity(
    start_gateway: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_capacity", lambda _settings: Capacity(connections=2, pending=2))
    pair = Authority(tmp_path / "authority").issue("gateway")
    gateway = await start_gateway(gateway_tls_cert=str(pair.certificate), gateway_tls_key=str(pair.key))
    tls = ssl.create_default_context(cafile=pair.authority)
    for _ in range(5):
        garbled = await RawClient.connect(gateway.port, upgrade=False)
        garbled.send(UPGRADE)
        await garbled.rest()
        silent = await RawClient.connect(gateway.port, tls, upgrade=False)
        silent.send(b"nonsense\r\n\r\n")
        assert b" 400 " in await silent.rest()
        unknown = await RawClient.connect(gateway.port, tls)
        assert (await unknown.hello("1999999999"))["reason"] == "unauthorized"
        await unknown.closed()
    client = await RawClient.connect(gateway.port, tls)
    assert (await client.hello(ANDROID))["type"] == "welcome"


async def test_an_address_has_a_share_of_the_pending_sockets_and_of_the_connections(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_capacity", lambda _settings: Capacity(connections=100, pending=8, per_address=5))
    monkeypatch.setattr(main, "shared_addresses", lambda _: lambda _: False)
    gateway = await start_gateway()
    silent = [await RawClient.connect(gateway.port, upgrade=False) for _ in range(2)]
    assert await (await RawClient.connect(gateway.port, upgrade=False)).rest() == b""
    elsewhere = await RawClient.connect(gateway.port, address="127.0.0.2")
    assert (await elsewhere.hello(ANDROID))["type"] == "welcome"
    for client in silent:
        client.send(UPGRADE)
        await client.upgraded()
        assert (await client.hello(ANDROID))["type"] == "welcome"
    welcomed = [*silent, *[await RawClient.welcomed(gateway.port, ANDROID) for _ in range(3)]]
    assert await (await RawClient.connect(gateway.port, upgrade=False)).rest() == b""
    welcomed[0].abort()
    await connect_until_welcomed(gateway.port)


@pytest.mark.parametrize(
    ("start", "again"), [(b"GET /device/v1 HTTP/1.1\r\nX: ", b"x"), (b"", b"\r\n"), (UPGRADE[:-2], b"X: y\r\n")]
)
async def test_an_endless_upgrade_ends_the_connection(gateway: RunningGateway, start: bytes, again: bytes) -> None:
    client = await RawClient.connect(gateway.port, upgrade=False)
    client.send(start)
    with pytest.raises(ConnectionError):
        for _ in range(800):
            client.send(again * (10_000 // len(again)))
            await client.drain()
            await asyncio.sleep(0)


async def test_a_process_without_free_files_accepts_again_later() -> None:
    class Exhausted(socket.socket):
        failures = 0

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures < 2:
                self.failures += 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    listener = Exhausted(fileno=listen("127.0.0.1", 0, share_port=False).detach())
    limits = GatewaySettings().limits()
    acceptor = Acceptor(lambda _: AnsweringListener(b""), ConnectionTable(), Capacity(10, 10), limits, None)
    acceptor.open(listener)
    try:
        (await RawClient.connect(listener.getsockname()[1])).abort()
        assert listener.failures == 2
    finally:
        acceptor.close()


async def test_registrations_from_one_address_are_rate_limited(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_registrations_per_s=1)
    known = await (await RawClient.connect(gateway.port)).hello(ANDROID)
    for _ in range(9):
        await RawClient.welcomed(gateway.port, ANDROID)
    goodbyes = {await refusal(gateway, appkey) for appkey in (ANDROID, "1999999999") for _ in range(2)}
    assert len(goodbyes) == 1
    again = await RawClient.connect(gateway.port)
    assert (await again.hello(ANDROID, token=known["token"], key=known["key"]))["new"] is False
    gateway.clock.move(1)
    await RawClient.welcomed(gateway.port, ANDROID)
    await refusal(gateway, ANDROID)


async def refusal(gateway: RunningGateway, appkey: str) -> tuple[int | None, bytes]:
    """Return the code and reason of the close frame that refuses a new device."""
    client = await RawClient.connect(gateway.port)
    assert refused(await client.hello(appkey))
    ended = await client.closed()
    return ended.code, ended.payload[2:]


async def test_a_wrong_key_takes_no_registration_token(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(gateway_registrations_per_s=1)
    await gateway.create_app("1000000003", Platform.PLATFORM_ANDROID)
    for _ in range(15):
        client = await RawClient.connect(gateway.port)
        assert (await client.hello(ANDROID, token="t", key="k"))["reason"] == "unauthorized"
