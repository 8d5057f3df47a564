"""The gateway's settings, checked against what the host and the certificate's files allow."""

from services.domain.device_protocol.frames import HEARTBEAT_S
from services.domain.settings import PREFIX, Port, Positive, Settings, SettingsError
from services.gateway.acceptor import Certificate
from services.gateway.rules import ConnectionLimits, process_capacity
from services.net.sockets import hard_file_limit

ROLE_NAME = "gateway"


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """Settings of the gateway; durations are in seconds.

    `gateway_share_port` lets several gateway processes of a host listen at one port (SO_REUSEPORT).
    `gateway_max_connections` is by default as many as the limit of open files allows.
    `gateway_connections_per_address` is for each peer network, by default a quarter of the connections.
    `gateway_hello_s` is the deadline for a device's hello.
    `gateway_ack_s` is the deadline for the acknowledgement of a push.
    `gateway_heartbeat_s` is for devices that request none; requests are kept between the minimum and the maximum.
    `gateway_drain_per_s` is the rate of a drain's goodbyes, and of the reconnects that follow.
    `gateway_tls_cert` and `gateway_tls_key` are PEM files; with them devices connect with TLS.
    """

    gateway_port: Port = 8400
    gateway_share_port: bool = False
    gateway_max_connections: Positive | None = None
    gateway_connections_per_address: Positive | None = None
    gateway_heartbeat_s: Positive = HEARTBEAT_S
    gateway_heartbeat_min_s: Positive = 30
    gateway_heartbeat_max_s: Positive = 1800
    gateway_hello_s: Positive = 10
    gateway_ack_s: Positive = 60
    gateway_frames_per_10s: Positive = 2000
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
        files = hard_file_limit()
        most = process_capacity(files, None, self.http_max_connections).connections
        if self.gateway_max_connections is not None and self.gateway_max_connections > most:
            raise SettingsError(
                f"{PREFIX}GATEWAY_MAX_CONNECTIONS is {self.gateway_max_connections}, but {files} open "
                f"files allow {most} connections; raise the limit of open files (ulimit -Hn)"
            )
        self.certificate()

    @property
    def scheme(self) -> str:
        return "wss" if self.gateway_tls_cert else "ws"

    def limits(self) -> ConnectionLimits:
        return ConnectionLimits(
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
        """Return the certificate, or None without TLS. SettingsError: the files hold no certificate with its key."""
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
