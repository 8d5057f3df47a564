"""Settings of connections to Kafka: transport security and authentication."""

import codecs
import ssl
from dataclasses import dataclass, field
from pathlib import Path

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Login:
    """SASL credentials; `mechanism` is one of MECHANISMS."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """How connections are secured: one of PROTOCOLS, `tls` if it ends in SSL, `login` if it begins with SASL."""

    protocol: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None
    login: Login | None = None


PLAINTEXT = KafkaSecurity()


def tls_context(authority: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificate authority in the file, or without one the host's authorities.

    OSError: the file holds no certificate.
    """
    return ssl.create_default_context(cafile=authority)


def add_client_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Present this certificate to brokers. OSError: certificate and key do not match, or the key is encrypted."""
    context.load_cert_chain(certificate, key, password="")


def read_password(file: Path) -> str:
    """Return the one line of the file. ValueError: none or several, or no UTF-8. OSError: it is unreadable."""
    lines = file.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ValueError("it must hold the password and nothing else")
    try:
        return lines[0].decode()
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
