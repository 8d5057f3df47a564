"""`carillon certs`: the certificates of calls between roles."""

import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path

import click

from carillon.commands.certs.files import CertificateOutcome, CertificateTerms, WantedCertificate, operator, update
from carillon.commands.output import say
from carillon.environment import environment
from carillon.roles import ROLES
from carillon.startup import plain_errors, restrict_permissions
from services.domain.role_addresses import DEFAULT_ADDRESSES, role_addresses

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
