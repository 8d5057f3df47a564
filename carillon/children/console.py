"""`carillon up-console`: the console of `carillon up`, which starts it as its child process.

The command is in no help text: only its parent starts it. The parent serves its roles on Unix sockets for this process
alone, appends records to the embedded log for it, and shares the listening socket of the pages with it.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import click

from carillon.children.parent import LogWatch, ParentLog, ParentStatusFollower
from carillon.children.process import Progress, address, run_as_child
from carillon.roles import role_definition
from console.first_start import FirstStart
from console.settings import ROLE_NAME, ConsoleSettings
from protos.runtime.v1.parent_pb2 import AskOperationsRequest
from protos.runtime.v1.parent_pb2_grpc import ParentServiceStub
from services.domain.apps import APPS_PARTITION
from services.domain.role import BuiltRole
from services.domain.role_context import DEFAULT_ADDRESSES, open_log, role_context
from services.domain.settings import Settings
from services.domain.topics import ACCOUNTS, TOPICS
from services.errors import CarillonError
from services.log.port import Log, Partition
from services.net.http.connections import HttpConnections, pages_limits
from services.net.http.operations import HEALTH_PATHS, answer, readiness
from services.net.http.server import Asgi, HttpListener
from services.net.rpc.channel import Channel, connect
from services.net.sockets import hard_file_limit
from services.process.clock import SteadyClock
from services.process.runner import Service
from services.replica.health import Health
from services.replica.peers import Peers
from services.replica.status_board import StatusBoard

COMMAND = "up-console"
PARENT = "up"
"""The name of the socket at which the parent answers this process."""

_FOLLOWED = (APPS_PARTITION, Partition(ACCOUNTS.name, 0))
_POLL_S = 30.0
"""Interval at which readers check for new records without a notice of LogWatch, which comes at once."""


@click.command(name=COMMAND, hidden=True)
@click.option("--parent", type=int, required=True)
@click.option("--listener", type=int, required=True, help="The file number of the parent's listening socket.")
def up_console(parent: int, listener: int) -> None:
    """Run the console of `carillon up`, the process PARENT."""
    run_as_child(parent, ROLE_NAME, partial(_role, listener), ConsoleSettings)


@asynccontextmanager
async def _role(listener_file: int, settings: ConsoleSettings) -> AsyncIterator[tuple[BuiltRole, Progress]]:
    """Yield the role with the services of its pages, and a function that returns how much it has read."""
    shared = socket.socket(fileno=listener_file)
    shared.set_inheritable(False)
    clock = SteadyClock()
    health = Health(clock)
    parent = connect(address(settings, PARENT))
    peers = Peers({role: [connect(address(settings, role))] for role in DEFAULT_ADDRESSES}, TOPICS)
    definition = role_definition(ROLE_NAME)
    try:
        log = await _log(settings, parent)
        async with role_context(settings, peers, definition.keys, health, clock, log=log, role=ROLE_NAME) as context:
            board = StatusBoard(clock)
            built = definition.build(settings, replace(context, board=board))
            assert built.pages is not None
            pages = _Pages(built.pages, ParentServiceStub(parent))
            connections = HttpConnections(ROLE_NAME, pages_limits(hard_file_limit()), clock)
            listener = HttpListener("the console", pages.application, "", 0, connections, shared)
            watch = [] if settings.kafka_bootstrap else [LogWatch(log, _FOLLOWED, parent, clock)]
            # The parent prints the link of the first start, below its other lines.
            own = [service for service in built.services if not isinstance(service, FirstStart)]
            services: list[Service] = [*watch, ParentStatusFollower(board, parent, clock), *own, listener]
            yield replace(built, services=services), health.records_read
    finally:
        await parent.close()


async def _log(settings: Settings, parent: Channel) -> Log:
    if settings.kafka_bootstrap:
        return await open_log(settings)
    return ParentLog(await open_log(settings, read_only=True, poll_s=_POLL_S), parent)


class _Pages:
    """Serves the pages, and the health of the parent, at whose socket this process accepts."""

    def __init__(self, pages: Asgi, parent: Any) -> None:
        self._pages = pages
        self._parent = parent

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] in HEALTH_PATHS:
            await answer(scope, send, self._ask)
        elif scope["type"] == "http":
            await self._pages(scope, receive, send)

    async def _ask(self, path: str) -> tuple[int, str, bytes]:
        try:
            found = await self._parent.AskOperations(AskOperationsRequest(path=path))
        except CarillonError as error:
            return readiness("ready", {"carillon up": str(error)})
        return found.status, found.content_type, found.body
