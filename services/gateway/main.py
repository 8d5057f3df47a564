"""Wiring of the gateway role."""

import resource
import secrets
from random import SystemRandom

from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.gateway.connection import Connection
from services.gateway.connections import ConnectionIds, Connections
from services.gateway.decide import Room, room
from services.gateway.device_requests import Requests
from services.gateway.handshake import Reception
from services.gateway.revocations import Eviction
from services.gateway.server import Door
from services.gateway.session_writer import SessionWriter
from services.gateway.settings import ROLE_NAME, GatewaySettings, hard_file_limit
from services.gateway.token_buckets import Buckets
from services.gateway.unreported import Outbox
from services.gateway.uplink import Uplink
from services.runtime.process.logs import logger

_BURST_S = 10


def build(settings: GatewaySettings, context: RoleContext) -> BuiltRole:
    """SessionWriter, one uplink for each delivery instance, and the door, which stops first."""
    random = SystemRandom()
    gateway = f"gateway-{secrets.token_hex(4)}"
    limits = settings.limits()
    connections: Connections[Connection] = Connections()
    sessions = SessionWriter(context.log, context.clock, gateway, settings.partitions, connections.counts)
    deliveries = context.peers.all("delivery")
    outboxes = [Outbox() for _ in deliveries]
    reception = Reception(
        context,
        Requests(context, settings.partitions),
        sessions,
        outboxes,
        connections,
        ConnectionIds(random.getrandbits(16)),
        random,
        limits,
        Buckets(settings.gateway_registrations_per_s, _BURST_S * settings.gateway_registrations_per_s),
    )
    door = Door(
        reception,
        connections,
        context.clock,
        random,
        limits,
        _room(settings.gateway_max_connections),
        settings.certificate(),
        host=settings.host,
        port=settings.gateway_port,
        share_port=settings.gateway_share_port,
    )

    def uplink(instance: int) -> Uplink:
        return Uplink(
            deliveries[instance],
            gateway,
            outboxes[instance],
            lambda: list(connections.sessions(instance, len(deliveries))),
            door.hand,
            random,
        )

    uplinks = map(uplink, range(len(deliveries)))
    return BuiltRole(ROLE_NAME, services=[sessions, *uplinks, Eviction(context.apps, connections), door])


def _room(connections: int | None) -> Room:
    """Room for that many devices, once this process may open as many files as the host lets it."""
    files = hard_file_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = room(files, connections)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        logger.info("the limit of open files was raised", was=soft, now=files, room_for_devices=found.connections)
    return found


ROLE = RoleDefinition(ROLE_NAME, GatewaySettings, build)
