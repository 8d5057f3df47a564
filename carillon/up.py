"""`carillon up`: every role in this process, but analytics, which is its child process."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import click
import uvloop

from analytics.settings import ROLE_NAME as ANALYTICS
from analytics.settings import AnalyticsSettings
from carillon import up_analytics
from carillon.analytics_calls import add_forwarded_analytics
from carillon.archive import retention_ms
from carillon.commands.role_calls import SOCKET_NAME
from carillon.environment import environment
from carillon.roles import ROLES, role_definition
from carillon.startup import logged_errors, restrict_permissions, set_ready, shorten_thread_turns
from carillon.welcome import Endpoint, WelcomePrinter
from edge.settings import EdgeSettings
from protos.runtime.v1.processes_pb2 import ProcessStatus
from services.domain.role import BuiltRole, RoleContext
from services.domain.role_context import role_context
from services.domain.topics import TOPICS, archived_partitions
from services.runtime.child.child_process import ChildProcess, ChildReadiness
from services.runtime.errors import CarillonError
from services.runtime.http.operations import Operations
from services.runtime.log.archive.archiver import Archiver
from services.runtime.log.port import Partition
from services.runtime.process import data_directory
from services.runtime.process.clock import SteadyClock
from services.runtime.process.exposition import with_child
from services.runtime.process.extras import missing_package
from services.runtime.process.logs import configure
from services.runtime.process.memory import IdleMemory, OwnMemory, collect_rarely
from services.runtime.process.runner import Service, run
from services.runtime.process.settings import Settings, load
from services.runtime.projection.health import Health
from services.runtime.projection.sqlite_store import stored_offsets
from services.runtime.rpc.channel import connect
from services.runtime.rpc.listener import RpcListener
from services.runtime.rpc.local import LocalServer
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.server import Server, serve
from services.runtime.rpc.user_socket import UserSocket
from services.runtime.status.announcer import Announcer, process_id
from services.runtime.status.board import Board
from services.runtime.status.own_status import OwnStatus, ReportedRole

_HERE = [role for role in ROLES if role != ANALYTICS]
_ANALYTICS_READY_S = 90


@click.command()
def up() -> None:
    """Run every role with one command, on the data directory (CARILLON_DATA_DIR, default ./data)."""
    restrict_permissions()
    shorten_thread_turns()
    collect_rarely()
    with logged_errors():
        env = environment()
        settings = load(Settings, env)
        role_settings = {role: load(role_definition(role).settings, env) for role in _HERE}
        analytics_settings = _check_analytics(env)
        configure(settings.log_level)
        with data_directory.lock_directory(settings.data):
            uvloop.run(_up(settings, analytics_settings, role_settings))


async def _up(settings: Settings, analytics_settings: AnalyticsSettings, role_settings: Mapping[str, Any]) -> None:
    servers = {role: LocalServer() for role in _HERE}
    of_analytics = connect(up_analytics.address(settings))
    channels = {role: server.channel() for role, server in servers.items()} | {ANALYTICS: of_analytics}
    peers = Peers({role: [channel] for role, channel in channels.items()}, TOPICS)
    clock = SteadyClock()
    analytics = ChildProcess(ANALYTICS, up_analytics.command(os.getpid()), of_analytics, clock)
    health = Health(clock)
    async with role_context(settings, peers, health=health, clock=clock, creates_master=True) as context:
        analytics.begin()
        user_socket = UserSocket("the commands' socket", settings.data.absolute() / SOCKET_NAME)
        socket_server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
        context = replace(context, board=Board(clock))
        built_roles = [role_definition(role).build(own, context) for role, own in role_settings.items()]
        for built in built_roles:
            for add_to in built.servicers:
                add_to(cast(Server, servers[built.name]))
            # Only the role's own service: several roles offer PositionsService, but a server can have it once.
            for add_to in built.servicers[:1]:
                add_to(socket_server)
        add_forwarded_analytics(of_analytics, socket_server)
        (pages,) = (built.pages for built in built_roles if built.pages)
        operations = Operations(
            settings.host, settings.console_port, health.problems, partial(_metrics, analytics), pages
        )
        announcer = _announcer(
            context, [built.reported(settings) for built in built_roles], operations, health, analytics
        )
        services: list[Service] = [
            operations,
            announcer,
            analytics,
            *(service for built in built_roles for service in built.services),
            RpcListener("the commands' calls", socket_server),
            user_socket,
            ChildReadiness(analytics, _ANALYTICS_READY_S),
            *_archiver(context, analytics_settings, role_settings["edge"], built_roles),
            WelcomePrinter(context, _endpoints(settings, role_settings)),
            health,
            IdleMemory(clock, OwnMemory()),
        ]
        health.watch([followed for built in built_roles for followed in built.followers])
        with contextlib.closing(user_socket):
            await run(
                services,
                on_ready=lambda: set_ready(operations),
                progress=health.records_read,
                on_stopping=operations.set_stopping,
                drain_seconds=settings.drain_s,
            )


def _announcer(
    context: RoleContext,
    roles: Sequence[ReportedRole],
    operations: Operations,
    health: Health,
    analytics: ChildProcess,
) -> Announcer:
    """Return what puts the state of this process and of its child on the board, which the console shows."""
    assert context.board is not None
    own = OwnStatus(roles, context.clock.now_ms(), lambda: operations.stage, health.problems)
    process = process_id()

    def statuses() -> Mapping[str, ProcessStatus]:
        found = {process: own.read()}
        return found | {f"{process}-{analytics.name}": analytics.status} if analytics.status else found

    return Announcer(statuses, context.board.publish, context.clock, "up")


def _archiver(
    context: RoleContext,
    analytics_settings: AnalyticsSettings,
    edge_settings: EdgeSettings,
    built_roles: Sequence[BuiltRole],
) -> list[Service]:
    """Return the service that archives records once no push of so long ago can still be sent to a device."""
    if context.archived is None:
        return []
    followers = [followed for built in built_roles for followed in built.followers]

    def needed() -> list[Mapping[Partition, int]]:
        ingested = stored_offsets(analytics_settings.offsets_file())
        return [ingested, *(followed.applied.next_offsets(followed.partitions) for followed in followers)]

    partitions = archived_partitions(edge_settings.partitions)
    return [Archiver(context.archived, context.clock, partitions, retention_ms(edge_settings), needed)]


def _check_analytics(env: Mapping[str, str]) -> AnalyticsSettings:
    """Return the settings of analytics, which can run with them. CarillonError: something is wrong or missing."""
    settings = load(AnalyticsSettings, env)
    if find_spec("pyarrow") is None:
        raise CarillonError(missing_package("carillon up", "pyarrow"))
    return settings


async def _metrics(analytics: ChildProcess) -> bytes:
    return with_child(analytics.name, await analytics.metrics())


def _endpoints(settings: Settings, role_settings: Mapping[str, Any]) -> list[Endpoint]:
    edge, gateway = role_settings["edge"], role_settings["gateway"]
    return [
        Endpoint("app servers, v2", "http", settings.host, edge.v2_port, "/v2/push"),
        Endpoint("legacy Android", "http", settings.host, edge.android_port, "/push"),
        Endpoint("legacy iOS", "http", settings.host, edge.ios_port, "/push"),
        Endpoint("devices", gateway.scheme, settings.host, gateway.gateway_port, "/device/v1"),
        Endpoint("console", "http", settings.host, settings.console_port, "/"),
        Endpoint("health and metrics", "http", settings.host, settings.console_port, "/healthz"),
    ]
