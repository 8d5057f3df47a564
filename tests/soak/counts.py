"""Compares ClickHouse and the statistics it answers with the log."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analytics.projection import connect
from analytics.settings import AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from protos.push.v1.push_pb2 import KIND_UNICAST
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from services.runtime.process.settings import load
from tests.soak.checks import Case, Finding
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


async def store_findings(case: Case, env: Mapping[str, str]) -> list[Finding]:
    """What the store holds, opened by itself: the service must be stopped."""
    clickhouse = connect(load(AnalyticsSettings, env))
    await clickhouse.open()
    try:
        return [
            *await _pushes(case.history, clickhouse),
            *await _same(clickhouse, "audience", _AUDIENCES, _logged_audiences(case.history)),
            *await _same(clickhouse, "outcomes", _OUTCOMES, _logged_outcomes(case.history)),
            *await _same(clickhouse, "deliveries", _DELIVERIES, _logged_outcomes(case.history)),
        ]
    finally:
        await clickhouse.close()


async def _pushes(history: History, clickhouse: ClickHouse) -> list[Finding]:
    """Each push of the log stands there once."""
    found = {(msgid, appkey): count for msgid, appkey, count in await clickhouse.rows(_PUSHES)}
    logged = {(sent.send.msgid, sent.send.appkey): 1 for sent in history.sent.values()}
    wrong = sorted(key[0] for key in found.keys() | logged.keys() if found.get(key) != logged.get(key))
    return [Finding("clickhouse", "it is not in `pushes` once", (msgid,)) for msgid in wrong]


async def _same(clickhouse: ClickHouse, what: str, sql: str, logged: Mapping[tuple[Any, ...], int]) -> list[Finding]:
    found = {tuple(key): count for *key, count in await clickhouse.rows(sql)}
    return [
        Finding("clickhouse", f"{what} {key}: {found.get(key, 0)} there, {logged.get(key, 0)} in the log", (key[-1],))
        for key in sorted(found.keys() | logged.keys())
        if found.get(key) != logged.get(key)
    ]


def _logged_audiences(history: History) -> dict[tuple[Any, ...], int]:
    sizes = {(msgid,): sum(map(len, bitmaps.values())) for msgid, bitmaps in history.started.items()}
    return {key: size for key, size in sizes.items() if size}


def _logged_outcomes(history: History) -> dict[tuple[Any, ...], int]:
    return {
        (kind, msgid): len(places)
        for kind, of_kind in history.outcomes.items()
        for msgid, places in of_kind.items()
        if places
    }


def statistics_findings(case: Case, appkey: str, rows: Sequence[Row]) -> Iterator[Finding]:
    """What the interface says of an app's broadcasts and multicasts, a thousand of them at most: counts as the clients
    saw them, and nobody left over."""
    many = {
        msgid
        for msgid, sent in case.history.sent.items()
        if sent.send.appkey == appkey and sent.send.kind != KIND_UNICAST
    }
    for msgid in many - {row["msgid"] for row in rows} if len(rows) < _LISTED else ():
        yield Finding("statistics", "it is not listed", (msgid,))
    for row in rows:
        yield from _counted(case, row["msgid"], row)


def _counted(case: Case, msgid: int, row: Row) -> Iterator[Finding]:
    history, sent = case.history, case.history.sent[msgid]
    audience = {place for _, place in history.audience(msgid)}
    is_ios = sent.send.platform == PLATFORM_IOS
    done = "sent" if is_ios else "received"
    waiting = sum(not history.is_settled(msgid, msgid, place, is_ios) for place in audience)
    added = row[done] + row["failed"] + row["expired"] + row["cancelled"]
    if (row["target"], added) != (len(audience), len(audience) - waiting):
        yield Finding("statistics", f"of {len(audience)} devices {waiting} wait, but {dict(row)}", (msgid,))
    by_clients = sum(msgid in client.shown for client in case.clients.values())
    if case.must_be_shown(msgid) and row[done] != by_clients:
        yield Finding("statistics", f"{by_clients} devices have it, but {dict(row)}", (msgid,))
    if not row["shown"] <= row["received"] <= by_clients:
        yield Finding("statistics", f"{by_clients} devices showed it, but {dict(row)}", (msgid,))


def received_findings(case: Case) -> Iterator[Finding]:
    """Receipts in the log are of devices that showed the message, and all of them where everybody had to."""
    showing: dict[int, int] = defaultdict(int)
    for client in case.clients.values():
        for msgid in client.shown:
            showing[msgid] += 1
    for first, sent in case.history.sent.items():
        if sent.send.platform != PLATFORM_ANDROID:
            continue
        for msgid in {msgid for msgid, _ in case.history.audience(first)}:
            received = len(case.history.outcomes["received"].get(msgid, ()))
            if received > showing[msgid] or (case.must_be_shown(first) and received != showing[msgid]):
                text = f"{received} devices acknowledged it, {showing[msgid]} showed it"
                yield Finding("receipts", text, (msgid,))
