"""`carillon serve ROLE`: one role in a process of its own."""

from collections.abc import Mapping
from typing import Any

import click
import uvloop

from carillon.environment import environment
from carillon.roles import ROLES, role_definition
from carillon.startup import plain_errors, restrict_permissions, set_ready
from services.domain.role import RoleDefinition
from services.domain.role_addresses import DEFAULT_ADDRESSES, role_addresses
from services.domain.role_context import connected_peers, role_context
from services.runtime.errors import CarillonError
from services.runtime.http.operations import Operations
from services.runtime.process import data_directory
from services.runtime.process.logs import configure
from services.runtime.process.runner import run
from services.runtime.process.settings import Settings, load
from services.runtime.rpc.listener import RpcListener
from services.runtime.rpc.server import serve as serve_rpc


@click.command()
@click.argument("role", type=click.Choice(list(ROLES)))
def serve(role: str) -> None:
    """Run one role. It reaches the others at CARILLON_<ROLE>_ADDR and the log at CARILLON_KAFKA_BOOTSTRAP."""
    restrict_permissions()
    with plain_errors():
        env = environment()
        definition = role_definition(role)
        settings = load(definition.settings, env)
        if settings.kafka_bootstrap is None:
            raise CarillonError("set CARILLON_KAFKA_BOOTSTRAP: roles in processes of their own share a Kafka log")
        configure(settings.log_level)
        if definition.serve is not None:
            definition.serve(env)
        else:
            with data_directory.lock_directory(settings.state_dir(role), "running.lock"):
                uvloop.run(_serve(definition, settings, env))


async def _serve(definition: RoleDefinition[Any], settings: Settings, env: Mapping[str, str]) -> None:
    async with role_context(settings, connected_peers(env, settings.tls())) as context:
        built = definition.build(settings, context)
        operations = Operations(settings.host, settings.console_port)
        listeners = []
        if definition.name in DEFAULT_ADDRESSES:
            server = serve_rpc([_own_address(definition.name, settings, env)], settings.tls())
            for add_to in built.servicers:
                add_to(server)
            listeners = [RpcListener(f"{definition.name} calls", server)]
        await run([operations, *built.services], on_ready=lambda: set_ready(operations), listeners=listeners)


def _own_address(role: str, settings: Settings, env: Mapping[str, str]) -> str:
    addresses = role_addresses(role, env)
    if len(addresses) != settings.shards:
        raise CarillonError(
            f"CARILLON_{role.upper()}_ADDR names {len(addresses)} instances, but CARILLON_SHARDS is {settings.shards}"
        )
    return addresses[settings.shard]
