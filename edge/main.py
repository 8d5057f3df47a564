"""Wiring of the edge role, which offers the app servers' HTTP interfaces."""

import asyncio
from collections.abc import Mapping

from edge.core.message_ids import MessageIds
from edge.interfaces import Interfaces
from edge.settings import KEYS, ROLE_NAME, EdgeSettings
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.log.port import LOG_UNAVAILABLE
from services.net.http.connections import HttpConnections, api_limits
from services.net.http.server import HttpListener
from services.net.sockets import shared_addresses
from services.process.clock import SteadyClock
from services.process.retries import retry_until_available


def build(settings: EdgeSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: the three interfaces as services of this process."""
    interfaces = Interfaces(settings, context)
    host = settings.host
    # The deadlines of real sockets are in real time, whatever the clock of the role is.
    connections = HttpConnections(
        "api",
        api_limits(settings.http_max_connections, settings.http_connections_per_address),
        SteadyClock(),
        shared_addresses(settings.client_addresses()),
    )
    return BuiltRole(
        ROLE_NAME,
        [
            _FirstClaim(interfaces.message_ids),
            interfaces.hangs,
            HttpListener("legacy Android interface", interfaces.android, host, settings.android_port, connections),
            HttpListener("legacy iOS interface", interfaces.ios, host, settings.ios_port, connections),
            HttpListener("v2 interface", interfaces.v2, host, settings.v2_port, connections),
        ],
    )


class _FirstClaim:
    """Claims message ids before the interfaces open, so that the first push does not wait for that."""

    name = "message ids"

    def __init__(self, message_ids: MessageIds) -> None:
        self._message_ids = message_ids

    async def run(self, ready: asyncio.Event) -> None:
        await retry_until_available(LOG_UNAVAILABLE, self._message_ids.claim, role=ROLE_NAME)
        ready.set()
        await asyncio.Event().wait()


def serve(env: Mapping[str, str]) -> None:
    """Run the edge as gunicorn workers until SIGTERM."""
    # Only this command needs gunicorn, and importing it takes 0.1 s.
    from edge.serve import run

    run(env)


ROLE = RoleDefinition(ROLE_NAME, EdgeSettings, build, keys=KEYS, serve=serve)
