"""`carillon acls`: the users of the Kafka log, with exactly the rights that each role needs."""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop

from carillon.commands.output import say
from carillon.environment import environment
from carillon.startup import plain_errors, restrict_permissions
from services.domain.settings import PREFIX, Settings, load
from services.domain.topics import ROLE_USERS, TOPICS, UP, rights
from services.errors import CarillonError, InputError, UnavailableError
from services.log.kafka.client import ClientSettings, client_settings
from services.log.kafka.log import KafkaLog
from services.log.kafka.topics import Tools
from services.log.kafka.users import Acl, AppliedAcls, KafkaUsers, acl_commands, user_command
from services.process.durable import written_beside

PASSWORD_FILE = "kafka.password"  # noqa: S105 - the name of a file
_PREFIXES = {"scram": "carillon-", "tls": "CN="}
_TIMEOUT_S = 60


@click.command()
@click.option(
    "--users",
    type=click.Choice(list(_PREFIXES)),
    default="scram",
    show_default=True,
    help="How users log in: with a password, or with the certificate of `carillon certs`.",
)
@click.option("--prefix", help="What the users' names begin with; default carillon- for scram, CN= for tls.")
@click.option("--up", "all_in_one", is_flag=True, help="One user, for `carillon up`, in place of those of the roles.")
@click.option(
    "--passwords",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help=f"FOLDER/USER/{PASSWORD_FILE} has the password of each user; those that are missing are made.",
)
@click.option("--apply", "applies", is_flag=True, help="Make topics, users and rights, instead of printing commands.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def acls(
    users: str, prefix: str | None, all_in_one: bool, passwords: Path | None, applies: bool, as_json: bool
) -> None:
    """Print the commands that make the topics of the log in Kafka, a user for each role, and the rights of each user.

    The users are the roles, `operator` (carillon status, and replays for inspection) and `archive` (carillon archive).
    Each may read and write the topics that its role reads and writes, and nothing else. The commands are those of
    Kafka's own tools, for the cluster at CARILLON_KAFKA_BOOTSTRAP, and may be repeated.

    With --apply the same is done at once, as the user that the settings CARILLON_KAFKA_... name, who must be an
    administrator of the cluster; other rights that these users have are removed.
    """
    restrict_permissions()
    if passwords is not None and users != "scram":
        raise click.UsageError("--passwords goes with --users scram; certificates have none")
    with plain_errors():
        settings = load(Settings, environment())
        if settings.kafka_bootstrap is None:
            raise InputError(f"set {PREFIX}KAFKA_BOOTSTRAP to the addresses of the Kafka cluster")
        names = {name: (_PREFIXES[users] if prefix is None else prefix) + name for name in _users(all_in_one)}
        files = {names[user]: _password_file(passwords, user) for user in names} if passwords else {}
        wanted = [
            Acl(f"User:{name}", right.value, topic)
            for user, name in names.items()
            for topic, of_topic in rights(user).items()
            for right in sorted(of_topic, key=lambda right: right.value)
        ]
        client = client_settings(settings.kafka_bootstrap, settings.kafka_security(), _TIMEOUT_S)
        if applies:
            applied = uvloop.run(_apply(settings, client, files, wanted))
            answer = {"topics": len(TOPICS), "users": list(files), **applied._asdict()}
            say(*([json.dumps(answer)] if as_json else _text(len(files), applied).split("\n")))
            return
        commands = _commands(settings, client, files, wanted)
    if as_json:
        say(json.dumps({"users": names, "acls": [acl._asdict() for acl in wanted], "commands": commands}))
    else:
        say(*commands)


def _users(all_in_one: bool) -> Sequence[str]:
    return (UP,) if all_in_one else ROLE_USERS


def _commands(
    settings: Settings, client: ClientSettings, files: dict[str, Path], wanted: Sequence[Acl]
) -> Sequence[str]:
    tools = Tools(client)
    return [
        *(tools.create(topic, settings.partitions, settings.kafka_replication) for topic in TOPICS.values()),
        *(user_command(tools, user, file) for user, file in files.items()),
        *acl_commands(tools, wanted),
    ]


async def _apply(
    settings: Settings, client: ClientSettings, files: dict[str, Path], wanted: Sequence[Acl]
) -> AppliedAcls:
    assert settings.kafka_bootstrap is not None
    log = await KafkaLog.connect(
        settings.kafka_bootstrap,
        TOPICS,
        settings.partitions,
        settings.kafka_replication,
        security=settings.kafka_security(),
        read_only=True,
    )
    await log.close()
    cluster = KafkaUsers(client)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if files:
                await cluster.set_passwords(files)
            return await cluster.set_acls(wanted)
    except TimeoutError:
        raise UnavailableError(f"Kafka has not set all rights within {_TIMEOUT_S} s: run the command again") from None


def _text(users: int, applied: AppliedAcls) -> str:
    return (
        f"The {len(TOPICS)} topics are there, {users} users have their passwords, {applied.added} rights were added"
        f" and {applied.removed} removed."
    )


def _password_file(folder: Path, user: str) -> Path:
    """Return the file with the user's password, which is made if there is none. CarillonError: it cannot be."""
    file = folder / user / PASSWORD_FILE
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            content = f"{secrets.token_hex(24)}\n".encode()
            with written_beside(file, content) as fresh, contextlib.suppress(FileExistsError):
                os.link(fresh, file)
    except OSError as error:
        raise CarillonError(f"{error.filename} cannot be written: {error.strerror}") from None
    return file
