"""More devices than there is room for, sockets that never say a word, and floods of new devices."""

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import pytest
from picows import WSListener

from protos.registry.v1.apps_pb2 import Platform
from services.gateway import decide, main
from services.gateway.acceptor import Acceptor, listen
from services.gateway.connections import ConnectionTable
from services.gateway.decide import Capacity, capacity
from services.gateway.handshake import MAX_NETWORKS, RegistrationLimiter, network
from services.gateway.settings import GatewaySettings
from testkit.certificates import Authority
from tests.roles.gateway.conftest import ANDROID, House, Opening
from tests.roles.gateway.listener.raw import PING, UPGRADE, RawClient, frame
from tests.roles.gateway.scripted import BOUND_S

SERVICE_RESTART = 1012


async def welcomed(house: House) -> RawClient:
    client = await RawClient.connect(house.port)
    assert (await client.hello(ANDROID))["type"] == "welcome"
    return client


async def until_let_in(port: int) -> RawClient:
    async with asyncio.timeout(BOUND_S):
        while True:
            client = await RawClient.connect(port)
            client.say(type="hello", appkey=ANDROID)
            if (await client.hear())["type"] == "welcome":
                return client


def refused(goodbye: dict[str, object]) -> bool:
    after_ms = goodbye["retry_after_ms"]
    assert isinstance(after_ms, int)
    return (goodbye["type"], goodbye["reason"]) == ("goodbye", "draining") and 1000 <= after_ms < 21_000


async def test_a_device_that_finds_no_room_is_told_to_come_later(open_house: Opening) -> None:
    house = await open_house(gateway_max_connections=2)
    inside = [await welcomed(house) for _ in range(2)]
    outside = [await RawClient.connect(house.port) for _ in range(10)]
    goodbyes = [await client.hear() for client in outside]
    assert all(map(refused, goodbyes))
    assert len({goodbye["retry_after_ms"] for goodbye in goodbyes}) > 5
    assert {(await client.ending()).code for client in outside} == {SERVICE_RESTART}
    for client in inside:
        client.send(frame(PING, b"still inside"))
        assert (await client.next()).payload == b"still inside"
    inside[0].leave()
    await until_let_in(house.port)


async def test_a_crowd_before_the_door_is_closed_at_once_and_harms_nobody_inside(
    open_house: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_capacity", lambda _connections: Capacity(connections=2, pending=4))
    house = await open_house()
    inside = await welcomed(house)
    silent = [await RawClient.connect(house.port, upgrade=False) for _ in range(4)]
    for _ in range(20):
        late = await RawClient.connect(house.port, upgrade=False)
        assert await late.rest() == b""
    inside.send(frame(PING, b"still inside"))
    assert (await inside.next()).payload == b"still inside"
    silent[0].send(UPGRADE)
    await silent[0].upgraded()
    assert (await silent[0].hello(ANDROID))["type"] == "welcome"
    for client in silent[1:]:
        client.send(UPGRADE)
        await client.upgraded()
        assert refused(await client.hear())
        await client.ending()
    inside.leave()
    await until_let_in(house.port)


async def test_where_the_house_is_full_only_so_many_are_refused_politely_at_a_time(
    open_house: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "_MAX_REFUSED_AT_ONCE", 3)
    house = await open_house(gateway_max_connections=1)
    inside = await welcomed(house)
    polite = [await RawClient.connect(house.port) for _ in range(3)]
    late = await RawClient.connect(house.port, upgrade=False)
    assert await late.rest() == b""
    for client in polite:
        assert refused(await client.hear())
        await client.ending()
    inside.leave()
    await until_let_in(house.port)


async def test_who_leaves_the_pending_makes_room_in_it(
    open_house: Opening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_capacity", lambda _connections: Capacity(connections=2, pending=2))
    pair = Authority(tmp_path / "authority").issue("gateway")
    house = await open_house(gateway_tls_cert=str(pair.certificate), gateway_tls_key=str(pair.key))
    tls = ssl.create_default_context(cafile=pair.authority)
    for _ in range(5):
        garbled = await RawClient.connect(house.port, upgrade=False)
        garbled.send(UPGRADE)
        await garbled.rest()
        silent = await RawClient.connect(house.port, tls, upgrade=False)
        silent.send(b"nonsense\r\n\r\n")
        assert b" 400 " in await silent.rest()
        stranger = await RawClient.connect(house.port, tls)
        assert (await stranger.hello("1999999999"))["reason"] == "unauthorized"
        await stranger.ending()
    client = await RawClient.connect(house.port, tls)
    assert (await client.hello(ANDROID))["type"] == "welcome"


async def test_a_process_that_may_open_no_more_files_takes_devices_again_later() -> None:
    class Exhausted(socket.socket):
        failures = 0

        def accept(self) -> tuple[socket.socket, object]:
            if self.failures < 2:
                self.failures += 1
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    listener = Exhausted(fileno=listen("127.0.0.1", 0, share_port=False).detach())
    acceptor = Acceptor(WSListener, ConnectionTable(), Capacity(10, 10), GatewaySettings().limits(), None)
    acceptor.open(listener)
    try:
        (await RawClient.connect(listener.getsockname()[1])).leave()
        assert listener.failures == 2
    finally:
        acceptor.close()


def test_some_files_are_left_for_everything_else() -> None:
    for files in (64, 1024, 20_000, 2**20):
        found = capacity(files, None)
        assert found.connections + found.pending <= files * 7 // 8 or files - 512 == found.connections + found.pending
        assert found.pending == min(files // 4, 4096)
    assert capacity(1024, 5) == Capacity(5, 256)


async def test_new_devices_of_one_address_come_one_after_the_other(open_house: Opening) -> None:
    house = await open_house(gateway_registrations_per_s=1)
    known = await (await RawClient.connect(house.port)).hello(ANDROID)
    for _ in range(9):
        await welcomed(house)
    goodbyes = {await refusal(house, appkey) for appkey in (ANDROID, "1999999999") for _ in range(2)}
    assert len(goodbyes) == 1
    again = await RawClient.connect(house.port)
    assert (await again.hello(ANDROID, token=known["token"], key=known["key"]))["new"] is False
    house.clock.move(1)
    await welcomed(house)
    await refusal(house, ANDROID)


async def refusal(house: House, appkey: str) -> tuple[int | None, bytes]:
    """How a new device is sent away: code and reason of the close frame."""
    client = await RawClient.connect(house.port)
    assert refused(await client.hello(appkey))
    ended = await client.ending()
    return ended.code, ended.payload[2:]


async def test_a_wrong_token_is_not_a_new_device(open_house: Opening) -> None:
    house = await open_house(gateway_registrations_per_s=1)
    await house.create_app("1000000003", Platform.PLATFORM_ANDROID)
    for _ in range(15):
        client = await RawClient.connect(house.port)
        assert (await client.hello(ANDROID, token="t", key="k"))["reason"] == "unauthorized"


def test_a_bucket_fills_again_and_never_over_its_rim() -> None:
    limiter = RegistrationLimiter(per_s=2, burst=3)
    assert [limiter.take("a", 0) for _ in range(4)] == [True, True, True, False]
    assert [limiter.take("a", 499), limiter.take("a", 500), limiter.take("a", 500)] == [False, True, False]
    assert [limiter.take("a", 60_000) for _ in range(4)] == [True, True, True, False]
    assert not limiter.take("a", 0)
    assert limiter.take("b", 0)


def test_the_longest_unused_name_is_forgotten() -> None:
    limiter = RegistrationLimiter(per_s=1, burst=1)
    for number in range(MAX_NETWORKS):
        assert limiter.take(str(number), 0)
    assert not limiter.take("0", 0)
    assert limiter.take("one more", 0)
    assert len(limiter) == MAX_NETWORKS
    assert (limiter.take("0", 0), limiter.take("1", 0)) == (False, True)


def test_a_host_is_its_address_or_its_64_bits_of_one() -> None:
    assert network("192.0.2.7") == "192.0.2.7"
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == network("fe80::2")
