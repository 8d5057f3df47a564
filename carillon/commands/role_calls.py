"""Calls from commands to the running service, over its socket or at addresses, and the origin that they carry."""

import asyncio
import contextlib
import getpass
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import click

from carillon.environment import environment
from carillon.installation.options import refuse_console
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Origin
from services.domain import ids
from services.domain.settings import Settings, addresses, load
from services.errors import CarillonError, NotOwnerError, UnavailableError
from services.net.rpc.channel import Channel, SocketChannel, connect

if TYPE_CHECKING:
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub


SOCKET_NAME = "carillon.sock"
"""The Unix socket in the data directory on which `carillon up` serves the commands."""

Answer = TypeVar("Answer")


def call_role(role: str, call: Callable[[Channel], Awaitable[Answer]]) -> Answer:
    """Call the first instance of a role. click.ClickException explains what to do if the call fails."""
    return call_all_instances(role, lambda channels: call(channels[0]))


def call_registry(call: "Callable[[RegistryServiceAsyncStub], Awaitable[Answer]]") -> Answer:
    """Call the first instance of the registry. click.ClickException explains what to do if the call fails."""

    async def with_stub(channel: Channel) -> Answer:
        return await call(RegistryServiceStub(channel))

    return call_role("registry", with_stub)


def call_all_instances(role: str, call: Callable[[Sequence[Channel]], Awaitable[Answer]]) -> Answer:
    """Call every instance of a role, with a channel to each. click.ClickException as for `call_role`."""
    try:
        refuse_console("this command", "works on the machine alone")
        env = environment()
        settings = load(Settings, env)
        socket = settings.data / SOCKET_NAME
        targets = addresses(role, env) or [f"unix:{socket.absolute()}"]
        return asyncio.run(_call(role, targets, settings, call))
    except _UnavailableRoleError as error:
        raise click.ClickException(f"{role} cannot answer at present: {error}") from None
    except UnavailableError as error:
        raise click.ClickException(
            f"no {role} answers at {', '.join(targets)}: {error}\nStart `carillon up` first, or set CARILLON_DATA_DIR"
            f" to its data directory (now {settings.data_dir}), or CARILLON_{role.upper()}_ADDR to the role's address."
        ) from None
    except CarillonError as error:
        raise click.ClickException(str(error)) from None


class _UnavailableRoleError(CarillonError):
    """The role runs and has answered that it is unavailable."""


async def _call(
    role: str, targets: Sequence[str], settings: Settings, call: Callable[[Sequence[Channel]], Awaitable[Answer]]
) -> Answer:
    """Call the instances at the targets; where one stands by, the owners that the log names."""
    try:
        return await _call_at(targets, settings, call)
    except NotOwnerError as error:
        owners = await _owners(role, settings)
        if owners is None:
            raise _UnavailableRoleError(str(error)) from None
        return await _call_at(owners, settings, call)


async def _owners(role: str, settings: Settings) -> Sequence[str] | None:
    """Return the addresses of the owners of all shards of the role; None where one is not known."""
    if settings.kafka_bootstrap is None:
        return None
    # Imported here, because only a command that has to look into the log needs the code that reads it.
    from carillon.commands.status import present, recent_facts

    instances = present(await recent_facts(settings))
    shards = {each.alive.shard for each in instances.all() if each.alive.role == role}
    owners = [instances.owner(role, shard) for shard in sorted(shards)]
    return [owner.alive.address for owner in owners if owner] if owners and all(owners) else None


async def _call_at(
    targets: Sequence[str], settings: Settings, call: Callable[[Sequence[Channel]], Awaitable[Answer]]
) -> Answer:
    channels = [connect(target, settings.tls()) for target in targets]
    try:
        return await call(channels)
    except NotOwnerError:
        raise
    except UnavailableError as error:
        if all(cast(SocketChannel, channel).is_connected for channel in channels):
            raise _UnavailableRoleError(str(error)) from None
        raise
    finally:
        for channel in channels:
            await channel.close()


# The origin that commands of this command line carry in the log.


def command_origin() -> Origin:
    """Return an origin with the names of user and host, which the service records as claimed, not as proven."""
    user = "unknown"
    with contextlib.suppress(KeyError, OSError):
        user = getpass.getuser()
    return Origin(interface="cli", address=f"{user}@{socket.gethostname()}", request_id=ids.event_id().hex())
