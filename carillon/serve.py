"""`carillon serve ROLE`: one role in a process of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any

import click
import uvloop

from carillon.environment import environment
from carillon.roles import ROLES, role_definition
from carillon.startup import logged_errors, restrict_permissions, restrict_state, set_ready, shorten_switch_interval
from protos.runtime.v1.clock_pb2_grpc import add_ClockServiceServicer_to_server
from services.domain.call_permissions import PERMISSIONS
from services.domain.role import RoleContext, RoleDefinition
from services.domain.role_context import (
    DEFAULT_ADDRESSES,
    ROLES_WITH_STANDBYS,
    connected_peers,
    held_keys,
    role_addresses,
    role_context,
)
from services.domain.settings import Settings, load
from services.errors import CarillonError
from services.log.monitored import LogAgeElsewhere
from services.net.http.operations import Operations
from services.net.rpc.caller import ShardOfRole
from services.net.rpc.clock_sync import ClockServicer, ClockSync
from services.net.rpc.server import RpcListener, Streams
from services.net.rpc.server import serve as serve_rpc
from services.process import data_directory
from services.process.clock import SteadyClock
from services.process.logs import configure, logger
from services.process.memory import collect_rarely
from services.process.runner import Service, run
from services.replica.health import Health
from services.replica.membership import Membership, state_directory_id
from services.replica.own_status import Announcer, OwnStatus, process_id, to_log
from services.replica.state_copies import StateCopies, StateSaver

_HOUR_MS = 3_600_000


@click.command()
@click.argument("role", type=click.Choice(list(ROLES)))
def serve(role: str) -> None:
    """Run one role. It reaches the others at CARILLON_<ROLE>_ADDR and the log at CARILLON_KAFKA_BOOTSTRAP."""
    restrict_permissions()
    shorten_switch_interval()
    collect_rarely()
    with logged_errors():
        env = environment()
        definition = role_definition(role)
        settings = load(definition.settings, env)
        if settings.kafka_bootstrap is None:
            raise CarillonError("set CARILLON_KAFKA_BOOTSTRAP: roles in processes of their own share a Kafka log")
        configure(settings.log_level, text_on_terminal=False)
        restrict_state(settings.state_dir(role))
        if definition.serve is not None:
            definition.serve(env)
        else:
            with data_directory.lock_directory(settings.state_dir(role), data_directory.RUNNING_LOCK):
                uvloop.run(_serve(definition, settings, env))


async def _serve(definition: RoleDefinition[Any], settings: Settings, env: Mapping[str, str]) -> None:
    clock = SteadyClock()
    health = Health(clock)
    peers = connected_peers(env, settings.tls())
    async with role_context(settings, peers, definition.keys, health, clock, role=definition.name) as context:
        sync = ClockSync(clock, peers.channels, f"{definition.name}-{settings.shard}")
        health.compare_with(sync.log_age_elsewhere)
        if definition.name in ROLES_WITH_STANDBYS:
            membership = _membership(definition.name, settings, env, context, sync.log_age_elsewhere)
            context = replace(context, membership=membership)
        copying = await _state_copies(definition, settings, context)
        built = definition.build(settings, context)
        health.watch(built.followers)
        operations = Operations(
            settings.host, settings.console_port, health.problems, health.shared_problems, pages=built.pages
        )
        has_pages = built.pages is not None
        metrics = [operations.metrics_listener(settings.host, settings.metrics_port)] if has_pages else []
        listeners = []
        if definition.name in DEFAULT_ADDRESSES:
            address = own_address(definition.name, settings, env)
            shard = ShardOfRole(definition.name, settings.shard, settings.shards)
            streams = Streams()
            listens = listening_address(address, settings)
            server = serve_rpc([listens], settings.tls(), permissions=PERMISSIONS, shard=shard, streams=streams)
            for add_to in built.servicers:
                add_to(server)
            add_ClockServiceServicer_to_server(ClockServicer(clock, health.log_accepted_ms_ago), server)
            listeners = [RpcListener(f"{definition.name} calls", server, streams)]
        own = OwnStatus(
            [built.reported(settings)],
            clock.now_ms(),
            lambda: operations.stage,
            health.problems,
            held_keys=partial(held_keys, context),
        )
        process = process_id()
        announcer = Announcer(lambda: {process: own.read()}, to_log(context.log), clock, definition.name)
        await run(
            [operations, *metrics, sync, announcer, *built.services, *copying, health],
            on_ready=lambda: set_ready(operations),
            progress=health.records_read,
            listeners=listeners,
            on_stopping=operations.set_stopping,
            drain_seconds=settings.drain_s,
        )


async def _state_copies(definition: RoleDefinition[Any], settings: Settings, context: RoleContext) -> Sequence[Service]:
    """Fill an empty state directory from the archive, where there is one; return the service that saves copies there.

    UnavailableError: the archive does not work, and a state would be built from the first record of the log on.
    """
    if context.archived is None or definition.replay is None or not definition.replay.is_one_directory:
        return ()
    directory = settings.state_dir(definition.name)
    copies = StateCopies(context.archived.archive, directory, context.log.identity)
    if await asyncio.to_thread(copies.take):
        logger.info("the state begins with the copy in the archive", location=copies.location)
    return [StateSaver(copies, context.clock, settings.state_copy_hours * _HOUR_MS)]


def _membership(
    role: str, settings: Settings, env: Mapping[str, str], context: RoleContext, log_age_elsewhere: LogAgeElsewhere
) -> Membership:
    directory_id = state_directory_id(settings.state_dir(role))
    address = own_address(role, settings, env)
    return Membership(
        context.log,
        context.clock,
        role,
        settings.shard,
        address,
        directory_id,
        log_age_elsewhere=log_age_elsewhere,
    )


def own_address(role: str, settings: Settings, env: Mapping[str, str]) -> str:
    """Return the address at which this instance of the role is called. CarillonError: it may not listen there."""
    addresses = role_addresses(role, env)
    if len(addresses) != settings.shards:
        raise CarillonError(
            f"CARILLON_{role.upper()}_ADDR names {len(addresses)} instances, but CARILLON_SHARDS is {settings.shards}"
        )
    address = addresses[settings.shard]
    listens = listening_address(address, settings)
    if settings.tls_cert is None and not settings.plaintext_calls and not _is_local(listens):
        name = "CALLS_HOST" if settings.calls_host else f"{role.upper()}_ADDR"
        raise CarillonError(
            f"CARILLON_{name} is {listens}: without TLS anyone who reaches it could call the role. Set"
            " CARILLON_TLS_CERT, CARILLON_TLS_KEY and CARILLON_TLS_AUTHORITY, or listen on 127.0.0.1, or set"
            " CARILLON_PLAINTEXT_CALLS=true where the network lets only the roles through"
        )
    return address


def listening_address(address: str, settings: Settings) -> str:
    """Return the address at which an instance listens that is called at `address`."""
    return f"{settings.calls_host}:{address.rpartition(':')[2]}" if settings.calls_host else address


def _is_local(address: str) -> bool:
    """Return whether only processes of this machine reach the address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return address.startswith("unix:") or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
