"""A certificate that vouches for itself, for a server on this machine, and keys like those that Apple makes."""

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

_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """PEM text of a certificate and its key."""

    certificate_pem: str
    key_pem: str = field(repr=False)

    @classmethod
    def make(cls, host: str) -> "SelfSigned":
        """For one IP address, and for localhost; it never expires."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Carillon, on this machine only")])
        places = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_FROM)
            .not_valid_after(_UNTIL)
            .add_extension(places, critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), _pem(key))

    def server_context(self, protocols: Sequence[str]) -> ssl.SSLContext:
        """TLS 1.2 or newer for a server that speaks one of the protocols (ALPN)."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(list(protocols))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self.key_pem + self.certificate_pem)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def new_key() -> str:
    """PEM text of a private key on the curve P-256, as Apple makes them for teams."""
    return _pem(ec.generate_private_key(ec.SECP256R1()))


def public_key(key_pem: str) -> str:
    """PEM text of the public half."""
    key = serialization.load_pem_private_key(key_pem.encode(), None)
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
