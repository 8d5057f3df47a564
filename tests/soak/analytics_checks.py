"""Checks that compare the analytics store and the statistics with the event log."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analytics.projection import connect
from analytics.settings import AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from services.runtime.process.settings import load
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


async def store_violations(observed: Observations, env: Mapping[str, str]) -> list[Violation]:
    """Compare the store with the log; the service must be stopped, because the store is opened here."""
    clickhouse = connect(load(AnalyticsSettings, env))
    await clickhouse.open()
    try:
        return [
            *await _pushes(observed.history, clickhouse),
            *await _same(clickhouse, "audience", _AUDIENCES, _logged_audiences(observed.history)),
            *await _same(clickhouse, "outcomes", _OUTCOMES, _logged_outcomes(observed.history)),
            *await _same(clickhouse, "deliveries", _DELIVERIES, _logged_outcomes(observed.history)),
        ]
    finally:
        await clickhouse.close()


async def _pushes(history: History, clickhouse: ClickHouse) -> list[Violation]:
    """Check that the store has each push of the log once."""
    found = {(msgid, appkey): count for msgid, appkey, count in await clickhouse.rows(_PUSHES)}
    logged = {(sent.send.msgid, sent.send.appkey): 1 for sent in history.sent.values()}
    wrong = sorted(key[0] for key in found.keys() | logged.keys() if found.get(key) != logged.get(key))
    return [Violation("clickhouse", "the push is not exactly once in the table `pushes`", (msgid,)) for msgid in wrong]


async def _same(clickhouse: ClickHouse, what: str, sql: str, logged: Mapping[tuple[Any, ...], int]) -> list[Violation]:
    found = {tuple(key): count for *key, count in await clickhouse.rows(sql)}
    return [
        Violation(
            "clickhouse", f"{what} {key}: {found.get(key, 0)} in the store, {logged.get(key, 0)} in the log", (key[-1],)
        )
        for key in sorted(found.keys() | logged.keys())
        if found.get(key) != logged.get(key)
    ]


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
            received = len(observed.history.outcomes["received"].get(msgid, ()))
            if received > showing[msgid] or (observed.must_be_shown(first) and received != showing[msgid]):
                text = f"{received} devices acknowledged it, {showing[msgid]} showed it"
                yield Violation("receipts", text, (msgid,))
