"""`carillon archive`: moves old records from a Kafka log into its archive."""

import json
from contextlib import nullcontext

import click
import uvloop

from analytics.settings import AnalyticsSettings
from carillon.commands.output import say
from carillon.environment import environment
from carillon.startup import plain_errors, restrict_permissions
from edge.settings import EdgeSettings
from services.domain.role_context import open_archive, open_log
from services.domain.settings import load
from services.domain.topics import (
    DRAFTS,
    LOG_INS,
    PUSH_COMMANDS,
    SESSIONS,
    TASK_COMMANDS,
    TASKS,
    TOPICS,
    archived_partitions,
)
from services.errors import InputError
from services.log.archive.archiver import DAY_MS, Archiver
from services.log.archive.log import ArchivedLog
from services.process import data_directory
from services.process.clock import SystemClock

_SPARE_DAYS = 5

_CONTENTS = (PUSH_COMMANDS.name, TASK_COMMANDS.name, TASKS.name, DRAFTS.name)
"""The topics with contents of pushes."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def archive(as_json: bool) -> None:
    """Move records older than CARILLON_LOG_DAYS from Kafka into its archive. Run it every day.

    The archive is the directory CARILLON_KAFKA_ARCHIVE_DIR, or CARILLON_KAFKA_ARCHIVE_URL, s3://BUCKET/PREFIX in an
    S3-compatible store. Every role needs the same setting and read access, because old records are read from
    there. After a crash, run the command again. `carillon up` archives by itself.
    """
    restrict_permissions()
    with plain_errors():
        settings = load(EdgeSettings, environment())
        if settings.kafka_bootstrap is None:
            raise InputError("the log is embedded, and `carillon up` moves its old records into the archive by itself")
        if (store := open_archive(settings)) is None:
            raise InputError(
                "set CARILLON_KAFKA_ARCHIVE_DIR or CARILLON_KAFKA_ARCHIVE_URL, for this command and for every role"
            )
        path = settings.archive_path
        with data_directory.lock_directory(path, "archiver.lock") if path else nullcontext():
            count = uvloop.run(_archive(settings))
    answer = {"directory" if path else "url": store.location, "records": count}
    say(json.dumps(answer) if as_json else f"{count} records were moved to {store.location}.")


def retention_ms(settings: EdgeSettings) -> int:
    """Return how many milliseconds records stay in the log: CARILLON_LOG_DAYS, or some days more than the longest time
    to live of a push, if that is longer.
    """
    return max(settings.log_days, settings.v2_max_period_s // 86_400 + _SPARE_DAYS) * DAY_MS


def archive_days(settings: AnalyticsSettings) -> dict[str, int]:
    """Return for how many days the archive keeps the records of each topic; topics that are not named, for ever.

    Records come into the archive after CARILLON_LOG_DAYS, so they stay for longer than that, whatever is set.
    """
    of_classes = {
        **dict.fromkeys(_CONTENTS, settings.content_days),
        SESSIONS.name: settings.session_days,
        LOG_INS.name: settings.audit_days,
    }
    found = {}
    for topic in TOPICS.values():
        given = [days for days in (settings.archive_days, of_classes.get(topic.name)) if days is not None]
        if topic.archived and given:
            found[topic.name] = max(min(given), settings.log_days + 1)
    return found


async def _archive(settings: EdgeSettings) -> int:
    log = await open_log(settings, read_only=True)
    try:
        assert isinstance(log, ArchivedLog)
        partitions = archived_partitions(settings.partitions)
        return await Archiver(log, SystemClock(), partitions, retention_ms(settings)).archive_old()
    finally:
        await log.close()
