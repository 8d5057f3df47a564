"""`carillon keys`: the files with the keys that single roles need, and the rotation of all keys."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from carillon.commands.output import as_json, device_count, print_json, say, time_text
from carillon.commands.role_calls import call_all_instances, call_registry, call_role, command_origin
from carillon.commands.upgrade import announced
from carillon.installation.options import refuse_console
from carillon.startup import plain_errors, restrict_permissions
from protos.accounts.v1.service_pb2 import SealAnewRequest
from protos.accounts.v1.service_pb2_grpc import AccountsServiceStub
from protos.registry.v1.registry_pb2 import (
    CountDevicesNotBackRequest,
    DropFormerKeysRequest,
    NoteKeysCopiedRequest,
    RotateKeysRequest,
    SealRequest,
    SealResponse,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.master_key import (
    KeyPurpose,
    OptionalPurpose,
    create_master,
    derive,
    fingerprint_of,
    former_master_file,
    next_master_file,
    read_master,
    read_masters,
    replace_master,
    write_keys,
)
from services.domain.person_keys import KeyFiles, PersonKeySet
from services.domain.role_context import log_with_keys, open_log
from services.domain.sealing_switch import fill_topic, person_keys_directory, stored_person_keys
from services.domain.settings import Settings, addresses, environment, load
from services.domain.signing_keys import (
    SIGNERS,
    derive_signing_key,
    load_signing_keys,
    write_public_keys,
    write_signing_key,
)
from services.errors import CarillonError
from services.net.rpc.channel import Channel
from services.process.clock import SystemClock
from services.replica.status_board import Process

if TYPE_CHECKING:
    from protos.accounts.v1.service_pb2_grpc import AccountsServiceAsyncStub
    from protos.registry.v1.registry_pb2_grpc import RegistryServiceAsyncStub

Purpose = KeyPurpose | OptionalPurpose

_PURPOSES: Sequence[Purpose] = (KeyPurpose.DEVICES, KeyPurpose.SECRETS, OptionalPurpose.PERSONS)
_FINGERPRINT = 16
_FINGERPRINTS = _FINGERPRINT * len(_PURPOSES)
"""Bytes of the fingerprints of the keys that are derived from a master key."""

_KEY_TRIES = 8
_KEY_EVERY_MS = 2000

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def keys() -> None:
    """Write files with the keys that single roles need, so that the master key stays in one place; rotate the keys."""


@keys.command()
@click.option("--device-keys", type=_FILE, help="Key that issues and checks device keys: for the gateway and the edge.")
@click.option(
    "--secrets-key",
    type=_FILE,
    help="Key that seals and opens secrets: for registry, delivery, accounts, webhooks, console and edge.",
)
@click.option(
    "--persons-key", type=_FILE, help="Key that opens the keys of persons in Kafka: for every role, once they seal."
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
    persons_key: Path | None,
    registry_signing_key: Path | None,
    accounts_signing_key: Path | None,
    public_keys: Path | None,
    create: bool,
) -> None:
    """Derive keys from the master key (CARILLON_MASTER_KEY_FILE) and write each to a file of mode 600.

    Neither key reveals the other or the master key. Roles read them from CARILLON_DEVICE_KEYS_FILE and
    CARILLON_SECRETS_KEY_FILE, all roles that of the keys of persons from CARILLON_PERSONS_KEY_FILE, the registry and
    accounts each its own from CARILLON_SIGNING_KEY_FILE, and all roles the
    public keys from CARILLON_PUBLIC_KEYS_FILE. The keys of an installation do not change unless the master key does, so
    repeating the command changes nothing; of other public keys in the file the former one of each role stays valid.

    While the keys rotate the files hold both keys of a purpose, and the public keys of both master keys. A signing key
    is the present one until the rotation has ended.
    """
    restrict_permissions()
    files: Mapping[KeyPurpose | OptionalPurpose, Path | None] = {
        KeyPurpose.DEVICES: device_keys,
        KeyPurpose.SECRETS: secrets_key,
        OptionalPurpose.PERSONS: persons_key,
    }
    signing = {"registry": registry_signing_key, "accounts": accounts_signing_key}
    options = {
        "--device-keys": device_keys,
        "--secrets-key": secrets_key,
        "--persons-key": persons_key,
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
        masters = read_masters(settings.key_file)
        if create:
            say(f"The master key is in {settings.key_file}. Keep it: no other key opens what it has sealed.")
        for purpose, file in files.items():
            if file is not None:
                write_keys(file, [derive(master, purpose) for master in masters], purpose)
                both = "present and the next " if len(masters) > 1 else ""
                say(f"The {both}key of {purpose.value} is in {file}.")
        for role, file in signing.items():
            if file is not None:
                write_signing_key(file, derive_signing_key(masters[0], role), role)
                say(f"The signing key of the role {role} is in {file}.")
        if public_keys is not None:
            for master in masters:
                write_public_keys(
                    public_keys, {role: derive_signing_key(master, role).public_key() for role in SIGNERS}
                )
            say(f"The public keys are in {public_keys}.")


@keys.command()
@as_json
def prepare(as_json: bool) -> None:
    """Make the next master key, beside the present one: the first step of a rotation.

    Nothing uses it before `carillon keys rotate`. With `carillon up` that command does this one too. In a cluster write
    the files of the roles anew with `carillon keys export`, and give each process its file, which then has both keys.
    Repeating the command changes nothing.
    """
    restrict_permissions()
    with plain_errors():
        settings = load(Settings, environment())
        file = _prepared(settings)
        to = b"".join(_fingerprints(read_master(file)).values()).hex()
    if as_json:
        print_json({"file": str(file), "to": to})
        return
    say(
        f"The next master key is in {file}. Keep a copy of it where the present one has its copy.",
        "With roles in processes of their own: write their files anew with `carillon keys export`, give each process"
        " its file, and then run",
        f"  carillon keys rotate --to {to}",
    )


@keys.command()
@click.option("--to", metavar="FINGERPRINTS", help="The next keys, as `carillon keys prepare` names them: no secret.")
@click.option("--finish", is_flag=True, help="End the rotation: accept the former keys no more.")
@click.option(
    "--yes",
    is_flag=True,
    help="Also if a process lacks a next key; with --finish: also if devices have not come back since the rotation.",
)
@as_json
def rotate(to: str | None, finish: bool, yes: bool, as_json: bool) -> None:
    """Issue and seal with the next master key, and seal anew what the former one has sealed.

    All processes do so at once, without a restart. They accept device keys of the former key until --finish; connected
    devices come again within minutes for one of the new key, and others when they next come. Repeat the command after
    an interruption.

    In a cluster it first waits until each process finds the next keys in its files, and refuses, without --yes, if one
    does not. A process without them would end, and start only with them.

    --finish ends that. It refuses while something is sealed with the former key, and without --yes also while devices
    have not come back: these then begin anew, as after a revocation.
    """
    restrict_permissions()
    refuse_console("this command", "works on the machine alone")
    with plain_errors():
        env = environment()
        settings = load(Settings, env)
        is_one_process = not addresses("registry", env)
        if finish:
            if to:
                raise click.UsageError("--finish ends the rotation that was begun, and takes no --to")
            _finish(settings, is_one_process=is_one_process, yes=yes, as_json=as_json)
        else:
            following = _next_keys(settings, to, makes=is_one_process)
            if not is_one_process and not yes:
                _wait_for_next_keys(settings, following)
            _rotate(settings, following, as_json=as_json)


@keys.command()
def adopt() -> None:
    """Put the next master key in the place of the present one, after `carillon keys rotate --finish` elsewhere.

    On the machine that has the master key of a cluster. The present one is kept as the former one, for old backups.
    Repeating the command changes nothing.
    """
    restrict_permissions()
    with plain_errors():
        settings = load(Settings, environment())
        replace_master(settings.key_file)
    say(f"The present master key is in {settings.key_file}.")
    _say_former(settings)


@keys.command()
@as_json
def seal(as_json: bool) -> None:
    """Seal personal values in the log from now on, with keys of which one can be destroyed for a person.

    Tokens, aliases, addresses, what devices report, tags, and the texts of pushes to named devices are then in the log,
    its archive and its backups only for who has the keys too.

    There is no way back, and none to an older release. So the command refuses while a process of an older one runs, or
    one that has not the key for it: see docs/operators/keys.md. What is in the log already stays as it is. Repeating
    the command changes nothing.
    """
    restrict_permissions()
    refuse_console("this command", "works on the machine alone")
    with plain_errors():
        settings = load(Settings, environment())
        answer = _call_seal(only_keys=True)
        if not answer.already_sealed:
            if settings.kafka_bootstrap is not None:
                _wait_for_keys(settings)
            answer = _call_seal()
    if as_json:
        print_json(
            {
                "since_ms": answer.since_ms,
                "already_sealed": answer.already_sealed,
                "copied_ms": answer.copied_ms or None,
            }
        )
        return
    say(
        f"Personal values are sealed in the log since {time_text(answer.since_ms)}.",
        "There is no way back, and none to an older release.",
    )
    if not answer.copied_ms:
        say("Now copy the keys, without which they are lost: carillon keys backup FILE")


@keys.command()
@click.argument("file", type=_FILE)
@as_json
def backup(file: Path, as_json: bool) -> None:
    """Copy the keys of persons to FILE, a new one, so that a lost disk does not lose what they have sealed.

    One copy suffices: it opens what is sealed later, too. Keep it as you keep the master key, apart from the backups of
    the log: `carillon backup` has no keys. A copy still opens what is about a person who is erased later, so replace it
    by a new one after erasures, and destroy the old one.
    """
    restrict_permissions()
    refuse_console("this command", "works on the machine alone")
    with plain_errors():
        settings = load(Settings, environment())
        if file.exists():
            raise CarillonError(f"{file} exists: name a new file")
        held = uvloop.run(_held_keys(settings))
        try:
            held.write_copy(file)
        except OSError as error:
            raise CarillonError(f"{file} cannot be written: {error.strerror}") from None
        call_registry(lambda registry: registry.NoteKeysCopied(NoteKeysCopiedRequest(origin=command_origin())))
    if as_json:
        print_json({"file": str(file)})
    else:
        say(f"The keys of persons are in {file}. Keep it apart from the backups of the log.")


@keys.command()
@click.argument("file", type=_FILE)
@as_json
def restore(file: Path, as_json: bool) -> None:
    """Put the keys of persons from a copy in place, while the service does not run.

    They are files in the data directory (CARILLON_DATA_DIR); with Kafka records of the topic keys, for which the
    command needs the master key. Keys that are there already are not replaced.
    """
    restrict_permissions()
    refuse_console("this command", "works on the machine alone")
    with plain_errors():
        settings = load(Settings, environment())
        held = PersonKeySet.read_copy(file)
        directory = person_keys_directory(settings)
        if settings.kafka_bootstrap is not None:
            uvloop.run(_fill_topic(settings, held))
        elif directory.exists():
            raise CarillonError(f"{directory} is there already")
        else:
            KeyFiles.fill(directory, held)
    if as_json:
        print_json({"file": str(file)})
    else:
        say("The keys of persons are in place.")


def _call_seal(*, only_keys: bool = False) -> SealResponse:
    request = SealRequest(only_keys=only_keys, origin=command_origin())
    return call_registry(lambda registry: registry.Seal(request))


def _wait_for_keys(settings: Settings) -> None:
    """Wait until each process has read the keys. CarillonError: one does not, or is of an older release."""
    if without := _without_keys(settings, lambda process: process.status.has_person_keys):
        raise CarillonError(
            f"nothing is sealed, because these processes would read names for tokens: {without}. They are of an older"
            " release, or have not CARILLON_PERSONS_KEY_FILE: mend that, then repeat the command"
        )


def _wait_for_next_keys(settings: Settings, following: Mapping[Purpose, bytes]) -> None:
    """Wait until each process that announces itself has each next key that it needs. CarillonError: one has not."""
    if settings.kafka_bootstrap is None:
        raise CarillonError(
            "set CARILLON_KAFKA_BOOTSTRAP, as the log says whether each process has the next keys, or add --yes"
        )
    clock = SystemClock()
    if without := _without_keys(settings, lambda process: has_next_keys(process, following, clock.now_ms())):
        raise CarillonError(
            f"nothing is rotated, because these processes lack a next key: {without}. Give each its file, as `carillon"
            " keys export` writes it now; one of an older release says nothing of its keys. Then repeat the command, or"
            " add --yes: a process without its next key ends, and starts only with it"
        )


def has_next_keys(process: Process, following: Mapping[Purpose, bytes], now_ms: int) -> bool:
    """Return whether the process has each next key that it needs, or is silent: it reads its files when it starts."""
    held = process.status.held_keys
    of_purposes = zip(_PURPOSES, (held.device_keys, held.secrets, held.persons), strict=True)
    has_all = all(following[purpose] in keys for purpose, keys in of_purposes if keys)
    return process.is_silent(now_ms) or (process.status.HasField("held_keys") and has_all)


def _without_keys(settings: Settings, has_keys: Callable[[Process], bool]) -> str:
    """Wait some time until each process has the keys; name those that have not, with nothing if there is none."""
    clock = SystemClock()
    for tries in range(_KEY_TRIES):
        processes = uvloop.run(announced(settings, clock))
        without = [each for each in processes if not has_keys(each)]
        if processes and not without:
            return ""
        if tries < _KEY_TRIES - 1:
            uvloop.run(clock.sleep_until(clock.now_ms() + _KEY_EVERY_MS))
    named = (
        f"{', '.join(role.role for role in each.status.roles)} on {each.status.host}, version {each.status.version}"
        for each in without
    )
    return "; ".join(named) or "none was heard of"


async def _held_keys(settings: Settings) -> PersonKeySet:
    """Return the keys of persons. CarillonError: there are none, or they cannot be opened here."""
    log = await open_log(settings, read_only=True) if settings.kafka_bootstrap else None
    try:
        store = await stored_person_keys(settings, log)
        if store is None:
            raise CarillonError(
                "there are no keys of persons here: `carillon keys seal` makes them; with Kafka this command needs the"
                " master key, or CARILLON_PERSONS_KEY_FILE"
            )
        return PersonKeySet.held(store)
    finally:
        if log is not None:
            await log.close()


async def _fill_topic(settings: Settings, held: PersonKeySet) -> None:
    opened = await open_log(settings)
    try:
        log = log_with_keys(settings, load_signing_keys(settings, "registry", reads_master=True), opened)
        await fill_topic(settings, log, held)
    finally:
        await opened.close()


def _rotate(settings: Settings, following: Mapping[Purpose, bytes], *, as_json: bool) -> None:
    request = RotateKeysRequest(
        device_keys_fingerprint=following[KeyPurpose.DEVICES],
        secrets_fingerprint=following[KeyPurpose.SECRETS],
        persons_fingerprint=following[OptionalPurpose.PERSONS],
        origin=command_origin(),
    )
    answer = call_registry(lambda registry: registry.RotateKeys(request))
    users = _seal_accounts_anew()
    if answer.already_dropped:
        _replace_master(settings, following[KeyPurpose.SECRETS])
    if as_json:
        print_json(
            {
                "switched_ms": answer.switched_ms,
                "already_switched": answer.already_switched,
                "finished": answer.already_dropped,
                "apps_sealed": answer.apps_sealed,
                "users_sealed": users,
            }
        )
    elif answer.already_dropped:
        say("This rotation has ended: the former keys are not accepted any more.")
    else:
        say(
            f"The new keys are in force since {time_text(answer.switched_ms)}. The former ones are still accepted.",
            f"Sealed anew: {answer.apps_sealed} apps, {users} second factors.",
            "Once the devices have come back: carillon keys rotate --finish",
        )


def _finish(settings: Settings, *, is_one_process: bool, yes: bool, as_json: bool) -> None:
    users = _seal_accounts_anew()
    not_back = call_all_instances("registry", _count_not_back)
    refuses = bool(not_back) and not yes
    already = False
    if not refuses:
        request = DropFormerKeysRequest(at_once=is_one_process, origin=command_origin())
        answer = call_registry(lambda registry: registry.DropFormerKeys(request))
        already = answer.already_dropped
        _replace_master(settings, answer.secrets_fingerprint)
    if as_json:
        found: Mapping[str, int | bool] = {
            "finished": not refuses,
            "already_finished": already,
            "devices_not_back": not_back,
            "users_sealed": users,
        }
        print_json(found)
    if refuses:
        raise click.ClickException(
            f"{device_count(not_back)} of those registered showed no life since the keys were rotated, and would have"
            " to begin anew: wait for them, or add --yes"
        )
    if as_json:
        return
    say("No rotation was under way." if already else "The former keys are not accepted any more.")
    if not already and is_one_process:
        say("Restart `carillon up`: it signs its records with the new key from then on.")
    elif not already:
        say(
            "Run `carillon keys adopt` and `carillon keys export` where the master key is, and give each process its"
            " file."
        )
    _say_former(settings)


def _seal_accounts_anew() -> int:
    async def call(channel: Channel) -> int:
        accounts: AccountsServiceAsyncStub = AccountsServiceStub(channel)
        return (await accounts.SealAnew(SealAnewRequest(origin=command_origin()))).users_sealed

    return call_role("accounts", call)


async def _count_not_back(channels: Sequence[Channel]) -> int:
    count = 0
    for channel in channels:
        registry: RegistryServiceAsyncStub = RegistryServiceStub(channel)
        count += (await registry.CountDevicesNotBack(CountDevicesNotBackRequest())).devices
    return count


def _prepared(settings: Settings) -> Path:
    """Return the file of the next master key, made if there is none. CarillonError: there is no present master key."""
    if not settings.key_file.exists():
        raise CarillonError(
            f"no master key is at {settings.key_file}: run this where it is, or set CARILLON_MASTER_KEY_FILE"
        )
    read_master(settings.key_file)
    create_master(file := next_master_file(settings.key_file))
    return file


def _next_keys(settings: Settings, to: str | None, *, makes: bool) -> Mapping[Purpose, bytes]:
    """Return by purpose the fingerprints of the keys that come into force: those named, or of the next master key here.

    `makes`: without a next master key one is made, because all processes find it here.
    """
    if to is not None:
        try:
            given = bytes.fromhex(to)
        except ValueError:
            given = b""
        if len(given) != _FINGERPRINTS:
            raise click.UsageError(f"--to must be the {_FINGERPRINTS * 2} digits that `carillon keys prepare` prints")
        return {at: given[place * _FINGERPRINT :][:_FINGERPRINT] for place, at in enumerate(_PURPOSES)}
    file = next_master_file(settings.key_file)
    if makes:
        file = _prepared(settings)
    elif not file.exists():
        raise CarillonError(
            f"no next master key is at {file}: run `carillon keys prepare` where the master key is, give every process"
            " its file of both keys, and name the keys with --to"
        )
    return _fingerprints(read_master(file))


def _fingerprints(master: bytes) -> Mapping[Purpose, bytes]:
    return {purpose: fingerprint_of(derive(master, purpose)) for purpose in _PURPOSES}


def _replace_master(settings: Settings, in_force: bytes) -> None:
    """Make the next master key the present one, if it is on this machine and has the fingerprint in force."""
    file = next_master_file(settings.key_file)
    if file.exists() and fingerprint_of(derive(read_master(file), KeyPurpose.SECRETS)) == in_force:
        replace_master(settings.key_file)


def _say_former(settings: Settings) -> None:
    if (former := former_master_file(settings.key_file)).exists():
        say(
            f"The former master key is in {former}. Only backups from before the rotation need it: remove it when you"
            " keep none."
        )
