"""`carillon replay ROLE`: rebuild a role's state from the log."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import uvloop

from carillon.commands.output import say
from carillon.environment import environment
from carillon.progress_bar import ProgressBar, progress_bar
from carillon.roles import REPLAYABLE, ROLES, role_definition
from carillon.startup import plain_errors, restrict_permissions
from services.domain.role import ReplaySupport, RoleDefinition
from services.domain.role_context import open_archive, open_log, readable_log
from services.domain.settings import Settings, load
from services.domain.signing_keys import load_signing_keys
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, TOPICS
from services.errors import InputError
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.store import date_of
from services.log.point_in_time import PointInTimeLog, ends_at
from services.log.port import Log, Partition
from services.log.sqlite.log import SqliteLog
from services.process import data_directory
from services.replica.archive_end import StateBases
from services.replica.replay import ReplaySource, parent_of

# Rebuilding a role's state from the log: in place of the live state, beside it, or as of an earlier moment.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Answer = dict[str, Any]


async def rebuild(role: RoleDefinition[Any], settings: Settings, progress: ProgressBar) -> Answer:
    """Replace the live state with one rebuilt from the log. ConflictError: the role is running."""
    with _stopped(role, settings):
        async with _readable_log(settings) as log:
            digest = await _support(role).rebuild(settings, await _source(role, settings, log, progress))
            return {"role": role.name, "digest": digest, **_since(settings)}


async def verified(role: RoleDefinition[Any], settings: Settings, progress: ProgressBar) -> Answer:
    """Compare the live state with one rebuilt from the log; the role may be running."""
    async with _readable_log(settings) as log:
        verdict = await _support(role).verify(settings, await _source(role, settings, log, progress))
        return {"role": role.name, "equal": verdict.equal, **verdict._asdict(), **_since(settings)}


async def rebuild_past(
    role: RoleDefinition[Any], settings: Settings, *, until: datetime, into: Path, progress: ProgressBar
) -> Answer:
    """Build the state as of an earlier moment in a directory of its own. InputError: the directory is not empty."""
    _check_empty(into)
    if since := _since(settings):
        raise InputError(
            f"records from before {since['since']} were too old to be kept (CARILLON_ARCHIVE_DAYS), so no state can be"
            " built as of an earlier moment: --verify and a rebuild begin with a copy of the state of that day"
        )
    async with _readable_log(settings) as log:
        with TemporaryDirectory(dir=parent_of(into)) as work:
            async with _past_log(_support(role), settings, log, until, Path(work), progress) as past:
                digest = await _support(role).fill(settings, into, await _source(role, settings, past, progress))
    return {"role": role.name, "until": until.isoformat(), "digest": digest, "directory": str(into)}


@contextlib.asynccontextmanager
async def _past_log(
    support: ReplaySupport[Any], settings: Settings, log: Log, until: datetime, work: Path, progress: ProgressBar
) -> AsyncIterator[PointInTimeLog]:
    """Yield the log as of an earlier moment.

    Compacted topics have lost their earlier records: device records are decided again from the commands, and apps are
    those of today, unless the role reads only their changes.
    """
    now = await _ends(log, settings)
    compacted = {topic.name for topic in TOPICS.values() if topic.compacted}
    if support.reads_app_changes:
        compacted.discard(APPS.name)
    searched = {partition: end for partition, end in now.items() if partition.topic not in compacted}
    progress.begin(f"reading the log until {until.isoformat()}", sum(searched.values()))
    then = await ends_at(log, searched, (until - _EPOCH) // timedelta(milliseconds=1), progress.advance)
    devices = SqliteLog(work / "devices.db", TOPICS)
    try:
        past = PointInTimeLog(log, {**now, **then}, [DEVICES.name], devices)
        if support.reads_device_records:
            progress.begin(f"deciding {DEVICE_COMMANDS.name} again", None)
            await _decide_device_commands(settings, work, past)
        yield past
    finally:
        await devices.close()


async def _decide_device_commands(settings: Settings, work: Path, log: Log) -> None:
    definitions = (role_definition(role) for role in ROLES)
    decide = next(one.decide_device_commands for one in definitions if one.decide_device_commands is not None)
    await decide(settings, work, log)


def _support(role: RoleDefinition[Any]) -> ReplaySupport[Any]:
    assert role.replay is not None
    return role.replay


@contextlib.asynccontextmanager
async def _readable_log(settings: Settings) -> AsyncIterator[Log]:
    log = await open_log(settings, read_only=True)
    try:
        yield await readable_log(settings, load_signing_keys(settings, "replay", reads_master=True), log)
    finally:
        await log.close()


async def _source(role: RoleDefinition[Any], settings: Settings, log: Log, progress: ProgressBar) -> ReplaySource:
    source = ReplaySource(log, await _ends(log, settings), progress.step(f"replaying {role.name}"))
    archive = _archive_with_end(settings)
    if archive is None or not _support(role).is_one_directory:
        return source
    bases = StateBases(archive, role.name, settings.state_dir(role.name), TOPICS, log.identity)
    return replace(source, begin=partial(bases.unpack, bases.first_after(archive.begin())))


def _archive_with_end(settings: Settings) -> ArchiveDirectory | None:
    """Return the archive if records have left it for good."""
    archive = open_archive(settings)
    return archive if isinstance(archive, ArchiveDirectory) and archive.begin().offsets else None


def _since(settings: Settings) -> Answer:
    """Return the day before which there are no records any more; nothing if there are all."""
    archive = _archive_with_end(settings)
    return {"since": date_of(archive.begin().removed_before_ms)} if archive else {}


async def _ends(log: Log, settings: Settings) -> dict[Partition, int]:
    return await log.ends(
        Partition(topic.name, number)
        for topic in TOPICS.values()
        for number in range(topic.partitions(settings.partitions))
    )


def _stopped(role: RoleDefinition[Any], settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Hold the lock that the running role holds, because a rebuild replaces its state."""
    if settings.kafka_bootstrap is None:
        return data_directory.lock_directory(settings.data)
    return data_directory.lock_directory(settings.state_dir(role.name), data_directory.RUNNING_LOCK)


def _check_empty(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"{directory} is not empty: name a new directory for the state")


@click.command()
@click.argument("role", type=click.Choice(REPLAYABLE))
@click.option("--verify", is_flag=True, help="Compare a rebuilt state with the live one and change nothing.")
@click.option("--until", metavar="TIME", help="Build the state as of this ISO 8601 date-time; needs --into.")
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="The new directory for the state of --until."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(role: str, verify: bool, until: str | None, into: Path | None, as_json: bool) -> None:
    """Rebuild a role's state from the log. Nothing is ever sent.

    Without options the rebuilt state replaces the live one, and the service must be stopped. With --verify or --until
    the service may run; its state stays unchanged.

    Where CARILLON_ARCHIVE_DAYS has removed old records, the rebuilt state begins with a copy that was saved when they
    were there; the answer says from when on all records are there. --until is refused then.

    --until TIME reads each partition of the log up to its first record that was made later. TIME is in
    CARILLON_TIMEZONE unless it carries an offset of its own. The state is left in DIR for inspection and its digest is
    printed; it never replaces the live state and cannot be compared with it.
    """
    restrict_permissions()
    if (until is None) != (into is None):
        raise click.UsageError("--until and --into go together: an earlier state never replaces the live one")
    if verify and until is not None:
        raise click.UsageError("--verify compares with the live state, which cannot be taken back to an earlier moment")
    with plain_errors(), progress_bar(shown=not as_json) as progress:
        definition = role_definition(role)
        settings = load(definition.settings, environment())
        if until is not None and into is not None:
            moment = _parse_time(until, settings)
            work = rebuild_past(definition, settings, until=moment, into=into, progress=progress)
        elif verify:
            work = verified(definition, settings, progress)
        else:
            work = rebuild(definition, settings, progress)
        answer = uvloop.run(work)
    say(*([json.dumps(answer)] if as_json else _text(answer).split("\n")))
    sys.exit(0 if answer.get("equal", True) else 1)


def _text(answer: Answer) -> str:
    """Return the answer of a replay as sentences."""
    if since := answer.get("since"):
        without = {name: value for name, value in answer.items() if name != "since"}
        lost = "rows that were made of them are not in it" if answer["role"] == "analytics" else "it begins with a copy"
        return f"{_text(without)}\nRecords from before {since} were removed from the archive: {lost}."
    match answer:
        case {"role": role, "equal": equal, "live": live, "rebuilt": rebuilt}:
            verdict = "equals" if equal else "differs from"
            digests = f"Digest of the live state:    {live}\nDigest of the rebuilt state: {rebuilt}"
            return f"The live state of {role} {verdict} the one rebuilt from the log.\n{digests}"
        case {"role": role, "digest": digest, "until": until, "directory": directory}:
            return f"The state of {role} as of {until} is in {directory}.\nDigest: {digest}"
        case _:
            return f"The state of {answer['role']} was rebuilt from the log.\nDigest: {answer['digest']}"


def _parse_time(text: str, settings: Settings) -> datetime:
    """Parse an ISO 8601 date-time, in the installation's time zone unless it carries an offset.

    click.BadParameter: the text has another form.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        wrong = f"{text!r} is no date and time such as 2026-11-21T14:05:00"
        raise click.BadParameter(wrong, param_hint="--until") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=settings.zone())
