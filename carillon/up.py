"""`carillon up`: every role in this process, but analytics and the console, which are its child processes."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import click
import uvloop

from analytics.settings import ROLE_NAME as ANALYTICS
from analytics.settings import AnalyticsSettings
from carillon.archive import archive_days, retention_ms
from carillon.children import analytics as up_analytics
from carillon.children import console as up_console
from carillon.children.analytics import add_forwarded_analytics
from carillon.children.parent import Announcements, ParentServicer
from carillon.children.process import address, command
from carillon.commands.role_calls import SOCKET_NAME
from carillon.environment import environment
from carillon.roles import ROLES, role_definition
from carillon.startup import logged_errors, restrict_permissions, restrict_state, set_ready, shorten_switch_interval
from carillon.welcome import InterfaceAddress, WelcomePrinter
from console.settings import ROLE_NAME as CONSOLE
from console.settings import ConsoleSettings
from edge.settings import EdgeSettings
from protos.runtime.v1.parent_pb2_grpc import add_ParentServiceServicer_to_server
from protos.runtime.v1.processes_pb2 import ProcessStatus
from services.domain.role import BuiltRole, RoleContext
from services.domain.role_context import role_context
from services.domain.settings import Settings, load
from services.domain.topics import TOPICS, archived_partitions
from services.errors import CarillonError, ConflictError
from services.log.archive.archiver import Archiver
from services.log.archive.directory import ArchiveDirectory
from services.log.identity import noted_log_identity
from services.log.port import Partition
from services.net.child import ChildProcess, ChildReadiness
from services.net.http.operations import METRICS_PORT, Operations
from services.net.http.operations import NAME as OPERATIONS
from services.net.http.server import listening_socket
from services.net.rpc.caller import UserSocket
from services.net.rpc.channel import connect
from services.net.rpc.local import LocalServer
from services.net.rpc.server import RpcListener, Server, serve
from services.process import data_directory
from services.process.build import missing_package
from services.process.clock import Clock, SteadyClock
from services.process.logs import configure, logger
from services.process.memory import IdleMemory, OwnMemory, collect_rarely
from services.process.metrics import with_children
from services.process.runner import Service, run
from services.process.slices import PROMPT_NS, choose_slice
from services.replica.archive_end import ArchiveEnd, StateBases
from services.replica.health import Health
from services.replica.own_status import Announcer, OwnStatus, process_id
from services.replica.peers import Peers
from services.replica.sqlite_store import stored_offsets

_HERE = [role for role in ROLES if role not in (ANALYTICS, CONSOLE)]
_CHILD_READY_S = 90
_PORT_TRIES = 25
_PORT_EVERY_MS = 200


@click.command()
def up() -> None:
    """Run every role with one command, on the data directory (CARILLON_DATA_DIR, default ./data)."""
    restrict_permissions()
    shorten_switch_interval()
    choose_slice(PROMPT_NS)
    collect_rarely()
    with logged_errors():
        env = environment()
        settings = load(Settings, env)
        role_settings = {role: load(role_definition(role).settings, env) for role in _HERE}
        analytics_settings = _check_analytics(env)
        console_settings = load(ConsoleSettings, env)
        configure(settings.log_level)
        with data_directory.lock_directory(settings.data):
            for role in _HERE:
                restrict_state(settings.state_dir(role))
            uvloop.run(_up(settings, analytics_settings, role_settings, console_settings))


async def _up(
    settings: Settings,
    analytics_settings: AnalyticsSettings,
    role_settings: Mapping[str, Any],
    console_settings: ConsoleSettings,
) -> None:
    servers = {role: LocalServer() for role in _HERE}
    of_analytics = connect(address(settings, ANALYTICS))
    channels = {role: server.channel() for role, server in servers.items()} | {ANALYTICS: of_analytics}
    peers = Peers({role: [channel] for role, channel in channels.items()}, TOPICS)
    clock = SteadyClock()
    analytics = ChildProcess(ANALYTICS, command(up_analytics.COMMAND, os.getpid()), of_analytics, clock)
    of_console = connect(address(settings, CONSOLE))
    pages = await pages_socket(settings, clock)
    console_command = [*command(up_console.COMMAND, os.getpid()), "--listener", str(pages.fileno())]
    console = ChildProcess(CONSOLE, console_command, of_console, clock, [pages.fileno()])
    children = (analytics, console)
    health = Health(clock)
    async with role_context(settings, peers, health=health, clock=clock, creates_master=True) as context:
        for child in children:
            child.begin()
        user_socket = UserSocket("the commands' socket", settings.data.absolute() / SOCKET_NAME)
        socket_server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
        bases = _bases(settings, context)
        for role, of_role in bases.items():
            await asyncio.to_thread(_begin_with_base, of_role, settings.state_dir(role), context)
        built_roles = [role_definition(role).build(own, context) for role, own in role_settings.items()]
        for built in built_roles:
            for add_to in built.servicers:
                add_to(cast(Server, servers[built.name]))
            # Only the role's own service: several roles offer PositionsService, but a server can have it once.
            for add_to in built.servicers[:1]:
                add_to(socket_server)
        add_forwarded_analytics(of_analytics, socket_server)
        operations = Operations(
            settings.host,
            settings.console_port,
            health.problems,
            health.shared_problems,
            partial(_metrics, children),
            shared=pages,
        )
        console.on_up = lambda is_up: operations.accept(not is_up)
        announcements = Announcements()
        own = OwnStatus(
            [built.reported(settings) for built in built_roles],
            clock.now_ms(),
            lambda: operations.stage,
            health.problems,
        )
        parent = ParentServicer(context.log, announcements, operations.answer, _may_console_append)
        services: list[Service] = [
            operations,
            operations.metrics_listener(settings.host, settings.metrics_port),
            Announcer(_statuses(own, children), announcements.publish, clock, "up"),
            analytics,
            *(service for built in built_roles for service in built.services),
            RpcListener("the commands' calls", socket_server),
            user_socket,
            *_servers_of_console(settings, built_roles, parent),
            console,
            *(ChildReadiness(child, _CHILD_READY_S) for child in children),
            *_archiver(context, analytics_settings, role_settings["edge"], built_roles, list(bases.values())),
            WelcomePrinter(context, _endpoints(settings, role_settings), console_settings, settings.data),
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


async def pages_socket(settings: Settings, clock: Clock) -> socket.socket:
    """Return the listening socket of the pages. ConflictError: another process has the port, and keeps it for 5 s.

    The console of a former start has it until it ends, and its parent may have been killed just now.
    """
    for left in reversed(range(_PORT_TRIES)):
        try:
            return listening_socket(OPERATIONS, settings.host, settings.console_port)
        except ConflictError as error:
            if not left:
                raise
            if left == _PORT_TRIES - 1:
                logger.warning("the port is taken, perhaps by the console of a former start: waiting", error=str(error))
            await clock.sleep_until(clock.now_ms() + _PORT_EVERY_MS)
    raise AssertionError


def _may_console_append(topic: str) -> bool:
    """Return whether the console may append to the topic through this process, which signs what it appends."""
    return topic not in TOPICS or CONSOLE in TOPICS[topic].written_by


def _servers_of_console(
    settings: Settings, built_roles: Sequence[BuiltRole], parent: ParentServicer
) -> list[RpcListener]:
    """Return the servers of the calls that the console's process makes: one for each role, and one for this process."""
    servers = {
        built.name: serve([address(settings, built.name)], believes_origins=True)
        for built in built_roles
        if built.servicers
    }
    for built in built_roles:
        for add_to in built.servicers:
            add_to(servers[built.name])
    servers[up_console.PARENT] = serve([address(settings, up_console.PARENT)])
    add_ParentServiceServicer_to_server(parent, servers[up_console.PARENT])
    return [RpcListener(f"the console's calls of {name}", server) for name, server in servers.items()]


def _statuses(own: OwnStatus, children: Sequence[ChildProcess]) -> Callable[[], Mapping[str, ProcessStatus]]:
    """Return a function that returns the statuses of this process and its children, each by an id of its own."""
    process = process_id()

    def statuses() -> Mapping[str, ProcessStatus]:
        found = {process: own.read()}
        return found | {f"{process}-{child.name}": child.status for child in children if child.status}

    return statuses


def _archiver(
    context: RoleContext,
    analytics_settings: AnalyticsSettings,
    edge_settings: EdgeSettings,
    built_roles: Sequence[BuiltRole],
    bases: Sequence[StateBases],
) -> list[Service]:
    """Return the services that archive records once they are too old to hold a push that can still be sent, and that
    remove them from the archive once they are too old for it.
    """
    if context.archived is None:
        return []
    followers = [followed for built in built_roles for followed in built.followers]

    def needed() -> list[Mapping[Partition, int]]:
        ingested = stored_offsets(analytics_settings.offsets_file())
        return [ingested, *(followed.applied.next_offsets(followed.partitions) for followed in followers)]

    partitions = archived_partitions(edge_settings.partitions)
    archiver = Archiver(context.archived, context.clock, partitions, retention_ms(edge_settings), needed)
    days = archive_days(analytics_settings)
    if not days:
        return [archiver]
    assert isinstance(context.archived.archive, ArchiveDirectory)
    read = [partition for partition in partitions if ANALYTICS in TOPICS[partition.topic].read_by]

    def ingested() -> list[Mapping[Partition, int]]:
        offsets = stored_offsets(analytics_settings.offsets_file())
        return [{partition: offsets.get(partition, 0) for partition in read}]

    return [
        archiver,
        ArchiveEnd(context.archived.archive, context.log, context.clock, partitions, bases, days, ingested),
    ]


def _bases(settings: Settings, context: RoleContext) -> dict[str, StateBases]:
    """Return the bases of each role whose state is a directory."""
    archive = context.archived.archive if context.archived else None
    if not isinstance(archive, ArchiveDirectory):
        return {}
    replays = {role: role_definition(role).replay for role in _HERE}
    return {
        role: StateBases(archive, role, settings.state_dir(role), TOPICS, context.log.identity)
        for role, replay in replays.items()
        if replay is not None and replay.is_one_directory
    }


def _begin_with_base(bases: StateBases, directory: Path, context: RoleContext) -> None:
    """Fill an empty state directory, where the archive has removed the records that it would be built from.

    ConflictError: the archive has no base.
    """
    assert context.archived is not None
    begin = context.archived.archive.begin()
    if begin.offsets and not noted_log_identity(directory):
        bases.unpack(bases.first_after(begin), directory)
        logger.info("a state begins with its copy in the archive", directory=str(directory))


def _check_analytics(env: Mapping[str, str]) -> AnalyticsSettings:
    """Return the settings of analytics. CarillonError: a setting is wrong, or a package is missing."""
    settings = load(AnalyticsSettings, env)
    if find_spec("pyarrow") is None:
        raise CarillonError(missing_package("carillon up", "pyarrow"))
    return settings


async def _metrics(children: Sequence[ChildProcess]) -> bytes:
    texts = await asyncio.gather(*(child.metrics() for child in children))
    return with_children({child.name: text for child, text in zip(children, texts, strict=True)})


def _endpoints(settings: Settings, role_settings: Mapping[str, Any]) -> list[InterfaceAddress]:
    edge, gateway = role_settings["edge"], role_settings["gateway"]
    return [
        InterfaceAddress("app servers, v2", "http", settings.host, edge.v2_port, "/v2/push"),
        InterfaceAddress("legacy Android", "http", settings.host, edge.android_port, "/push"),
        InterfaceAddress("legacy iOS", "http", settings.host, edge.ios_port, "/push"),
        InterfaceAddress("devices", gateway.scheme, settings.host, gateway.gateway_port, "/device/v1"),
        InterfaceAddress("console", "http", settings.host, settings.console_port, "/"),
        InterfaceAddress("health", "http", settings.host, settings.console_port, "/healthz"),
        InterfaceAddress(
            "metrics",
            "http",
            settings.host,
            METRICS_PORT if settings.metrics_port is None else settings.metrics_port,
            "/metrics",
        ),
    ]
