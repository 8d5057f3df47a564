"""Callers: the role of a certificate decides which methods it may call, and the actor is what the connection proves."""

import asyncio
import contextlib
import getpass
import importlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from protos.delivery.v1.delivery_pb2 import AttachRequest, AttachResponse
from protos.delivery.v1.delivery_pb2_grpc import (
    DeliveryServiceServicer,
    DeliveryServiceStub,
    add_DeliveryServiceServicer_to_server,
)
from protos.registry.v1.registry_pb2 import CreateAppRequest, CreateAppResponse, FindDevicesRequest, FindDevicesResponse
from protos.registry.v1.registry_pb2_grpc import (
    RegistryServiceServicer,
    RegistryServiceStub,
    add_RegistryServiceServicer_to_server,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.call_permissions import PERMISSIONS
from services.errors import PermissionDeniedError
from services.net.rpc.caller import OPERATOR, ShardOfRole, UserSocket
from services.net.rpc.channel import Channel, connect
from services.net.rpc.server import Context, Server, serve
from services.net.rpc.tls import Tls
from testkit.certificates import Authority
from testkit.repository import ROOT

ROLES = {
    "edge",
    "gateway",
    "registry",
    "targeting",
    "webhooks",
    "scheduling",
    "delivery",
    "analytics",
    "accounts",
    "console",
    OPERATOR,
}
ACCOUNT = Origin(interface="console", address="192.0.2.7", actor="user/1")
FORGED = Origin(interface="v2", address="root@moon", request_id="r1")


class Registry(RegistryServiceServicer):
    """Keeps the origins that reach it."""

    def __init__(self) -> None:
        self.origins: list[Origin] = []

    async def CreateApp(self, request: CreateAppRequest, context: Context) -> CreateAppResponse:
        self.origins.append(request.origin)
        return CreateAppResponse()

    async def FindDevices(self, request: FindDevicesRequest, context: Context) -> FindDevicesResponse:
        return FindDevicesResponse()


class Delivery(DeliveryServiceServicer):
    async def Attach(self, requests: AsyncIterator[AttachRequest], context: Context) -> AsyncIterator[AttachResponse]:
        async for _ in requests:
            yield AttachResponse(recorded=1)


def new_registry() -> Registry:
    return Registry()  # type: ignore[abstract]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@contextlib.asynccontextmanager
async def running(registry: Registry, server: Server) -> AsyncIterator[None]:
    add_RegistryServiceServicer_to_server(registry, server)
    add_DeliveryServiceServicer_to_server(Delivery(), server)  # type: ignore[abstract]
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def secured(authority: Authority, registry: Registry) -> AsyncIterator[str]:
    address = free_address()
    server = serve([address], authority.issue("registry"), permissions=PERMISSIONS)
    async with running(registry, server):
        yield address


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def create_app(address: str, tls: Tls | None, origin: Origin = FORGED) -> None:
    async with channel(address, tls) as to_registry:
        await RegistryServiceStub(to_registry).CreateApp(CreateAppRequest(origin=origin))


@contextlib.asynccontextmanager
async def channel(address: str, tls: Tls | None) -> AsyncIterator[Channel]:
    opened = connect(address, tls)
    try:
        yield opened
    finally:
        await opened.close()


def methods() -> Sequence[str]:
    """Return the full names of all methods in the contracts."""
    modules = sorted(
        str(file.relative_to(ROOT).with_suffix("")).replace("/", ".") for file in (ROOT / "protos").rglob("*_pb2.py")
    )
    files = [importlib.import_module(module).DESCRIPTOR for module in modules]
    services = [service for file in files for service in file.services_by_name.values()]
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


def test_every_method_of_every_service_says_which_roles_may_call_it() -> None:
    assert sorted(PERMISSIONS) == sorted(methods())
    assert all(roles and roles <= ROLES for roles in PERMISSIONS.values())


async def test_a_role_may_call_its_methods_and_no_others(authority: Authority) -> None:
    edge = authority.issue("edge")
    async with secured(authority, new_registry()) as address, channel(address, edge) as to_registry:
        registry = RegistryServiceStub(to_registry)
        assert await registry.FindDevices(FindDevicesRequest()) == FindDevicesResponse()
        with pytest.raises(PermissionDeniedError, match=r"edge \(CN=edge\) may not call .*CreateApp"):
            await registry.CreateApp(CreateAppRequest())


@pytest.mark.parametrize(("role", "may"), [("gateway", True), ("edge", False), (OPERATOR, False)])
async def test_only_gateways_may_attach_to_delivery(authority: Authority, role: str, may: bool) -> None:
    async def one_request() -> AsyncIterator[AttachRequest]:
        yield AttachRequest(gateway="g")

    tls = authority.issue(role)
    async with secured(authority, new_registry()) as address, channel(address, tls) as to_delivery:
        answers = DeliveryServiceStub(to_delivery).Attach(one_request())
        if may:
            assert [answer async for answer in answers] == [AttachResponse(recorded=1)]
        else:
            with pytest.raises(PermissionDeniedError):
                [answer async for answer in answers]


@pytest.mark.parametrize("roles", [["stranger"], ["edge", OPERATOR], [""]])
async def test_a_certificate_with_an_unknown_role_or_several_may_call_nothing(
    authority: Authority, roles: list[str]
) -> None:
    registry = new_registry()
    async with secured(authority, registry) as address:
        with pytest.raises(PermissionDeniedError):
            await create_app(address, authority.issue("edge", *roles))
    assert registry.origins == []


async def test_over_tls_the_actor_of_a_command_is_the_subject_of_the_certificate(authority: Authority) -> None:
    registry = new_registry()
    async with secured(authority, registry) as address:
        await create_app(address, authority.issue("alice", OPERATOR))
    assert registry.origins == [Origin(interface="cli", address="CN=alice", request_id="r1", says="root@moon")]


async def test_without_tls_the_actor_is_the_peers_address() -> None:
    registry, address = new_registry(), free_address()
    async with running(registry, serve([address])):
        await create_app(address, None)
    assert registry.origins == [Origin(interface="cli", address="127.0.0.1", request_id="r1", says="root@moon")]


async def test_the_account_that_acts_is_believed_from_front_ends_alone(authority: Authority) -> None:
    """Not from an operator's certificate or a client on the commands' socket; without TLS from every role."""
    registry, address = new_registry(), free_address()
    async with running(registry, serve([address])):
        await create_app(address, None, ACCOUNT)
        await create_app(address, None, Origin(interface="v2", actor="user/1"))
    async with secured(authority, registry) as secured_address:
        await create_app(secured_address, authority.issue("alice", OPERATOR), ACCOUNT)
    assert registry.origins == [
        ACCOUNT,
        Origin(interface="cli", address="127.0.0.1"),
        Origin(interface="cli", address="CN=alice", says="192.0.2.7"),
    ]


async def test_the_origin_that_a_process_of_the_service_passes_on_is_believed(tmp_path: Path) -> None:
    address, registry = f"unix:{tmp_path / 'registry.sock'}", new_registry()
    async with running(registry, serve([address], believes_origins=True)):
        await create_app(address, None, ACCOUNT)
    assert registry.origins == [ACCOUNT]


def test_over_the_commands_socket_the_actor_is_the_user_at_the_other_end(tmp_path: Path) -> None:
    me = f"{getpass.getuser()}@{os.uname().nodename}"
    origins, mode = uvloop.run(over_the_socket(tmp_path / "carillon.sock", [FORGED, Origin(address=me), ACCOUNT]))
    assert mode == 0o600
    assert origins == [
        Origin(interface="cli", address=me, request_id="r1", says="root@moon"),
        Origin(interface="cli", address=me),
        Origin(interface="cli", address=me, says="192.0.2.7"),
    ]
    assert not (tmp_path / "carillon.sock").exists()


async def over_the_socket(path: Path, given: Sequence[Origin]) -> tuple[list[Origin], int]:
    registry, user_socket = new_registry(), UserSocket("commands", path)
    async with running(registry, serve([f"unix:{user_socket.inner}"], users=user_socket.users)):
        ready = asyncio.Event()
        listening = asyncio.create_task(user_socket.run(ready))
        await asyncio.wait_for(ready.wait(), 60)
        mode = permissions_of(path)
        for origin in given:
            await create_app(f"unix:{path}", None, origin)
        listening.cancel()
        await asyncio.wait([listening])
    user_socket.close()
    assert not user_socket.inner.parent.exists()
    return registry.origins, mode


def permissions_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def test_large_messages_pass_the_commands_socket(tmp_path: Path) -> None:
    large: dict[str, Any] = {"tokens": ["x" * 200] * 50_000}
    user_socket = UserSocket("commands", tmp_path / "carillon.sock")
    async with running(new_registry(), serve([f"unix:{user_socket.inner}"], users=user_socket.users)):
        listening = asyncio.create_task(user_socket.run(ready := asyncio.Event()))
        await asyncio.wait_for(ready.wait(), 60)
        async with channel(f"unix:{tmp_path}/carillon.sock", None) as to_registry:
            found = await RegistryServiceStub(to_registry).FindDevices(FindDevicesRequest(**large))
            assert found == FindDevicesResponse()
        listening.cancel()
        await asyncio.wait([listening])
    user_socket.close()


@pytest.mark.parametrize(
    "listed", [ShardOfRole("registry", 1, 2), ShardOfRole("registry", 0, 3)], ids=["order", "number"]
)
async def test_a_call_that_is_meant_for_another_instance_is_refused(listed: ShardOfRole, tmp_path: Path) -> None:
    """Its caller has another list of instances, and would be told that devices of other partitions do not exist."""
    address = f"unix:{tmp_path / 'registry.sock'}"
    server = serve([address], shard=ShardOfRole("registry", 0, 2))
    add_RegistryServiceServicer_to_server(new_registry(), server)
    add_DeliveryServiceServicer_to_server(Delivery(), server)  # type: ignore[abstract]
    await server.start()
    wrong, right = connect(address, shard=listed), connect(address, shard=ShardOfRole("registry", 0, 2))
    try:
        refusal = rf"takes this for shard {listed.shard} of {listed.shards} of registry, but it is shard 0 of 2"
        with pytest.raises(PermissionDeniedError, match=rf"{refusal}: CARILLON_REGISTRY_ADDR must be the same list"):
            await RegistryServiceStub(wrong).FindDevices(FindDevicesRequest())
        with pytest.raises(PermissionDeniedError, match=refusal):
            await anext(aiter(DeliveryServiceStub(wrong).Attach(one_request())))
        await RegistryServiceStub(right).FindDevices(FindDevicesRequest())
        assert (await anext(aiter(DeliveryServiceStub(right).Attach(one_request())))).recorded == 1
    finally:
        await asyncio.gather(wrong.close(), right.close())
        await server.stop(None)


async def one_request() -> AsyncIterator[AttachRequest]:
    yield AttachRequest()
