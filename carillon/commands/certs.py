"""`carillon certs`: the certificates of calls between roles."""

import contextlib
import datetime
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509 import Certificate, load_pem_x509_certificate, load_pem_x509_certificates

from carillon.commands.output import say
from carillon.environment import environment
from carillon.roles import ROLES
from carillon.startup import plain_errors, restrict_permissions
from services.domain.role_context import DEFAULT_ADDRESSES, role_addresses
from services.errors import CarillonError
from services.net.rpc.authority import Authority, Key, Validity, canonical_host, hosts_of, new_key
from services.net.rpc.caller import OPERATOR
from services.process.durable import written_beside

# The folder of an installation's certificates: an authority, and a folder for each role and operator.

Action = Literal["issued", "renewed", "kept"]

AUTHORITY = "authority"
"""Name of the authority among the outcomes."""

AUTHORITY_DAYS = 3650
_CERTIFICATE, _KEY, _AUTHORITY_CERTIFICATE, _AUTHORITY_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
_CLOCKS_APART = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class WantedCertificate:
    """A certificate that the folder should have: its name there, its subject and role, and its hosts."""

    name: str
    who: str
    role: str
    hosts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CertificateTerms:
    """The validity of new certificates, and how long before their end they are renewed, in days."""

    days: int
    renew_days: int

    def validity(self, now: datetime.datetime, days: int) -> Validity:
        """Return the validity of a new certificate. It begins an hour earlier, for hosts whose clocks are behind."""
        return Validity(now - _CLOCKS_APART, now + datetime.timedelta(days=days))


@dataclass(frozen=True, slots=True)
class CertificateOutcome:
    """A certificate after the update, and what was done about it."""

    name: str
    action: Action
    file: Path
    expires: datetime.datetime
    hosts: Sequence[str]


def operator(name: str) -> WantedCertificate:
    """Return the certificate of an operator with this name, which audits show."""
    return WantedCertificate(f"{OPERATOR}-{name}", name, OPERATOR)


def update(
    folder: Path, wanted: Sequence[WantedCertificate], now: datetime.datetime, terms: CertificateTerms
) -> list[CertificateOutcome]:
    """Issue what is missing, and renew what expires soon or lacks a host. CarillonError: a file cannot be used.

    Private keys stay. A kill leaves files that fit together, and the next update goes on from there.
    """
    with _errors_of_files():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority, outcome = _authority(folder, now, terms)
        others = [
            operator(found.name.removeprefix(f"{OPERATOR}-"))
            for found in sorted(folder.glob(f"{OPERATOR}-*"))
            if (found / _CERTIFICATE).exists()
        ]
        every = {each.name: each for each in [*others, *wanted]}
        return [outcome, *(_certificate(folder / each.name, each, authority, now, terms) for each in every.values())]


def _authority(folder: Path, now: datetime.datetime, terms: CertificateTerms) -> tuple[Authority, CertificateOutcome]:
    file, key_file = folder / _AUTHORITY_CERTIFICATE, folder / _AUTHORITY_KEY
    key, certificate = _pair(key_file, file)
    action: Action = "kept"
    lasts = datetime.timedelta(days=terms.days + terms.renew_days)
    if certificate is None or certificate.not_valid_after_utc - now < lasts:
        action = "issued" if certificate is None else "renewed"
        name = f"Carillon authority {_fingerprint(key)}"
        certificate = Authority.create(name, key, terms.validity(now, AUTHORITY_DAYS)).certificate
        _replace(file, certificate.public_bytes(Encoding.PEM))
    return Authority(certificate, key), CertificateOutcome(AUTHORITY, action, file, certificate.not_valid_after_utc, [])


def _certificate(
    folder: Path, wanted: WantedCertificate, authority: Authority, now: datetime.datetime, terms: CertificateTerms
) -> CertificateOutcome:
    folder.mkdir(mode=0o700, exist_ok=True)
    file, key_file = folder / _CERTIFICATE, folder / _KEY
    key, certificate = _pair(key_file, file)
    action: Action = "kept"
    if certificate is not None and not authority.has_issued(certificate):
        raise CarillonError(f"{file} is of another authority: move {folder} away, and run this again for a new one")
    _update_authorities(folder / _AUTHORITY_CERTIFICATE, authority.certificate)
    hosts = {canonical_host(host) for host in wanted.hosts} | set(hosts_of(certificate) if certificate else ())
    if certificate is None or _expires_soon(certificate, now, terms) or hosts != set(hosts_of(certificate)):
        action = "issued" if certificate is None else "renewed"
        validity = terms.validity(now, terms.days)
        certificate = authority.issue(wanted.who, [wanted.role], sorted(hosts), key.public_key(), validity)
        _replace(file, certificate.public_bytes(Encoding.PEM))
    return CertificateOutcome(wanted.name, action, file, certificate.not_valid_after_utc, hosts_of(certificate))


def _expires_soon(certificate: Certificate, now: datetime.datetime, terms: CertificateTerms) -> bool:
    return certificate.not_valid_after_utc - now < datetime.timedelta(days=terms.renew_days)


def _update_authorities(file: Path, authority: Certificate) -> None:
    """Put the authority's certificate into a file of authorities in place of its former one; others in it stay."""
    found = load_pem_x509_certificates(file.read_bytes()) if file.exists() else []
    if authority not in found:
        every = [authority, *(other for other in found if other.subject != authority.subject)]
        _replace(file, b"".join(each.public_bytes(Encoding.PEM) for each in every))


def _pair(key_file: Path, file: Path) -> tuple[Key, Certificate | None]:
    """Return the private key, made if there is none, and the certificate in a file; None if there is no such file."""
    if not file.exists():
        return _key(key_file), None
    if not key_file.exists():
        raise CarillonError(f"{key_file} is missing, the key of {file}: put it there while this command runs")
    key = _key(key_file)
    try:
        certificate = load_pem_x509_certificate(file.read_bytes())
    except ValueError as error:
        raise CarillonError(f"{file} is no certificate: {error}; move it away, and run this again") from None
    if certificate.public_key() != key.public_key():
        raise CarillonError(f"{key_file} is not the key of {file}: put the right one there, or move both away")
    return key, certificate


def _key(file: Path) -> Key:
    """Return the private key in a file, made if there is none. Two processes that make it at once get the same."""
    if not file.exists():
        content = new_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with written_beside(file, content) as fresh, contextlib.suppress(FileExistsError):
            os.link(fresh, file)
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise CarillonError(f"{file} is no private key that can be used: {error}") from None
    if not isinstance(key, Key):
        raise CarillonError(f"{file} is not a key of an elliptic curve, as this command makes them: move it away")
    return key


def _replace(file: Path, content: bytes) -> None:
    with written_beside(file, content) as fresh:
        os.replace(fresh, file)


def _fingerprint(key: Key) -> str:
    return f"{key.public_key().public_numbers().x:064x}"[:8]


@contextlib.contextmanager
def _errors_of_files() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CarillonError(f"{error.filename} cannot be used: {error.strerror}") from None


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,47}")
_HOST = re.compile(r"[A-Za-z0-9*:._-]{1,253}")


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--operator", "operators", multiple=True, metavar="NAME", help="A person who runs commands; repeatable.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="ROLE=HOST",
    help="A further name or address of a role, such as that of a standby; repeatable.",
)
@click.option("--days", type=click.IntRange(1, 1000), default=365, show_default=True, help="How long they last.")
@click.option(
    "--renew-days",
    type=click.IntRange(0, 999),
    default=30,
    show_default=True,
    help="Renew certificates that end within this number of days.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def certs(
    folder: Path, operators: Sequence[str], hosts: Sequence[str], days: int, renew_days: int, as_json: bool
) -> None:
    """Make the certificates of the calls between roles in FOLDER, or renew those that end soon.

    FOLDER gets an authority (ca.crt, ca.key), and for each role a folder with what its processes need: tls.crt for
    CARILLON_TLS_CERT, tls.key for CARILLON_TLS_KEY, ca.crt for CARILLON_TLS_AUTHORITY. Operators get such a folder
    too, named operator-NAME.
    A certificate names the hosts in CARILLON_<ROLE>_ADDR. Only what is missing is made, and private keys are never
    replaced, so run this daily, and copy what it renewed; running processes notice new files. Keep ca.key away from
    the roles: whoever holds it can act as any of them.
    """
    restrict_permissions()
    if renew_days >= days:
        raise click.UsageError(f"--renew-days is {renew_days}, but must be below --days ({days})")
    for name in operators:
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"--operator is {name!r}; use at most 48 letters, digits and . _ @ -")
    with plain_errors():
        wanted = [*_of_roles(hosts), *map(operator, operators)]
        outcomes = update(folder, wanted, datetime.datetime.now(datetime.UTC), CertificateTerms(days, renew_days))
    for outcome in outcomes:
        say(_json(outcome) if as_json else _text(outcome))


def _of_roles(given: Sequence[str]) -> list[WantedCertificate]:
    """Return the wanted certificates of all roles, with the hosts of their addresses and those of the options."""
    env = environment()
    hosts: dict[str, set[str]] = {role: set() for role in ROLES}
    for role in DEFAULT_ADDRESSES:
        addresses = [address for address in role_addresses(role, env) if not address.startswith("unix:")]
        hosts[role] = {address.rpartition(":")[0].strip("[]") for address in addresses}
    for option in given:
        role, _, host = option.partition("=")
        if role not in hosts or not _HOST.fullmatch(host):
            raise click.UsageError(f"--host is {option!r}; use ROLE=HOST with one of the roles {', '.join(ROLES)}")
        hosts[role].add(host)
    return [WantedCertificate(role, role, role, frozenset(names)) for role, names in hosts.items()]


def _json(outcome: CertificateOutcome) -> str:
    return json.dumps(
        {
            "name": outcome.name,
            "action": outcome.action,
            "file": str(outcome.file),
            "expires": outcome.expires.isoformat(),
            "hosts": list(outcome.hosts),
        }
    )


def _text(outcome: CertificateOutcome) -> str:
    hosts = f" for {', '.join(outcome.hosts)}" if outcome.hosts else ""
    return f"{outcome.name}: {outcome.action}, until {outcome.expires:%Y-%m-%d}, {outcome.file}{hosts}"
