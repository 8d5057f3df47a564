"""Mutual TLS between roles: only peers with a certificate of the authority are answered."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from protos.runtime.v1.log_pb2 import AwaitRequest, AwaitResponse, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub, add_PositionsServiceServicer_to_server
from services.domain.call_permissions import PERMISSIONS
from services.errors import UnavailableError
from services.net.rpc import channel as rpc_channel
from services.net.rpc.channel import Channel, connect
from services.net.rpc.server import Context, serve
from services.net.rpc.tls import Tls
from services.replica.positions import PositionsServicer
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


async def ask(channel: Channel, request: AwaitRequest = ASKED) -> AwaitResponse:
    try:
        return await PositionsServiceStub(channel).Await(request, timeout=5)
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


def replace(files: Tls, renewed: Tls) -> None:
    """Renew the files in place, the certificate first."""
    for name in ("certificate", "key", "authority"):
        getattr(files, name).write_bytes(getattr(renewed, name).read_bytes())


class HeldAwaits(PositionsServicer):
    """Holds calls that await positions until `ends` is set, and answers other calls at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.ends = asyncio.Event()

    async def Await(self, request: AwaitRequest, context: Context) -> AwaitResponse:
        if request.positions:
            self.asked.set()
            await self.ends.wait()
        return AwaitResponse()


async def test_renewed_files_are_used_by_a_running_server_and_an_open_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new authority has issued all certificates again. The call in flight goes on over the connection that it has."""
    monkeypatch.setattr(rpc_channel, "LOOK_S", 0)
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    served, called, left = ours.issue("registry"), ours.issue("edge"), ours.issue("gateway")
    server, servicer = serve([], served, permissions=PERMISSIONS), HeldAwaits()
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', served.server_credentials())}"
    add_PositionsServiceServicer_to_server(servicer, server)
    await server.start()
    stub, old = PositionsServiceStub(channel := connect(address, called)), Tls(*copies(left, tmp_path))
    try:
        in_flight = asyncio.ensure_future(stub.Await(ASKED, timeout=30))
        await servicer.asked.wait()
        served.key.write_bytes(left.key.read_bytes())
        assert await ask(connect(address, old), AwaitRequest()) == AwaitResponse(), "the pair does not fit yet"
        replace(served, theirs.issue("registry"))
        replace(called, theirs.issue("edge"))
        assert await stub.Await(AwaitRequest(), timeout=5) == AwaitResponse()
        with pytest.raises(UnavailableError):
            await ask(connect(address, old), AwaitRequest())
        servicer.ends.set()
        assert await in_flight == AwaitResponse()
    finally:
        await channel.close()
        await server.stop(0)


def copies(files: Tls, directory: Path) -> list[Path]:
    """Return copies of the files, which stay when these are renewed."""
    paths = []
    for path in (files.certificate, files.key, files.authority):
        paths.append(directory / path.name)
        paths[-1].write_bytes(path.read_bytes())
    return paths
