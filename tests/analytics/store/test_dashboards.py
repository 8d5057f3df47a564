"""The Grafana dashboards: each query runs on a store filled by the ingestion, and shows its rows."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from protos.delivery.v1.delivery_pb2 import OutcomeKind as Outcome
from protos.gateway.v1.sessions_pb2 import SessionEventKind as Session
from protos.push.v1.push_pb2 import Audience, Devices, Kind
from protos.registry.v1.apps_pb2 import Platform
from services.log.port import NewRecord
from testkit.repository import ROOT
from tests.analytics.records import (
    APP,
    T0,
    app_outcomes,
    cancelled,
    connection_counts,
    device,
    outcomes,
    send,
    session,
    started,
)
from tests.analytics.statistics.sync_store import SyncStore

FOLDER = ROOT / "dashboards"
BOARDS: dict[str, Any] = {path.stem: msgspec.json.decode(path.read_bytes()) for path in sorted(FOLDER.glob("*.json"))}
PANELS = [(name, panel) for name, board in BOARDS.items() for panel in board["panels"]]
CLICKHOUSE = "carillon-clickhouse"
PROMETHEUS = "carillon-prometheus"
INTERVAL_S = 60
FROM_S, TO_S = T0 // 1000 - 3600, T0 // 1000 + 3600
BROADCAST, LIST, IOS, CANCELLED = 1000, 2000, 3000, 4000


def devices() -> list[NewRecord]:
    known = {"region": "北京市", "brand": "b", "app_version": "1"}
    gone = device(6, time_ms=T0 + 7, removed_ms=T0 + 7, removed_reason="unregistered")
    return [*(device(number, attributes=known) for number in range(5)), gone]


def history() -> list[NewRecord]:
    kinds = {
        Outcome.OUTCOME_KIND_SENT: [1, 2, 3, 4],
        Outcome.OUTCOME_KIND_RECEIVED: [1, 2],
        Outcome.OUTCOME_KIND_SHOWN: [1],
    }
    listed = Devices(
        partitions=np.array([1, 1, 2], "<u2").tobytes(),
        numbers=np.array([1, 1, 5], "<u4").tobytes(),
        id_offsets=np.array([0, 1, 2], "<u4").tobytes(),
    )
    return [
        session(1, Session.SESSION_EVENT_KIND_OPENED, T0),
        connection_counts(T0, {APP: 3}),
        connection_counts(T0, {APP: 4}, gateway="g2"),
        send(BROADCAST),
        started(BROADCAST, 1, range(5), T0 + 5),
        outcomes(1, *(app_outcomes(BROADCAST, numbers, kind, T0 + 10 * kind) for kind, numbers in kinds.items())),
        outcomes(1, app_outcomes(BROADCAST, [4], Outcome.OUTCOME_KIND_FAILED, T0 + 50, "removed"), seed="failed"),
        send(LIST, kind=Kind.KIND_UNICAST, audience=Audience(devices=listed), id_count=3),
        started(LIST, 1, [1]),
        started(LIST, 2, [5]),
        outcomes(1, app_outcomes(LIST + 1, [1], Outcome.OUTCOME_KIND_RECEIVED, T0 + 30), seed="listed"),
        send(IOS, platform=Platform.PLATFORM_IOS),
        started(IOS, 1, [7, 8]),
        outcomes(1, app_outcomes(IOS, [7], Outcome.OUTCOME_KIND_SENT, T0 + 9), seed="ios"),
        outcomes(1, app_outcomes(IOS, [7], Outcome.OUTCOME_KIND_EXPIRED, T0 + 19), seed="ios later"),
        send(CANCELLED),
        started(CANCELLED, 1, [1, 2]),
        cancelled(CANCELLED, 1),
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("dashboards"))
    store.ingest(devices())
    store.ingest(history())
    yield store
    store.close()


def query(sql: str, **variables: str) -> str:
    """Replace $__conditionalAll, then dashboard variables, then other macros, as the plugin does."""
    given = {"appkey": "$__all", "attribute": "brand", "msgid": str(BROADCAST), **variables}
    sql = re.sub(
        r"\$__conditionalAll\(((?:[^()]|\([^()]*\))*), \$(\w+)\)",
        lambda found: "1=1" if given[found[2]] == "$__all" else found[1],
        sql,
    )
    formats = {"raw": "{}", "singlequote": "'{}'", "sqlstring": "'{}'"}
    sql = re.sub(r"\$\{(\w+):(\w+)\}", lambda found: formats[found[2]].format(given[found[1]]), sql)
    sql = re.sub(r"\$__timeFilter\(([\w.]+)\)", rf"\1 >= toDateTime({FROM_S}) AND \1 <= toDateTime({TO_S})", sql)
    interval = rf"toStartOfInterval(toDateTime(\1), INTERVAL {INTERVAL_S} second)"
    sql = re.sub(r"\$__timeInterval\(([\w.]+)\)", interval, sql)
    sql = re.sub(r"\$__fromTime\b", f"toDateTime({FROM_S})", sql)
    sql = re.sub(r"\$__interval_s\b", str(INTERVAL_S), sql)
    assert "$" not in sql, "a macro or variable that nothing replaces"
    return sql


def rows(store: SyncStore, sql: str) -> list[tuple[Any, ...]]:
    """Run a query; times without a fraction are returned as seconds since 1970."""
    return list(zip(*(column.to_pylist() for column in store.query(sql).columns), strict=True))


def panels_on(source: str) -> list[Any]:
    return [
        pytest.param(panel, id=f"{name}: {panel['title']}")
        for name, panel in PANELS
        if panel["datasource"]["uid"] == source
    ]


def sql_of(name: str, title: str) -> str:
    (found,) = [panel for board, panel in PANELS if board == name and panel["title"] == title]
    sql: str = found["targets"][0]["rawSql"]
    return sql


@pytest.mark.parametrize("panel", panels_on(CLICKHOUSE))
def test_every_panel_shows_rows(store: SyncStore, panel: Any) -> None:
    sql = panel["targets"][0]["rawSql"]
    for appkey in ("$__all", APP):
        table = store.query(query(sql, appkey=appkey))
        found = rows(store, query(sql, appkey=appkey))
        assert found
        match panel["type"]:
            case "stat":
                assert len(found) == table.num_columns == 1
                assert found[0][0] > 0
            case "timeseries":
                assert table.column_names[0] == "time"
                times = [row[0] for row in found]
                assert times == sorted(times)
                assert all(FROM_S <= time <= TO_S for time in times)
                assert all(isinstance(row[-1], int | float) for row in found)
            case "barchart":
                assert [isinstance(cell, str) for cell in found[0]] == [True, False]
            case "table":
                assert table.num_columns > 1
    if "$appkey" in sql and panel["type"] != "stat":
        assert rows(store, query(sql, appkey="77")) == []


@pytest.mark.parametrize("panel", panels_on(CLICKHOUSE))
def test_every_panel_accepts_an_unknown_message_id(store: SyncStore, panel: Any) -> None:
    for msgid in ("", "x", "77"):
        store.query(query(panel["targets"][0]["rawSql"], msgid=msgid))


@pytest.mark.parametrize("msgid", [BROADCAST, LIST, LIST + 2, IOS, CANCELLED])
def test_the_states_of_a_push_are_those_of_the_audit(store: SyncStore, msgid: int) -> None:
    audited = Counter[str]()
    for count in store.audit(LIST if msgid == LIST + 2 else msgid).states:
        audited[count.state] += count.devices
    assert audited
    assert dict(rows(store, query(sql_of("push", "States"), msgid=str(msgid)))) == audited


@pytest.mark.parametrize(
    ("board", "title", "expected"),
    [
        ("overview", "Pushes accepted", [(4,)]),
        ("overview", "Messages sent", [(5,)]),
        ("overview", "Messages received", [(3,)]),
        ("overview", "Failed or dropped", [(1,)]),
        ("devices", "Registered now", [(5,)]),
        ("devices", "Active", [(1,)]),
        ("devices", "New", [(6,)]),
        ("devices", "Removed", [(1,)]),
        ("push", "Audience", [(5,)]),
        ("push", "By reason", [("failed", "removed", 1)]),
        ("push", "By ${attribute}", [("b", 4, 2, 1, 0, 1)]),
        ("devices", "Brands", [("b", 5)]),
        ("devices", "Removed, by reason", [("unregistered", 1)]),
    ],
)
def test_numbers_of_the_panels(store: SyncStore, board: str, title: str, expected: list[Any]) -> None:
    assert rows(store, query(sql_of(board, title))) == expected


def test_latencies_are_measured_by_message(store: SyncStore) -> None:
    (sent,) = rows(store, query(sql_of("overview", "From accepted to first sent")))
    assert sent[1:] == (10, 10, 10)
    (received,) = rows(store, query(sql_of("overview", "From accepted to first received")))
    assert received[1:] == (20, 30, 30)
    of_kinds = rows(store, query(sql_of("push", "From accepted to first")))
    assert of_kinds == [("failed", 50, 50, 50), ("received", 20, 20, 20), ("sent", 10, 10, 10), ("shown", 30, 30, 30)]


def test_connections_are_summed_over_gateways(store: SyncStore) -> None:
    assert [row[1:] for row in rows(store, query(sql_of("devices", "Connected")))] == [(APP, 7)]


@pytest.mark.parametrize("name", BOARDS)
def test_files_have_what_grafana_needs(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"carillon-{name}"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    declared = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] in (CLICKHOUSE, PROMETHEUS)
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        text = msgspec.json.encode(panel).decode()
        assert set(re.findall(r"\$\{?(?!_)(\w+)", text)) <= declared
    places = [panel["gridPos"] for panel in board["panels"]]
    taken = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(taken)) == len(taken), "two panels overlap"
    assert all(x < 24 for x, _ in taken)


def test_the_app_variable_lists_the_apps(store: SyncStore) -> None:
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                assert rows(store, variable["query"]) == [(APP,)]


def test_links_lead_to_dashboards() -> None:
    text = "".join(msgspec.json.encode(board).decode() for board in BOARDS.values())
    uids = set(re.findall(r"/d/([\w-]+)", text))
    assert uids
    assert uids <= {board["uid"] for board in BOARDS.values()}
