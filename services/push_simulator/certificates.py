"""Self-signed TLS certificates for a local server."""

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """A self-signed certificate and its private key, both as PEM text."""

    certificate_pem: str
    key_pem: str = field(repr=False)

    @classmethod
    def make(cls, host: str) -> "SelfSigned":
        """Return one for localhost and an IP address, valid until 2100. ValueError: `host` is no IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Carillon, on this machine only")])
        hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOT_BEFORE)
            .not_valid_after(_NOT_AFTER)
            .add_extension(hosts, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), pem(key))

    def server_context(self, protocols: Sequence[str]) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or newer that offers these ALPN protocols."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(list(protocols))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.key_pem + self.certificate_pem)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return a private key as PEM text (PKCS #8)."""
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
