"""The gateway role: its settings and how it is put together."""

import resource
import secrets
from random import SystemRandom

from services.domain.device_protocol import HEARTBEAT_S
from services.domain.role import Role, RoleContext
from services.gateway.certificate import Certificate
from services.gateway.connection import Connection
from services.gateway.connections import ConnectionIds, Connections
from services.gateway.decide import Limits, Room, room
from services.gateway.device_requests import Requests
from services.gateway.handshake import Reception
from services.gateway.revocations import Eviction
from services.gateway.server import Door
from services.gateway.session_writer import SessionWriter
from services.gateway.token_buckets import Buckets
from services.gateway.unreported import Outbox
from services.gateway.uplink import Uplink
from services.runtime.process.logs import logger
from services.runtime.process.settings import PREFIX, Port, Positive, Settings, SettingsError

_BURST_S = 10
_UNLIMITED_FILES = 2**20


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """Durations in seconds.

    `gateway_share_port` lets several gateway processes on one host listen at one port (SO_REUSEPORT).
    `gateway_max_connections` is what the limit of open files allows, unless set to less.
    `gateway_ack_s` is how long a device may keep a push without acknowledging it.
    `gateway_heartbeat_s` is for devices that wish for none; wishes are kept between the minimum and the maximum.
    `gateway_registrations_per_s` is for each peer address; ten times as many may come at once.
    `gateway_drain_per_s` is how many devices a stop sends away, and how many it lets come back.
    `gateway_tls_cert` and `gateway_tls_key` are PEM files; with them devices connect by TLS.
    """

    gateway_port: Port = 8400
    gateway_share_port: bool = False
    gateway_max_connections: Positive | None = None
    gateway_heartbeat_s: Positive = HEARTBEAT_S
    gateway_heartbeat_min_s: Positive = 30
    gateway_heartbeat_max_s: Positive = 1800
    gateway_hello_s: Positive = 10
    gateway_ack_s: Positive = 60
    gateway_frames_per_10s: Positive = 2000
    gateway_registrations_per_s: Positive = 500
    gateway_drain_per_s: Positive = 2000
    gateway_tls_cert: str | None = None
    gateway_tls_key: str | None = None

    def check(self) -> None:
        super().check()
        if self.gateway_heartbeat_min_s > self.gateway_heartbeat_max_s:
            raise SettingsError(
                f"{PREFIX}GATEWAY_HEARTBEAT_MIN_S is {self.gateway_heartbeat_min_s}, "
                f"more than {PREFIX}GATEWAY_HEARTBEAT_MAX_S ({self.gateway_heartbeat_max_s})"
            )
        most = room(_hard_limit(), None).connections
        if self.gateway_max_connections is not None and self.gateway_max_connections > most:
            raise SettingsError(
                f"{PREFIX}GATEWAY_MAX_CONNECTIONS is {self.gateway_max_connections}, but {_hard_limit()} open files "
                f"leave room for {most}; raise the limit of open files (ulimit -Hn)"
            )
        self.certificate()

    @property
    def scheme(self) -> str:
        return "wss" if self.gateway_tls_cert else "ws"

    def limits(self) -> Limits:
        return Limits(
            hello_ms=self.gateway_hello_s * 1000,
            slow_ms=30_000,
            ack_ms=self.gateway_ack_s * 1000,
            goodbye_ms=5_000,
            frames=self.gateway_frames_per_10s,
            window_ms=10_000,
            buffer_bytes=1024 * 1024,
            heartbeat_s=self.gateway_heartbeat_s,
            min_heartbeat_s=self.gateway_heartbeat_min_s,
            max_heartbeat_s=self.gateway_heartbeat_max_s,
            drain_per_s=self.gateway_drain_per_s,
        )

    def certificate(self) -> Certificate | None:
        """What devices are shown; None without TLS. SettingsError: the files are no certificate and its key."""
        chain, key = self.gateway_tls_cert, self.gateway_tls_key
        if (chain is None) != (key is None):
            raise SettingsError(f"{PREFIX}GATEWAY_TLS_CERT and {PREFIX}GATEWAY_TLS_KEY go together")
        if chain is None or key is None:
            return None
        try:
            return Certificate(chain, key)
        except OSError as error:
            raise SettingsError(
                f"{PREFIX}GATEWAY_TLS_CERT is {chain!r} and {PREFIX}GATEWAY_TLS_KEY {key!r}, "
                f"which are no certificate and its key in PEM: {error}"
            ) from None


SETTINGS = GatewaySettings


def build(settings: GatewaySettings, context: RoleContext) -> Role:
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
    return Role("gateway", services=[sessions, *uplinks, Eviction(context.apps, connections), door])


def _room(connections: int | None) -> Room:
    """Room for that many devices, once this process may open as many files as the host lets it."""
    files = _hard_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = room(files, connections)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        logger.info("the limit of open files was raised", was=soft, now=files, room_for_devices=found.connections)
    return found


def _hard_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _UNLIMITED_FILES if hard == resource.RLIM_INFINITY else hard
