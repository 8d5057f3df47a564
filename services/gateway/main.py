"""The gateway role: its settings and how it is put together."""

import secrets
from random import SystemRandom

from services.gateway.connection import Connection
from services.gateway.decide import Limits
from services.gateway.reception import Reception
from services.gateway.requests import Requests
from services.gateway.server import Door
from services.gateway.sessions import Journal
from services.gateway.state import ConnectionIds, Connections
from services.gateway.uplink import Outbox, Uplink
from services.runtime.config import Port, Positive, Settings
from services.runtime.device_protocol import HEARTBEAT_S
from services.runtime.role import Role, Surroundings


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """`gateway_share_port` lets several gateway processes on one host listen at one port (SO_REUSEPORT)."""

    gateway_port: Port = 8400
    gateway_share_port: bool = False
    gateway_heartbeat_s: Positive = HEARTBEAT_S
    gateway_hello_s: Positive = 10
    gateway_frames_per_10s: Positive = 2000

    def limits(self) -> Limits:
        """A device is given up after one and a half heartbeats and 10 s without a frame."""
        return Limits(
            hello_ms=self.gateway_hello_s * 1000,
            idle_ms=self.gateway_heartbeat_s * 1500 + 10_000,
            slow_ms=30_000,
            goodbye_ms=5_000,
            frames=self.gateway_frames_per_10s,
            window_ms=10_000,
            buffer_bytes=1024 * 1024,
        )


SETTINGS = GatewaySettings


def build(settings: GatewaySettings, around: Surroundings) -> Role:
    """Journal, one uplink for each delivery instance, and the door, which stops first."""
    random = SystemRandom()
    gateway = f"gateway-{secrets.token_hex(4)}"
    connections: Connections[Connection] = Connections()
    journal = Journal(around.log, around.clock, gateway, settings.partitions, connections.counts)
    deliveries = around.peers.all("delivery")
    outboxes = [Outbox(around.clock) for _ in deliveries]
    reception = Reception(
        around,
        Requests(around, settings.partitions),
        journal,
        outboxes,
        connections,
        ConnectionIds(random.getrandbits(16)),
        random,
        settings.gateway_heartbeat_s,
    )
    door = Door(
        reception,
        connections,
        around.clock,
        random,
        settings.limits(),
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

    return Role("gateway", services=[journal, *map(uplink, range(len(deliveries))), door])
