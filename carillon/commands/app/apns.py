"""`carillon app set --apns-...`: the APNs signing key of an iOS app."""

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
)
from protos.registry.v1.registry_pb2 import ApnsKeyChange

ENVIRONMENTS = {
    "production": APNS_ENVIRONMENT_PRODUCTION,
    "sandbox": APNS_ENVIRONMENT_SANDBOX,
    "both": APNS_ENVIRONMENT_BOTH,
}
_REMOVE = "none"
_MAX_FILE_BYTES = 16 * 1024

Command = TypeVar("Command", bound=Callable[..., Any])


def apns_options(command: Command) -> Command:
    """Decorate a command with the options whose values `apns_change` accepts."""
    environments = click.Choice(list(ENVIRONMENTS))
    options = (
        click.option("--apns-key", metavar="FILE", help="iOS: the .p8 file of the APNs key; `none` removes the key."),
        click.option("--apns-key-id", metavar="ID", help="iOS: the key's id, 10 letters and digits."),
        click.option("--apns-team", metavar="ID", help="iOS: the Apple team's id, 10 letters and digits."),
        click.option("--apns-topic", metavar="BUNDLE", help="iOS: the bundle id. Default: the app's package."),
        click.option("--apns-environment", type=environments, help="iOS: Apple's service. Default: production."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def apns_change(
    apns_key: str | None,
    apns_key_id: str | None,
    apns_team: str | None,
    apns_topic: str | None,
    apns_environment: str | None,
) -> ApnsKeyChange | None:
    """Build the change from the options; None if no option was given. UsageError: `none` with other options."""
    others = (apns_key_id, apns_team, apns_topic, apns_environment)
    if apns_key is None and others == (None,) * len(others):
        return None
    if apns_key == _REMOVE:
        if any(other is not None for other in others):
            raise click.UsageError("--apns-key none stands alone: it removes all of the key's settings")
        return ApnsKeyChange(remove=True)
    return ApnsKeyChange(
        pem=None if apns_key is None else _read(Path(apns_key)),
        key_id=apns_key_id,
        team_id=apns_team,
        topic=apns_topic,
        environment=None if apns_environment is None else ENVIRONMENTS[apns_environment],
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).removeprefix(codecs.BOM_UTF8).decode("ascii")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--apns-key") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is no text in PEM form", param_hint="--apns-key") from None
