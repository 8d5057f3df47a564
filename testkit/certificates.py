"""A certificate authority for tests, and the certificates that it signs."""

import datetime
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from services.net.rpc import authority
from services.net.rpc.tls import Tls

_DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority that signs certificates for 127.0.0.1 and writes them, with keys, into a directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        now = datetime.datetime.now(datetime.UTC)
        self._validity = authority.Validity(now - _DAY, now + _DAY)
        self._authority = authority.Authority.create(f"authority {directory.name}", authority.new_key(), self._validity)
        self.file = directory / "authority.pem"
        self.file.write_bytes(self._authority.certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *roles: str) -> Tls:
        """Issue a certificate with this common name for these roles; without roles, for the role of that name."""
        key = authority.new_key()
        certificate = self._authority.issue(name, roles or (name,), ["127.0.0.1"], key.public_key(), self._validity)
        file, key_file = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        file.write_bytes(certificate.public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return Tls(file, key_file, self.file)
