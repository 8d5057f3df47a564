"""`carillon keys`: the files with the keys that single roles need."""

from pathlib import Path

import click

from carillon.commands.output import say
from carillon.startup import plain_errors, restrict_permissions
from services.domain.master_key import KeyPurpose, create_master, derive, read_master, write_key
from services.domain.signing_keys import SIGNERS, derive_signing_key, write_public_keys, write_signing_key
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
@click.option("--registry-signing-key", type=_FILE, help="Key with which the registry signs topic apps: for it alone.")
@click.option(
    "--accounts-signing-key", type=_FILE, help="Key with which accounts signs what it writes: for that role alone."
)
@click.option("--public-keys", type=_FILE, help="Public keys that check these signatures: for every role, no secret.")
@click.option("--create", is_flag=True, help="Create the master key if there is none.")
def export(
    device_keys: Path | None,
    secrets_key: Path | None,
    registry_signing_key: Path | None,
    accounts_signing_key: Path | None,
    public_keys: Path | None,
    create: bool,
) -> None:
    """Derive keys from the master key (CARILLON_MASTER_KEY_FILE) and write each to a file of mode 600.

    Neither key reveals the other or the master key. Roles read them from CARILLON_DEVICE_KEYS_FILE and
    CARILLON_SECRETS_KEY_FILE, the registry and accounts each its own from CARILLON_SIGNING_KEY_FILE, and all roles the
    public keys from CARILLON_PUBLIC_KEYS_FILE. The keys of an installation do not change unless the master key does, so
    repeating the command changes nothing; of other public keys in the file the former one of each role stays valid.
    """
    restrict_permissions()
    files = {KeyPurpose.DEVICES: device_keys, KeyPurpose.SECRETS: secrets_key}
    signing = {"registry": registry_signing_key, "accounts": accounts_signing_key}
    options = {
        "--device-keys": device_keys,
        "--secrets-key": secrets_key,
        **{f"--{role}-signing-key": file for role, file in signing.items()},
        "--public-keys": public_keys,
    }
    if not any(options.values()):
        raise click.UsageError(f"name at least one file: {', '.join(options)}")
    named: dict[Path, str] = {}
    for option, path in options.items():
        if path and (other := named.setdefault(path.resolve(), option)) != option:
            raise click.UsageError(f"{other} and {option} name the same file; each key needs its own")
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
        for role, file in signing.items():
            if file is not None:
                write_signing_key(file, derive_signing_key(master, role), role)
                say(f"The signing key of the role {role} is in {file}.")
        if public_keys is not None:
            write_public_keys(public_keys, {role: derive_signing_key(master, role).public_key() for role in SIGNERS})
            say(f"The public keys are in {public_keys}.")
