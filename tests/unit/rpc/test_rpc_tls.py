"""Mutual TLS between roles: only peers with a certificate of the authority are answered."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub, add_PositionsServiceServicer_to_server
from services.domain.permissions import PERMISSIONS
from services.runtime.errors import UnavailableError
from services.runtime.projection.positions import PositionsServicer
from services.runtime.rpc.channel import Channel, connect
from services.runtime.rpc.server import serve
from services.runtime.rpc.tls import Tls
from testkit.certificates import Authority

ASKED = AwaitRequest(positions=[Position(topic="devices", partition=1, offset=2)])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
async def address(authority: Authority) -> AsyncIterator[str]:
    """The address of a servicer with mutual TLS."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = serve([address], authority.issue("registry"), permissions=PERMISSIONS)
    add_PositionsServiceServicer_to_server(PositionsServicer(), server)
    await server.start()
    yield address
    await server.stop(0)


async def ask(channel: Channel) -> AwaitResponse:
    try:
        return await PositionsServiceStub(channel).Await(ASKED, timeout=5)
    finally:
        await channel.close()


async def test_a_peer_of_the_same_authority_is_answered(authority: Authority, address: str) -> None:
    assert await ask(connect(address, authority.issue("edge"))) == AwaitResponse()


async def test_a_peer_without_tls_is_refused(address: str) -> None:
    with pytest.raises(UnavailableError):
        await ask(connect(address))


async def test_a_peer_without_a_certificate_is_refused(authority: Authority, address: str) -> None:
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(grpc.aio.secure_channel(address, credentials))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_peer_of_another_authority_is_refused(authority: Authority, address: str, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "theirs").issue("edge")
    with pytest.raises(UnavailableError):
        await ask(connect(address, Tls(stranger.certificate, stranger.key, authority.file)))


async def test_a_server_of_another_authority_is_not_trusted(address: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        await ask(connect(address, Authority(tmp_path / "theirs").issue("edge")))
