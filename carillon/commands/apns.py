"""`carillon app set --apns-...`: the key that signs an iOS app's pushes to Apple."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    App,
)
from protos.registry.v1.registry_pb2 import ApnsKeyChange

ENVIRONMENTS = {
    "production": APNS_ENVIRONMENT_PRODUCTION,
    "sandbox": APNS_ENVIRONMENT_SANDBOX,
    "both": APNS_ENVIRONMENT_BOTH,
}
_NAMES = {number: name for name, number in ENVIRONMENTS.items()}
_NONE = "none"
_MOST_BYTES = 16 * 1024

Command = TypeVar("Command", bound=Callable[..., Any])


def apns_options(command: Command) -> Command:
    """The options whose values `apns_change` takes."""
    for option in reversed(
        (
            click.option("--apns-key", metavar="FILE", help="iOS: the .p8 file of Apple's key; `none` forgets it."),
            click.option("--apns-key-id", metavar="ID", help="iOS: that key's id, 10 letters and digits."),
            click.option("--apns-team", metavar="ID", help="iOS: Apple's id of the team, 10 letters and digits."),
            click.option("--apns-topic", metavar="BUNDLE", help="iOS: the bundle id. At first the app's package."),
            click.option("--apns-environment", type=click.Choice(list(ENVIRONMENTS)), help="iOS: at first production."),
        )
    ):
        command = option(command)
    return command


def apns_change(
    apns_key: str | None,
    apns_key_id: str | None,
    apns_team: str | None,
    apns_topic: str | None,
    apns_environment: str | None,
) -> ApnsKeyChange | None:
    """None: no option was given."""
    others = (apns_key_id, apns_team, apns_topic, apns_environment)
    if apns_key is None and others == (None,) * len(others):
        return None
    if apns_key == _NONE:
        if any(other is not None for other in others):
            raise click.UsageError("--apns-key none stands alone: it forgets all that is known of the key")
        return ApnsKeyChange(remove=True)
    return ApnsKeyChange(
        pem=None if apns_key is None else _read(Path(apns_key)),
        key_id=apns_key_id,
        team_id=apns_team,
        topic=apns_topic,
        environment=None if apns_environment is None else ENVIRONMENTS[apns_environment],
    )


def apns_record(known: App) -> dict[str, Any] | None:
    """What is known of the app's key, without the key; None where it has none."""
    if not known.HasField("apns"):
        return None
    apns = known.apns
    return {
        "key_id": apns.key_id,
        "team_id": apns.team_id,
        "topic": apns.topic,
        "environment": _NAMES.get(apns.environment, "unknown"),
    }


def apns_text(known: App) -> str:
    """The same in words."""
    apns = apns_record(known)
    if apns is None:
        return "no key"
    return "key {key_id} of team {team_id} for {topic}, {environment}".format(**apns)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("ascii")
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--apns-key") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path} is no text in PEM form", param_hint="--apns-key") from None
