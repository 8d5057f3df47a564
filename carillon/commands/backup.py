"""`carillon backup` and `carillon restore`: copies of the event log, from which every state can be rebuilt."""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import uvloop

from carillon.commands.output import say
from carillon.commands.role_calls import command_origin
from carillon.environment import environment
from carillon.startup import plain_errors, restrict_permissions
from protos.registry.v1.devices_pb2 import DeviceCommand, ReserveNumbers
from services.domain.apps import AppDirectory
from services.domain.command_writer import Command, CommandWriter
from services.domain.master_key import KeyPurpose, former_master_file, load_keys, next_master_file
from services.domain.person_keys import KeyFiles, KeyRing
from services.domain.role_context import log_with_keys, open_log
from services.domain.sealing_switch import person_keys_directory
from services.domain.settings import Settings, load
from services.domain.signing_keys import SigningKeys
from services.domain.topics import DEVICE_COMMANDS, TOPICS
from services.errors import ConflictError, InputError
from services.log.archive.directory import copy_archive
from services.log.point_in_time import time_ms, until_ready
from services.log.port import Log, Partition
from services.log.sqlite.file import copy_log
from services.log.sqlite.log import SqliteLog
from services.process import data_directory
from services.process.clock import SystemClock
from services.replica.peers import Peers

_LOG = Path("log") / "events.db"
_ARCHIVE = Path("log") / "archive"
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command()
@click.argument("directory", type=_DIRECTORY)
@_JSON
def backup(directory: Path, as_json: bool) -> None:
    """Copy the embedded event log and its archive to DIRECTORY, a new one, while the service runs.

    The copy has every record that was acknowledged before the command began. It holds no key: keep copies of the master
    key and of the keys of persons (`carillon keys backup`) elsewhere, once. A log in Kafka is backed up with its
    brokers' disks: see docs/operators/backup.md.
    """
    restrict_permissions()
    with plain_errors():
        settings = load(Settings, environment())
        if settings.kafka_bootstrap is not None:
            raise InputError("the event log is in Kafka: back up the disks of its brokers (docs/operators/backup.md)")
        source = settings.data / _LOG
        if not source.exists():
            raise InputError(f"there is no event log at {source}: set CARILLON_DATA_DIR")
        try:
            size = _write_backup(source, directory)
        except OSError as error:
            raise InputError(f"{directory} cannot be written: {error.strerror}") from None
    answer = {"directory": str(directory), "bytes": size}
    say(json.dumps(answer) if as_json else f"The event log, {size} bytes, is in {directory}, without any key.")


@click.command()
@click.argument("directory", type=_DIRECTORY, required=False)
@click.option(
    "--lost-devices",
    type=click.IntRange(0, 10_000_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Upper bound of the devices that registered in one app in the time that is lost.",
)
@_JSON
def restore(directory: Path | None, lost_devices: int, as_json: bool) -> None:
    """Put the event log of a backup in place, before the service is started on it.

    The data directory (CARILLON_DATA_DIR) must hold nothing but the master key, and the keys of persons that `carillon
    keys restore` puts there; the service rebuilds its states when it
    starts. If a restore is killed, run the same command again.

    Without DIRECTORY the log is the one that is there: that of Kafka, whose brokers were restored or have lost the end
    of the log, or that of a data directory that a snapshot of the machine was rolled back to.

    Devices that registered after the backup are unknown to the restored log, but hold valid keys. In each app the
    next --lost-devices device numbers are reserved, so that no new device gets one of theirs; these devices are
    registered anew, under their tokens, as soon as they connect.
    """
    restrict_permissions()
    with plain_errors():
        settings = load(Settings, environment())
        if directory is not None and settings.kafka_bootstrap is not None:
            raise InputError("name no DIRECTORY where CARILLON_KAFKA_BOOTSTRAP is set: restore its brokers first")
        if directory is not None:
            work = _restore(settings, directory, lost_devices)
        elif settings.kafka_bootstrap is not None:
            work = _reserve_in_kafka(settings, lost_devices)
        else:
            work = _reserve_in_place(settings, lost_devices)
        apps, newest_ms = uvloop.run(work)
    newest = datetime.fromtimestamp(newest_ms / 1000, UTC).astimezone(settings.zone()).isoformat(timespec="seconds")
    answer = {"newest_record": newest, "apps": apps}
    text = f"The event log is in place. Its newest record is of {newest}. Start the service."
    say(json.dumps(answer) if as_json else text)


def _write_backup(source: Path, directory: Path) -> int:
    """Copy the log into the directory, which appears once it is complete; return the size in bytes.

    Until then it has a hidden name; after a kill the next backup of the same name replaces that.
    """
    if directory.exists():
        raise InputError(f"{directory} exists: name a new directory for the backup")
    work = directory.with_name(f".{directory.name}.unfinished")
    with _locked(work):
        try:
            shutil.rmtree(work / _LOG.parent, ignore_errors=True)
            (work / _LOG.parent).mkdir()
            begins = copy_log(source, work / _LOG)
            size = (work / _LOG).stat().st_size
            # After the log, so that records that move into the archive meanwhile are in both copies and not in neither.
            size += copy_archive(source.parent / _ARCHIVE.name, work / _ARCHIVE, begins)
            work.rename(directory)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return size


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and lock it. ConflictError: another process has locked it."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(f"another backup is being written to {directory}") from None
        yield
    finally:
        os.close(descriptor)


async def _restore(settings: Settings, directory: Path, lost_devices: int) -> tuple[int, int]:
    if not (directory / _LOG).exists():
        raise InputError(f"{directory} holds no backup: {directory / _LOG} is missing")
    keys = load_keys(settings, frozenset(KeyPurpose))
    with data_directory.lock_directory(settings.data):
        work = settings.data / "restoring"
        _discard_unfinished(work)
        _check_fresh(settings)
        try:
            work.mkdir()
            begins = copy_log(directory / _LOG, work / _LOG.name)
            copy_archive(directory / _ARCHIVE, work / _ARCHIVE.name, begins)
            log = _log_of(settings, SqliteLog(work / _LOG.name, TOPICS, partitions=settings.partitions))
            try:
                apps = await _apps(log)
                for app in apps.all():
                    keys.open(app.sealed_secret, app.appkey)
                _check_person_keys(settings, apps)
                newest_ms = await _reserve(log, apps, settings, lost_devices)
            finally:
                await log.close()
            work.rename(settings.data / _LOG.parent)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return len(apps.all()), newest_ms


async def _reserve_in_place(settings: Settings, lost_devices: int) -> tuple[int, int]:
    """Reserve numbers in the embedded log that is in the data directory, which no service may use meanwhile."""
    if not (settings.data / _LOG).exists():
        raise InputError(f"there is no event log at {settings.data / _LOG}: name the DIRECTORY of a backup")
    with data_directory.lock_directory(settings.data):
        log = _log_of(settings, SqliteLog(settings.data / _LOG, TOPICS, partitions=settings.partitions))
        try:
            apps = await _apps(log)
            return len(apps.all()), await _reserve(log, apps, settings, lost_devices)
        finally:
            await log.close()


async def _reserve_in_kafka(settings: Settings, lost_devices: int) -> tuple[int, int]:
    log = _log_of(settings, await open_log(settings))
    try:
        apps = await _apps(log)
        return len(apps.all()), await _reserve(log, apps, settings, lost_devices)
    finally:
        await log.close()


def _discard_unfinished(work: Path) -> None:
    """Delete the directory of a restore that was killed; the data directory is locked, so none is running.

    A directory with files that no restore writes stays, and `_check_fresh` refuses it.
    """
    if work.is_dir() and all(path.name.startswith((_LOG.name, _ARCHIVE.name)) for path in work.iterdir()):
        shutil.rmtree(work)


def _check_fresh(settings: Settings) -> None:
    """Check that the data directory has nothing but keys and locks. ConflictError: it has more."""
    key = settings.key_file
    expected = {key.name, next_master_file(key).name, former_master_file(key).name, "keys", "carillon.lock"}
    if others := sorted({path.name for path in settings.data.iterdir()} - expected):
        raise ConflictError(f"{settings.data} holds {', '.join(others)}: restore into one with keys alone")


def _log_of(settings: Settings, log: Log) -> Log:
    """Return the log as roles use it, but without keys: what this command appends is about nobody, and not signed."""
    return log_with_keys(settings, SigningKeys({}, {}), log)


def _check_person_keys(settings: Settings, apps: AppDirectory) -> None:
    """Check that the keys with which the restored log is sealed are here. CarillonError: they are not."""
    directory = person_keys_directory(settings)
    if not apps.sealing.since_ms:
        return
    if not directory.exists():
        raise InputError(
            f"{directory} is missing, without which the log is not read: `carillon keys restore FILE` first"
        )
    if KeyRing(KeyFiles(directory, read_only=True)).fingerprint != apps.sealing.fingerprint:
        raise InputError(
            f"{directory} has other keys than those with which the log is sealed: put a copy of these there"
        )


async def _apps(log: Log) -> AppDirectory:
    apps = AppDirectory(log)
    await until_ready(apps.run)
    return apps


async def _reserve(log: Log, apps: AppDirectory, settings: Settings, lost_devices: int) -> int:
    """Command the registry to reserve device numbers of every app; return the time of the newest record before."""
    newest_ms = await _newest_ms(log, settings.partitions)
    count = _share(lost_devices, settings.partitions)
    if count:
        commands = [
            Command(DEVICE_COMMANDS, app.appkey.encode(), _reservation(app.appkey, count), partition)
            for app in apps.all()
            for partition in range(settings.partitions)
        ]
        writer = CommandWriter("cli", log, Peers({}, TOPICS), SystemClock(), settings.partitions)
        await writer.append(commands, command_origin())
    return newest_ms


def _reservation(appkey: str, count: int) -> DeviceCommand:
    return DeviceCommand(appkey=appkey, reserve_numbers=ReserveNumbers(count=count))


def _share(devices: int, partitions: int) -> int:
    """Return an upper bound of the devices in one partition, six standard deviations above the mean of the hash."""
    mean = devices / partitions
    return math.ceil(mean + 6 * math.sqrt(mean)) if devices else 0


async def _newest_ms(log: Log, partitions: int) -> int:
    """Return the time of the newest record; 0 for an empty log."""
    last = [await log.last(partition) for partition in _all_partitions(partitions)]
    return max((time_ms(TOPICS, record) for record in last if record is not None), default=0)


def _all_partitions(partitions: int) -> Sequence[Partition]:
    return [
        Partition(topic.name, number) for topic in TOPICS.values() for number in range(topic.partitions(partitions))
    ]
