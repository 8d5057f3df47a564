"""TLS that the gateway terminates itself, with a certificate that is renewed while it runs."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import Message
from services.gateway.acceptor import Certificate
from services.net.rpc.tls import Tls
from testkit.certificates import Authority
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import BOUND_S, UPGRADE, RawClient
from tests.services.gateway.conftest import StartGateway


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
async def test_a_device_connects_with_tls(
    start_gateway: StartGateway, authority: Authority, version: ssl.TLSVersion
) -> None:
    gateway = await start_gateway(**settings(authority.issue("gateway")))
    client = await RawClient.connect(gateway.port, trusting(authority, version))
    assert (await client.hello(ANDROID))["type"] == "welcome"
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    for size in (10, 300, 100_000):
        gateway.delivery.send(Message(content="x" * size), [connection], [size])
        assert len((await client.next_json())["content"]) == size
    stopping = asyncio.create_task(gateway.stop())
    assert (await client.next_json())["reason"] == "draining"
    await client.closed()
    await stopping


def test_older_tls_versions_are_refused(authority: Authority) -> None:
    pair = authority.issue("gateway")
    assert Certificate(str(pair.certificate), str(pair.key)).context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_client_without_tls_is_disconnected(
    start_gateway: StartGateway, tmp_path: Path, authority: Authority
) -> None:
    gateway = await start_gateway(gateway_hello_s=1, **settings(authority.issue("gateway")))
    plain = await RawClient.connect(gateway.port, upgrade=False)
    plain.send(UPGRADE)
    assert b"101" not in await plain.rest()
    silent = await RawClient.connect(gateway.port, upgrade=False)
    assert await silent.rest() == b""
    with pytest.raises(ssl.SSLCertVerificationError):
        await RawClient.connect(gateway.port, trusting(Authority(tmp_path / "other")))
    client = await RawClient.connect(gateway.port, trusting(authority))
    assert (await client.hello(ANDROID))["type"] == "welcome"


async def test_a_renewed_certificate_is_loaded(start_gateway: StartGateway, authority: Authority) -> None:
    pair = authority.issue("gateway")
    gateway = await start_gateway(**settings(pair))
    older = await RawClient.connect(gateway.port, trusting(authority))
    await older.hello(ANDROID)
    pair.certificate.write_text("half of a certif")
    assert await serial_after_a_sweep(gateway, authority) == serial(older)
    renewed = authority.issue("renewed")
    shutil.copy(renewed.certificate, pair.certificate)
    assert await serial_after_a_sweep(gateway, authority) == serial(older)
    shutil.copy(renewed.key, pair.key)
    async with asyncio.timeout(BOUND_S):
        while await serial_after_a_sweep(gateway, authority) == serial(older):
            pass
    older.send_json(type="get_device", id=1)
    assert (await older.next_json())["type"] == "ok"


async def serial_after_a_sweep(gateway: RunningGateway, authority: Authority) -> object:
    """Return the serial number of the certificate that a new connection gets."""
    gateway.clock.move(1)
    client = await RawClient.connect(gateway.port, trusting(authority))
    await client.hello(ANDROID)
    return serial(client)
