"""Devices connect by TLS that the gateway ends itself, with a certificate that may be renewed under way."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import Message
from services.gateway.acceptor import Certificate
from services.runtime.rpc.transport import Tls
from testkit.certificates import Authority
from tests.roles.gateway.conftest import ANDROID, House, Opening
from tests.roles.gateway.listener.raw import UPGRADE, RawClient
from tests.roles.gateway.scripted import BOUND_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def trusting(authority: Authority, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    context.maximum_version = version
    return context


def settings(pair: Tls) -> dict[str, str]:
    return {"gateway_tls_cert": str(pair.certificate), "gateway_tls_key": str(pair.key)}


def serial(client: RawClient) -> object:
    certificate = client.tls.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_device_is_met_by_tls(open_house: Opening, authority: Authority, version: ssl.TLSVersion) -> None:
    house = await open_house(**settings(authority.issue("gateway")))
    client = await RawClient.connect(house.port, trusting(authority, version))
    assert (await client.hello(ANDROID))["type"] == "welcome"
    (connection,) = await house.delivery.until(house.delivery.connections)
    for size in (10, 300, 100_000):
        house.delivery.send(Message(content="x" * size), [connection], [size])
        assert len((await client.hear())["content"]) == size
    stopping = asyncio.create_task(house.stop_gateway())
    assert (await client.hear())["reason"] == "draining"
    await client.ending()
    await stopping


def test_older_versions_are_not_spoken(authority: Authority) -> None:
    pair = authority.issue("gateway")
    assert Certificate(str(pair.certificate), str(pair.key)).context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_who_does_not_speak_tls_is_sent_off(open_house: Opening, tmp_path: Path, authority: Authority) -> None:
    house = await open_house(gateway_hello_s=1, **settings(authority.issue("gateway")))
    plain = await RawClient.connect(house.port, upgrade=False)
    plain.send(UPGRADE)
    assert b"101" not in await plain.rest()
    silent = await RawClient.connect(house.port, upgrade=False)
    assert await silent.rest() == b""
    with pytest.raises(ssl.SSLCertVerificationError):
        await RawClient.connect(house.port, trusting(Authority(tmp_path / "stranger")))
    client = await RawClient.connect(house.port, trusting(authority))
    assert (await client.hello(ANDROID))["type"] == "welcome"


async def test_a_renewed_certificate_is_taken_over(open_house: Opening, authority: Authority) -> None:
    pair = authority.issue("gateway")
    house = await open_house(**settings(pair))
    older = await RawClient.connect(house.port, trusting(authority))
    await older.hello(ANDROID)
    pair.certificate.write_text("half of a certif")
    assert await shown_after_a_sweep(house, authority) == serial(older)
    renewed = authority.issue("renewed")
    shutil.copy(renewed.certificate, pair.certificate)
    assert await shown_after_a_sweep(house, authority) == serial(older)
    shutil.copy(renewed.key, pair.key)
    async with asyncio.timeout(BOUND_S):
        while await shown_after_a_sweep(house, authority) == serial(older):
            pass
    older.say(type="get_device", id=1)
    assert (await older.hear())["type"] == "ok"


async def shown_after_a_sweep(house: House, authority: Authority) -> object:
    """The serial number of the certificate that a newcomer is shown."""
    house.clock.move(1)
    client = await RawClient.connect(house.port, trusting(authority))
    await client.hello(ANDROID)
    return serial(client)
