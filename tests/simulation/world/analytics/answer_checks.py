"""Checks of what the real store answers about a world: statistics and acknowledgements are equal to what happened."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from protos.analytics.v1.analytics_pb2 import (
    Ack,
    BroadcastRow,
    Category,
    ConnectionsRow,
    LoginsRow,
    StatisticsKind,
    StatisticsRequest,
    TimeScope,
    UserKind,
    UsersRow,
)
from services.domain.statistics_rows import LOGIN_DAYS
from tests.simulation.world.analytics.questions import Questions, ask
from tests.simulation.world.analytics.row_checks import android_unicasts, logged_receipts
from tests.simulation.world.analytics.store import ModelStore, Row
from tests.soak.analytics_checks import statistics_violations, stored_violations
from tests.soak.checks import Observations, Violation

_RULE = "answers"
_MINUTE_MS = 60_000


class EndedWorld(NamedTuple):
    """What a world has left at its end, `now_ms`; `ends` as for Questions."""

    store: ModelStore
    observed: Observations
    appkeys: Sequence[str]
    ends: Mapping[int, int]
    now_ms: int
    zone: ZoneInfo


def answer_violations(world: EndedWorld, directory: Path) -> Iterator[Violation]:
    """Fill a real store in the empty folder with what the world's store has, ask it, and check its answers."""
    requests = [request for appkey in world.appkeys for request in _statistics(appkey)]
    answers = ask(
        Questions(world.store.requests, world.zone.key, world.now_ms, requests, world.appkeys, world.ends), directory
    )
    yield from stored_violations(world.observed.history, answers.stored)
    responses = iter(answers.statistics)
    for appkey in world.appkeys:
        broadcasts, connections, logins, users, by_channel = (next(responses) for _ in _statistics(appkey))
        yield from statistics_violations(world.observed, appkey, [_counts(row) for row in broadcasts.broadcasts])
        yield from _connections(world, appkey, connections.connections)
        yield from _logins(world, appkey, logins.logins)
        yield from _users(world, appkey, users.users, by_channel.users)
        yield from _acknowledgements(world, appkey, answers.acknowledgements[appkey])


def _statistics(appkey: str) -> list[StatisticsRequest]:
    week = TimeScope.TIME_SCOPE_LAST_SEVEN_DAYS
    users = StatisticsKind.STATISTICS_KIND_USERS
    cumulative = UserKind.USER_KIND_CUMULATIVE
    channel = Category.CATEGORY_CHANNEL
    return [
        StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS),
        StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_CONNECTIONS, scope=week),
        StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_LOGINS, scope=week),
        StatisticsRequest(appkey=appkey, kind=users, scope=week, user_kind=cumulative),
        StatisticsRequest(appkey=appkey, kind=users, scope=week, user_kind=cumulative, category=channel, info="all"),
    ]


def _counts(row: BroadcastRow) -> Mapping[str, int]:
    return {field.name: getattr(row, field.name) for field in row.DESCRIPTOR.fields if field.name != "info"}


def _connections(world: EndedWorld, appkey: str, rows: Sequence[ConnectionsRow]) -> Iterator[Violation]:
    """Check the highest number of connections of each day: the sum of the gateways' counts at a full minute."""
    by_minute: Counter[datetime] = Counter()
    for row in _of_app(world.store.final("connection_counts"), appkey):
        by_minute[row["minute"]] += row["connections"]
    complete = datetime.fromtimestamp(world.now_ms // _MINUTE_MS * _MINUTE_MS / 1000, UTC)
    highest: dict[str, int] = defaultdict(int)
    for minute, connections in by_minute.items():
        if minute < complete:
            day = _day(minute, world.zone).isoformat()
            highest[day] = max(highest[day], connections)
    yield from _different("connections", appkey, {row.date: row.maximum for row in rows if row.maximum}, highest)


def _logins(world: EndedWorld, appkey: str, rows: Sequence[LoginsRow]) -> Iterator[Violation]:
    """Check the devices that logged in within some days up to each day."""
    devices = defaultdict(set)
    for session in _of_app(world.store.inserted("sessions"), appkey):
        if session["kind"] == "logged_in":
            devices[_day(session["time"], world.zone)].add((session["partition"], session["number"]))
    found = {(row.date, days): row.counts[days] for row in rows for days in LOGIN_DAYS}
    wanted = {}
    for row in rows:
        last = date.fromisoformat(row.date)
        for days in LOGIN_DAYS:
            within = (devices[last - timedelta(days=ago)] for ago in range(days))
            wanted[row.date, days] = len(set().union(*within))
    yield from _different("log-ins", appkey, found, wanted)


def _users(
    world: EndedWorld, appkey: str, rows: Sequence[UsersRow], by_channel: Sequence[UsersRow]
) -> Iterator[Violation]:
    """Check the devices registered until now, and that those of all channels are as many."""
    registered = sum(app == appkey for app, _ in world.observed.history.devices)
    found = {"all": rows[-1].count, "of all channels": sum(row.count for row in by_channel)}
    yield from _different("users", appkey, found, dict.fromkeys(found, registered))


def _acknowledgements(world: EndedWorld, appkey: str, acks: Sequence[Ack]) -> Iterator[Violation]:
    """Check that the pages have each acknowledgement once."""
    history = world.observed.history
    apps = android_unicasts(history)
    wanted = {
        (msgid, history.devices[appkey, number].token): 1
        for msgid, number in logged_receipts(history)
        if apps[msgid] == appkey
    }
    yield from _different("acknowledgements", appkey, Counter((ack.msgid, ack.token) for ack in acks), wanted)


def _different(what: str, appkey: str, found: Mapping[Any, int], wanted: Mapping[Any, int]) -> Iterator[Violation]:
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key, 0) != wanted.get(key, 0):
            text = f"{what} {key} of {appkey}: answered {found.get(key, 0)}, were {wanted.get(key, 0)}"
            yield Violation(_RULE, text)


def _of_app(rows: Iterable[Row], appkey: str) -> Iterator[Row]:
    return (row for row in rows if row["appkey"] == appkey)


def _day(time: datetime, zone: ZoneInfo) -> date:
    return time.astimezone(zone).date()
