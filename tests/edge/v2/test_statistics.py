"""POST /v2/statistics: every rule of the request, and the shapes of the answers."""

import asyncio
import json
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import analytics.main
import analytics.settings
from analytics.ingestion.ingestion import Ingestion
from edge.v2.statistics import MAX_DAYS, statistics_reply, statistics_request
from protos.analytics.v1.analytics_pb2 import (
    STATISTICS_KIND_BROADCASTS,
    STATISTICS_KIND_CONNECTIONS,
    STATISTICS_KIND_LOGINS,
    STATISTICS_KIND_USERS,
    TIME_SCOPE_LAST_SEVEN_DAYS,
    TIME_SCOPE_TODAY,
    TIME_SCOPE_YESTERDAY,
    USER_KIND_CUMULATIVE,
    USER_KIND_NEW,
    BroadcastRow,
    ConnectionsRow,
    Dates,
    LoginsRow,
    StatisticsRequest,
    StatisticsResponse,
    UsersRow,
)
from services.errors import InputError
from testkit.edge.role import BACKENDS, NOW_MS, EdgeInstallation, edge_installation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import signed

TODAY = {"timeScope": 0}
KINDS = {
    0: STATISTICS_KIND_CONNECTIONS,
    1: STATISTICS_KIND_BROADCASTS,
    2: STATISTICS_KIND_USERS,
    3: STATISTICS_KIND_LOGINS,
}
RULED_OUT = {2: {1}, 3: {6, 7, 8}}


def read(kind: Any, param: Any) -> StatisticsRequest:
    return statistics_request(json.dumps({"type": kind, "param": param}).encode(), "1")


def custom(first: Any, last: Any) -> dict[str, Any]:
    return {"dur": {"timeScope": 3, "from": first, "to": last}}


@pytest.mark.parametrize("info", ["Info", "info"])
@pytest.mark.parametrize("category", range(9))
@pytest.mark.parametrize("kind", range(4))
def test_every_type_with_every_category(kind: int, category: int, info: str) -> None:
    param = {"category": category, "dur": TODAY, "msgid": 7, info: "all"}
    if category in RULED_OUT.get(kind, ()):
        with pytest.raises(InputError, match=f"param.category {category} is not possible with type {kind}"):
            read(kind, param)
        return
    asked = read(kind, param)
    assert (asked.appkey, asked.kind, asked.category) == ("1", KINDS[kind], category)
    assert asked.HasField("info") is (category > 0)
    assert asked.info == ("all" if category else "")
    assert asked.WhichOneof("period") == (None if kind == 1 else "scope")
    assert asked.HasField("msgid") is (kind == 1)
    assert asked.user_kind == (USER_KIND_NEW if kind == 2 else 0)


@pytest.mark.parametrize(
    ("dur", "scope"),
    [
        ({"timeScope": 0}, TIME_SCOPE_TODAY),
        ({"timeScope": 1, "from": "nonsense"}, TIME_SCOPE_YESTERDAY),
        ({"timeScope": 2, "from": 7, "to": []}, TIME_SCOPE_LAST_SEVEN_DAYS),
    ],
)
def test_time_scopes(dur: dict[str, Any], scope: int) -> None:
    assert read(0, {"dur": dur}).scope == scope


def test_a_custom_range() -> None:
    asked = read(3, custom("2026-02-28", "2026-03-01"))
    dates = Dates()
    setattr(dates, "from", "2026-02-28")
    dates.to = "2026-03-01"
    assert asked.dates == dates
    assert read(0, custom("2026-01-01", "2026-01-01")).HasField("dates")
    assert read(0, custom("2025-01-01", "2026-02-04")).HasField("dates"), f"{MAX_DAYS} days"


@pytest.mark.parametrize("msgid", [None, -1])
def test_all_broadcasts_ignore_every_other_field(msgid: int | None) -> None:
    asked = read(1, {"msgid": msgid, "category": 99, "dur": "x", "Info": 7, "usertype": "y"})
    assert asked == StatisticsRequest(appkey="1", kind=STATISTICS_KIND_BROADCASTS)


def test_fields_without_effect_are_not_read() -> None:
    assert read(1, {"msgid": 2**53, "dur": "x", "usertype": "y"}).msgid == 2**53
    assert not read(0, {"dur": TODAY, "msgid": "x", "usertype": "y", "category": 0, "Info": 7}).HasField("info")
    assert read(3, {"dur": TODAY, "category": None}).category == 0


def test_kinds_of_users() -> None:
    for usertype, wanted in ((None, USER_KIND_NEW), (0, USER_KIND_NEW), (1, USER_KIND_CUMULATIVE)):
        assert read(2, {"dur": TODAY, "usertype": usertype}).user_kind == wanted


def test_integers_as_strings_of_digits() -> None:
    plain = read(2, {"dur": {"timeScope": 0}, "category": 5, "Info": "all", "usertype": 1})
    assert read("2", {"dur": {"timeScope": "0"}, "category": "5", "Info": "all", "usertype": "1"}) == plain
    assert read("1", {"msgid": "7"}) == read(1.0, {"msgid": 7})
    assert read("1", {"msgid": "-1"}) == read(1, {})


@pytest.mark.parametrize(
    ("kind", "param", "problem"),
    [
        (4, {"dur": TODAY}, "type must not be 4"),
        (-1, {"dur": TODAY}, "type must not be -1"),
        ("x", {"dur": TODAY}, "type must be an integer"),
        (None, {"dur": TODAY}, "type must be an integer"),
        (0, None, "param must be an object"),
        (0, "x", "param must be an object"),
        (0, {}, "param.dur is missing"),
        (2, {"dur": None}, "param.dur is missing"),
        (3, {"dur": 1}, "param.dur must be an object"),
        (0, {"dur": {}}, "param.dur.timeScope is missing"),
        (0, {"dur": {"timeScope": 4}}, "param.dur.timeScope must not be 4"),
        (0, {"dur": {"timeScope": "x"}}, "param.dur.timeScope must be an integer"),
        (0, {"dur": {"timeScope": 3}}, "param.dur.from is missing: timeScope 3 needs it"),
        (0, custom("2026-01-01", None), "param.dur.to is missing: timeScope 3 needs it"),
        (0, custom("2026-01-02", "2026-01-01"), "param.dur.to must not be before param.dur.from"),
        (0, custom("2025-01-01", "2026-02-05"), "param.dur must cover at most 400 days"),
        (0, custom("2026-02-29", "2026-03-01"), "param.dur.from must be a date like 2030-01-31"),
        (0, custom("2026-1-1", "2026-03-01"), "param.dur.from must be a date like 2030-01-31"),
        (0, custom("20260101", "2026-03-01"), "param.dur.from must be a date like 2030-01-31"),
        (0, custom("2026-01-01", "2026-01-01 00:00"), "param.dur.to must be a date like 2030-01-31"),
        (0, custom("0001-01-01", "2026-01-01"), "param.dur.from must be a date like 2030-01-31"),
        (0, custom("1969-12-31", "1970-01-01"), "param.dur.from must be a date like 2030-01-31"),
        (0, custom(20260101, "2026-01-01"), "param.dur.from must be a string"),
        (0, {"dur": TODAY, "category": 9, "Info": "all"}, "param.category must be an integer from 0 to 8"),
        (0, {"dur": TODAY, "category": -1, "Info": "all"}, "param.category must be an integer from 0 to 8"),
        (0, {"dur": TODAY, "category": "x", "Info": "all"}, "param.category must be an integer"),
        (0, {"dur": TODAY, "category": 1}, "param.Info is missing: category 1 needs it"),
        (0, {"dur": TODAY, "category": 1, "Info": None}, "param.Info is missing: category 1 needs it"),
        (0, {"dur": TODAY, "category": 1, "Info": ""}, "param.Info must not be empty"),
        (0, {"dur": TODAY, "category": 1, "Info": 7}, "param.Info must be a string"),
        (1, {"msgid": 7, "category": 2}, "param.Info is missing: category 2 needs it"),
        (1, {"msgid": -2}, "param.msgid must be an integer from -1 to 9007199254740992"),
        (1, {"msgid": 2**53 + 1}, "param.msgid must be an integer from -1 to 9007199254740992"),
        (1, {"msgid": "x"}, "param.msgid must be an integer"),
        (2, {"dur": TODAY, "usertype": 2}, "param.usertype must not be 2"),
        (2, {"dur": TODAY, "usertype": True}, "param.usertype must be an integer"),
    ],
)
def test_refused_requests(kind: Any, param: Any, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        read(kind, param)
    assert str(refused.value) == problem


def data_of_reply(found: StatisticsResponse) -> list[dict[str, Any]]:
    reply = msgspec.to_builtins(statistics_reply(found, ZoneInfo("Asia/Shanghai")))
    assert (reply["result"], set(reply)) == (0, {"result", "desc", "data"})
    data: list[dict[str, Any]] = reply["data"]
    return data


def test_rows_of_connections() -> None:
    day = ConnectionsRow(date="2026-01-31", average=2.345, maximum=4, minimum=1)
    value = ConnectionsRow(info="cm", average=2, maximum=4, minimum=0)
    assert data_of_reply(StatisticsResponse(connections=[day, value])) == [
        {"date": "2026-01-31", "avgCount": 2.35, "maxCount": 4, "minCount": 1},
        {"info": "cm", "avgCount": 2.0, "maxCount": 4, "minCount": 0},
    ]


def test_rows_of_broadcasts() -> None:
    counts = {"target": 9, "sent": 8, "received": 7, "shown": 6, "clicked": 5, "failed": 1, "expired": 2}
    row = BroadcastRow(msgid=7, sent_ms=NOW_MS)
    for name, count in counts.items():
        setattr(row, name, count)
    wanted = {"msgid": 7, "sendTime": "2026-09-21 22:13:30", **counts, "cancelled": 0}
    assert data_of_reply(StatisticsResponse(broadcasts=[row])) == [wanted]
    row.info = ""
    assert data_of_reply(StatisticsResponse(broadcasts=[row])) == [{**wanted, "info": ""}]
    row.channels.add(channel="webpush", simulated=True, sent=3, received=2, shown=1)
    by_channel = {"channel": "webpush", "simulated": True, "sent": 3, "received": 2, "shown": 1, "clicked": 0}
    assert data_of_reply(StatisticsResponse(broadcasts=[row])) == [{**wanted, "info": "", "channels": [by_channel]}]


def test_rows_of_users() -> None:
    rows = [UsersRow(date="2026-01-31", count=3), UsersRow(info="cm"), UsersRow(date="2026-01-31", info="x", count=1)]
    assert data_of_reply(StatisticsResponse(users=rows)) == [
        {"date": "2026-01-31", "count": 3},
        {"info": "cm", "count": 0},
        {"date": "2026-01-31", "info": "x", "count": 1},
    ]


def test_rows_of_logins() -> None:
    row = LoginsRow(date="2026-01-31", counts={1: 5, 30: 9})
    wanted = {"date": "2026-01-31", "1": 5, "2": 0, "3": 0, "4": 0, "5": 0, "6": 0, "7": 0, "30": 9}
    assert data_of_reply(StatisticsResponse(logins=[row])) == [wanted]
    row.info = "cm"
    assert data_of_reply(StatisticsResponse(logins=[row])) == [{**wanted, "info": "cm"}]


APPKEYS: list[Any] = [None, ["1"], {"android": "1"}, True, ""]


async def test_rules_of_the_appkey(installation: EdgeInstallation) -> None:
    for appkey in APPKEYS:
        body = {"appkey": appkey, "type": 0, "param": {"dur": TODAY}}
        answer = await installation.call("POST", "/v2/statistics", body)
        problem = "is missing" if appkey is None else "must be a string"
        assert answer["desc"].startswith(f"input error: appkey {problem}")


async def seven_records_behind(*_: object) -> int:
    return 7


class LongQuery:
    """Stands for statistics that take long; knows whether they were given up."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.given_up = asyncio.Event()

    async def answer(self, *_: Any) -> StatisticsResponse:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        raise AssertionError


async def test_every_type_from_the_delivery_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = (analytics.settings.AnalyticsSettings, analytics.main.build)
    async with edge_installation(tmp_path, {**BACKENDS, "analytics": role}) as installation:
        app = await installation.app()
        await installation.device(app, "t")

        async def asked(kind: int, appkey: Any = app.appkey, **param: Any) -> Any:
            """Ask until analytics has taken in the newest records, as 503 with Retry-After asks for."""
            body = {"appkey": appkey, "type": kind, "param": {"dur": TODAY, **param}}
            content = signed(body, installation.secrets[app.appkey])
            while (response := await installation.http.post("/v2/statistics", content=content)).status_code == 503:
                pass
            assert response.status_code == 200, response.text
            return response.json()

        today = "2026-09-21"
        assert (await asked(2))["data"] == [{"date": today, "count": 1}]
        assert (await asked(2, usertype=1))["data"] == [{"date": today, "count": 1}]
        assert (await asked(2, int(app.appkey), category=2, Info="cm"))["data"] != []
        sent = await installation.push(broadcast(app), app.appkey)
        (row,) = (await asked(1))["data"]
        assert (row["msgid"], row["sendTime"][:10]) == (sent["id"], today)
        assert (await asked(1, msgid=sent["id"]))["data"] == [row]
        (day,) = (await asked(0))["data"]
        assert (day["date"], set(day)) == (today, {"date", "avgCount", "maxCount", "minCount"})
        (logins,) = (await asked(3))["data"]
        assert set(logins) == {"date", "1", "2", "3", "4", "5", "6", "7", "30"}
        assert await asked(3, category=6, Info="all") == {
            "result": 400,
            "desc": "input error: param.category 6 is not possible with type 3",
        }

        content = signed({"appkey": app.appkey, "type": 0, "param": {"dur": TODAY}}, installation.secrets[app.appkey])
        query = LongQuery()
        with monkeypatch.context() as patched:
            patched.setattr("analytics.server.answer", query.answer)
            begun = asyncio.create_task(query.begun.wait())
            while not begun.done():
                leaving = asyncio.create_task(installation.http.post("/v2/statistics", content=content))
                await asyncio.wait([leaving, begun], return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            await query.given_up.wait()
        with monkeypatch.context() as patched:
            patched.setattr(Ingestion, "catch_up", seven_records_behind)
            unavailable = await installation.http.post("/v2/statistics", content=content)
        assert (unavailable.status_code, unavailable.headers["retry-after"]) == (503, "5")
        desc = "statistics and acknowledgements are not available at present"
        assert unavailable.json() == {"result": 503, "desc": desc}
        assert (await asked(0))["data"] == [day]
