"""Mutual TLS between roles."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: this process's certificate and key, and the authority that issues all certificates."""

    certificate: Path
    key: Path
    authority: Path

    def client_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.authority.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials of a server that demands a certificate from every client."""
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        return grpc.ssl_server_credentials([pair], self.authority.read_bytes(), require_client_auth=True)
