"""Mutual TLS between roles. The files may be replaced while a process runs; new connections use the new files."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

from services.process.logs import logger


class Pems(NamedTuple):
    """The contents of the files of `Tls`."""

    certificate: bytes
    key: bytes
    authority: bytes

    def check(self) -> None:
        """Check that key and certificate belong together.

        ValueError: a file is no PEM, or the key is another certificate's. TypeError: the key has a password.
        """
        formats = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        certified = load_pem_x509_certificate(self.certificate).public_key().public_bytes(*formats)
        if load_pem_private_key(self.key, None).public_key().public_bytes(*formats) != certified:
            raise ValueError("the key does not belong to the certificate")
        load_pem_x509_certificates(self.authority)

    def client_credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self.key, self.certificate)], self.authority)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: this process's certificate and key, and the authority that issues all certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return credentials of a server that demands a certificate from every client."""
        files = RenewedFiles(self)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            return files.pems.server_configuration() if files.renew() else None

        return grpc.dynamic_ssl_server_credentials(
            files.pems.server_configuration(),
            renewed,  # type: ignore[arg-type]  # its None, for no change, is missing in the stubs
            require_client_authentication=True,
        )


class RenewedFiles:
    """The contents of the TLS files; newer ones replace them only if key and certificate match."""

    def __init__(self, tls: Tls) -> None:
        """Read the files for the first time. OSError: one cannot be read."""
        self._paths = (tls.certificate, tls.key, tls.authority)
        self._versions = self._stat()
        self.pems = self._read()

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether `pems` are new. Any thread may call it.

        Files that do not match are logged, and the former contents stay in use.
        """
        try:
            versions = self._stat()
            if versions == self._versions:
                return False
            self._versions = versions
            pems = self._read()
            pems.check()
        except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
            logger.error("the new certificate for calls cannot be used; the old one stays in use", error=str(error))
            return False
        is_new = pems != self.pems
        self.pems = pems
        return is_new

    def _stat(self) -> list[tuple[int, int, int]]:
        stats = [path.stat() for path in self._paths]
        return [(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats]

    def _read(self) -> Pems:
        return Pems(*(path.read_bytes() for path in self._paths))
