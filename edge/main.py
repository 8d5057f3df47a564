"""Wiring of the edge role, which offers the app servers' HTTP interfaces."""

import asyncio
from collections.abc import Mapping

from edge.interfaces import Interfaces
from edge.settings import KEYS, ROLE_NAME, EdgeSettings
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.runtime.http.connections import HttpConnections
from services.runtime.http.limits import api_limits
from services.runtime.http.listener import HttpListener
from services.runtime.process.clock import SystemClock
from services.runtime.sockets.peers import shared_addresses


def build(settings: EdgeSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: the three interfaces as services of this process."""
    interfaces = Interfaces(settings, context)
    host = settings.host
    # The deadlines of real sockets are in real time, whatever the clock of the role is.
    connections = HttpConnections(
        "api", api_limits(settings), SystemClock(), shared_addresses(settings.client_addresses())
    )
    return BuiltRole(
        ROLE_NAME,
        [
            _WorkerNumber(interfaces),
            HttpListener("legacy Android interface", interfaces.android, host, settings.android_port, connections),
            HttpListener("legacy iOS interface", interfaces.ios, host, settings.ios_port, connections),
            HttpListener("v2 interface", interfaces.v2, host, settings.v2_port, connections),
        ],
    )


class _WorkerNumber:
    """Releases the worker number once all interfaces are closed."""

    name = "message ids"

    def __init__(self, interfaces: Interfaces) -> None:
        self._interfaces = interfaces

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._interfaces.close()


def serve(env: Mapping[str, str]) -> None:
    """Run the edge as gunicorn workers until SIGTERM."""
    # Only this command needs gunicorn, and importing it takes 0.1 s.
    from edge.serve import run

    run(env)


ROLE = RoleDefinition(ROLE_NAME, EdgeSettings, build, keys=KEYS, serve=serve)
