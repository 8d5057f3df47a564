"""How a Kafka cluster is reached: in the clear or by TLS, and as whom."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Login:
    """A user for SASL; `mechanism` is one of MECHANISMS."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """One of PROTOCOLS; `tls` with those that end in SSL, `login` with those that begin with SASL."""

    protocol: str = "PLAINTEXT"
    tls: ssl.SSLContext | None = None
    login: Login | None = None


IN_THE_CLEAR = KafkaSecurity()


def trust(authority: Path | None) -> ssl.SSLContext:
    """TLS with brokers whose certificates the authority in the file vouches for, or one that the host trusts.

    OSError: there is no such certificate in the file.
    """
    return ssl.create_default_context(cafile=authority)


def show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Show brokers this certificate. OSError: the files do not fit together, or the key is encrypted."""
    context.load_cert_chain(certificate, key, password="")


def read_password(file: Path) -> str:
    """The one line in the file. ValueError: there is none, or more, or it is no text; OSError: it cannot be read."""
    lines = file.read_bytes().splitlines()
    if len(lines) != 1 or not lines[0]:
        raise ValueError("it must hold the password and nothing else")
    try:
        return lines[0].decode()
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
