"""Checks that compare the analytics store and the statistics with the event log."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from analytics.projection import connect
from analytics.settings import AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from services.domain.settings import load
from tests.soak.checks import Observations, Violation
from tests.soak.history import History

_PUSHES = "SELECT msgid, appkey, count() FROM pushes FINAL GROUP BY msgid, appkey"
_AUDIENCES = """
SELECT msgid, sum(members) FROM (
  SELECT msgid, partition, groupBitmapMerge(devices) AS members FROM push_audiences GROUP BY msgid, partition)
GROUP BY msgid HAVING sum(members) > 0
"""
_OUTCOMES = """
SELECT kind, msgid, sum(members) FROM (
  SELECT kind, msgid, partition, groupBitmapMerge(devices) AS members
  FROM push_outcomes GROUP BY kind, msgid, partition)
GROUP BY kind, msgid
"""
_DELIVERIES = "SELECT kind, msgid, uniqExact(partition, number) FROM deliveries FINAL GROUP BY kind, msgid"
_LISTED = 1000

Row = Mapping[str, int]


class StoredPushes(NamedTuple):
    """What the store has of all pushes: rows whose last column counts, of the queries above."""

    pushes: Sequence[Sequence[Any]]
    audiences: Sequence[Sequence[Any]]
    outcomes: Sequence[Sequence[Any]]
    deliveries: Sequence[Sequence[Any]]


async def store_violations(observed: Observations, env: Mapping[str, str]) -> list[Violation]:
    """Compare the store with the log; the service must be stopped, because the store is opened here."""
    clickhouse = connect(load(AnalyticsSettings, env))
    await clickhouse.open()
    try:
        return list(stored_violations(observed.history, await stored_pushes(clickhouse)))
    finally:
        await clickhouse.close()


async def stored_pushes(clickhouse: ClickHouse) -> StoredPushes:
    return StoredPushes(*[await clickhouse.rows(query) for query in (_PUSHES, _AUDIENCES, _OUTCOMES, _DELIVERIES)])


def stored_violations(history: History, stored: StoredPushes) -> Iterator[Violation]:
    """Check that the store has each push of the log once, and its audience and outcomes."""
    logged = {(sent.send.msgid, sent.send.appkey): 1 for sent in history.sent.values()}
    for (msgid, _), _, _ in _different(stored.pushes, logged):
        yield Violation("clickhouse", "the push is not exactly once in the table `pushes`", (msgid,))
    for what, rows, counts in (
        ("audience", stored.audiences, _logged_audiences(history)),
        ("outcomes", stored.outcomes, _logged_outcomes(history)),
        ("deliveries", stored.deliveries, _logged_outcomes(history)),
    ):
        for key, found, wanted in _different(rows, counts):
            yield Violation("clickhouse", f"{what} {key}: {found} in the store, {wanted} in the log", (key[-1],))


def _different(
    rows: Sequence[Sequence[Any]], logged: Mapping[tuple[Any, ...], int]
) -> Iterator[tuple[tuple[Any, ...], int, int]]:
    """Yield each key whose count in the rows is not the logged one, with both counts."""
    found = {tuple(key): count for *key, count in rows}
    for key in sorted(found.keys() | logged.keys()):
        if found.get(key, 0) != logged.get(key, 0):
            yield key, found.get(key, 0), logged.get(key, 0)


def _logged_audiences(history: History) -> dict[tuple[Any, ...], int]:
    sizes = {(msgid,): sum(map(len, bitmaps.values())) for msgid, bitmaps in history.started.items()}
    return {key: size for key, size in sizes.items() if size}


def _logged_outcomes(history: History) -> dict[tuple[Any, ...], int]:
    return {
        (kind, msgid): len(device_numbers)
        for kind, of_kind in history.outcomes.items()
        for msgid, device_numbers in of_kind.items()
        if device_numbers
    }


def statistics_violations(observed: Observations, appkey: str, rows: Sequence[Row]) -> Iterator[Violation]:
    """Check that the statistics of an app's pushes to many (at most 1000) agree with the clients and add up."""
    many = {
        msgid
        for msgid, sent in observed.history.sent.items()
        if sent.send.appkey == appkey and sent.send.kind != KIND_UNICAST
    }
    for msgid in many - {row["msgid"] for row in rows} if len(rows) < _LISTED else ():
        yield Violation("statistics", "the push is not in the list of broadcasts", (msgid,))
    for row in rows:
        yield from _counted(observed, row["msgid"], row)


def _counted(observed: Observations, msgid: int, row: Row) -> Iterator[Violation]:
    history, sent = observed.history, observed.history.sent[msgid]
    audience = {device_number for _, device_number in history.audience(msgid)}
    is_ios = sent.send.platform == PLATFORM_IOS
    done = "sent" if is_ios else "received"
    waiting = sum(not history.is_settled(msgid, msgid, device_number, is_ios) for device_number in audience)
    added = row[done] + row["failed"] + row["expired"] + row["cancelled"]
    if (row["target"], added) != (len(audience), len(audience) - waiting):
        yield Violation(
            "statistics", f"{waiting} of {len(audience)} devices have no outcome; counted: {dict(row)}", (msgid,)
        )
    by_clients = sum(msgid in client.shown for client in observed.clients.values())
    if observed.must_be_shown(msgid) and row[done] != by_clients:
        yield Violation("statistics", f"{by_clients} devices have received the push; counted: {dict(row)}", (msgid,))
    if not row["shown"] <= row["received"] <= by_clients:
        yield Violation("statistics", f"{by_clients} devices have shown the push; counted: {dict(row)}", (msgid,))


def received_violations(observed: Observations) -> Iterator[Violation]:
    """Check that receipts in the log are of devices that showed the message, and complete where all had to show it."""
    showing: dict[int, int] = defaultdict(int)
    for client in observed.clients.values():
        for msgid in client.shown:
            showing[msgid] += 1
    for first, sent in observed.history.sent.items():
        if sent.send.platform != PLATFORM_ANDROID:
            continue
        for msgid in {msgid for msgid, _ in observed.history.audience(first)}:
            outcomes = observed.history.outcomes
            received = len(outcomes["received"].get(msgid, set()) | outcomes["handed_over"].get(msgid, set()))
            # A device that lost its connection after it had shown a message is sent it again, and acknowledges then;
            # not a message that was withdrawn meanwhile, nor one of which it is unknown whether a channel shows it.
            unknown = outcomes["failed"].get(msgid, set()) & outcomes["claimed"].get(msgid, set())
            dropped = outcomes["dropped"].get(msgid, set())
            withdrawn = sum((msgid, device) in observed.history.withdrawn for device in dropped) + len(unknown)
            missing = showing[msgid] - received
            if missing < 0 or (observed.must_be_shown(first) and missing > withdrawn):
                text = f"{received} devices acknowledged it, {showing[msgid]} showed it"
                yield Violation("receipts", text, (msgid,))
