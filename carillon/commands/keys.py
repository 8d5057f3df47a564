"""`carillon keys`: the files with the keys that single roles need."""

from pathlib import Path

import click

from carillon.commands.output import say
from carillon.startup import plain_errors, restrict_permissions
from services.domain.master_key import KeyPurpose, create_master, derive, read_master, write_key
from services.runtime.errors import CarillonError
from services.runtime.process.settings import Settings, environment, load

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def keys() -> None:
    """Write files with the keys that single roles need, so that the master key stays in one place."""


@keys.command()
@click.option("--device-keys", type=_FILE, help="Key that issues and checks device keys: for the gateway and the edge.")
@click.option(
    "--secrets-key",
    type=_FILE,
    help="Key that seals and opens secrets: for registry, delivery, accounts, console and edge.",
)
@click.option("--create", is_flag=True, help="Create the master key if there is none.")
def export(device_keys: Path | None, secrets_key: Path | None, create: bool) -> None:
    """Derive keys from the master key (CARILLON_MASTER_KEY_FILE) and write each to a file of mode 600.

    Neither key reveals the other or the master key. Roles read them from CARILLON_DEVICE_KEYS_FILE and
    CARILLON_SECRETS_KEY_FILE. The keys of an installation never change, so repeating the command changes nothing.
    """
    restrict_permissions()
    files = {KeyPurpose.DEVICES: device_keys, KeyPurpose.SECRETS: secrets_key}
    if not any(files.values()):
        raise click.UsageError("name at least one file: --device-keys or --secrets-key")
    if device_keys and secrets_key and device_keys.resolve() == secrets_key.resolve():
        raise click.UsageError("--device-keys and --secrets-key name the same file; each key needs its own")
    with plain_errors():
        settings = load(Settings, environment())
        if create:
            create_master(settings.key_file)
        elif not settings.key_file.exists():
            raise CarillonError(
                f"no master key is at {settings.key_file}; set CARILLON_MASTER_KEY_FILE, or use --create to make the"
                " first one"
            )
        master = read_master(settings.key_file)
        if create:
            say(f"The master key is in {settings.key_file}. Keep it: no other key opens what it has sealed.")
        for purpose, file in files.items():
            if file is not None:
                write_key(file, derive(master, purpose), purpose)
                say(f"The key of {purpose.value} is in {file}.")
