"""The page of statistics: each type as a table, a chart where days are counted, and CSV."""

import csv
import io
import json
import re
from html import unescape

from protos.analytics.v1.analytics_pb2 import (
    CATEGORY_BRAND,
    CATEGORY_CHANNEL,
    CATEGORY_REGION,
    BroadcastRow,
    ChannelCounts,
    ConnectionsRow,
    Dates,
    LoginsRow,
    StatisticsKind,
    StatisticsRequest,
    StatisticsResponse,
    UserKind,
    UsersRow,
)
from tests.console.conftest import Browser, ConsoleInstallation, text_of

DAYS = Dates(**{"from": "2026-09-15", "to": "2026-09-21"})
"""The last seven days of the installation's zone at the start of the tests."""


async def viewer_of_app(console: ConsoleInstallation) -> tuple[str, Browser]:
    appkey = await console.app("News", await console.team("News", viewer="viewer"))
    return appkey, await console.logged_in("viewer")


def last_asked(console: ConsoleInstallation) -> StatisticsRequest:
    asked = console.analytics.asked[-1]
    assert isinstance(asked, StatisticsRequest)
    return asked


async def test_numbers_by_day_are_drawn_and_lead_on(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    console.analytics.statistics[appkey] = StatisticsResponse(
        connections=[
            ConnectionsRow(date="2026-09-20", average=1200.26, maximum=1500, minimum=900),
            ConnectionsRow(date="2026-09-21", average=7, maximum=8, minimum=6),
        ]
    )
    page = await viewer.get("/statistics")
    asked = last_asked(console)
    assert (asked.appkey, asked.kind, asked.dates) == (appkey, StatisticsKind.STATISTICS_KIND_CONNECTIONS, DAYS)
    assert not asked.HasField("info")
    assert "2026-09-20 1,200.3 1,500 900" in text_of(page)
    series = re.search(r'data-series="([^"]*)"', page.text)
    assert series
    assert json.loads(unescape(series[1])) == [[1200.3, 7], [1500, 8], [900, 6]]
    day = re.search(r'href="(/statistics\?[^"]*first=2026-09-20[^"]*last=2026-09-20[^"]*)"', page.text)
    assert day
    await viewer.get(unescape(day[1]))
    assert last_asked(console).dates == Dates(**{"from": "2026-09-20", "to": "2026-09-20"})
    chinese = await viewer.get("/statistics", **{"Accept-Language": "zh-CN"})
    assert "在线设备" in text_of(chinese)


async def test_categories_and_all_types_are_asked_for_as_the_interface_does(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    answers = console.analytics.statistics
    answers[appkey] = StatisticsResponse(
        users=[UsersRow(info="<b>北京市", count=30), UsersRow(info="", count=10)],
    )
    page = await viewer.get("/statistics?kind=users&category=region&users=cumulative")
    asked = last_asked(console)
    assert (asked.category, asked.info, asked.user_kind) == (CATEGORY_REGION, "all", UserKind.USER_KIND_CUMULATIVE)
    assert ("<b>北京市 30" in text_of(page), "not reported 10" in text_of(page)) == (True, True)
    assert "<b>" not in page.text
    answers[appkey] = StatisticsResponse(logins=[LoginsRow(date="2026-09-21", counts={1: 5, 30: 9})])
    assert "2026-09-21 5 0 0 0 0 0 0 9" in text_of(await viewer.get("/statistics?kind=logins"))
    answers[appkey] = StatisticsResponse(broadcasts=[BroadcastRow(msgid=9, target=4, sent=3, clicked=1)])
    page = await viewer.get("/statistics?kind=broadcasts&push=9")
    assert (last_asked(console).msgid, f'href="/apps/{appkey}/pushes/9"' in page.text) == (9, True)
    for wrong in (
        "kind=all",
        "category=colour",
        "kind=broadcasts&push=x",
        f"kind=broadcasts&push={'9' * 5000}",
        "kind=broadcasts&category=region",
    ):
        for path in ("/statistics", "/statistics.csv"):
            assert (await viewer.get(f"{path}?{wrong}")).status_code == 400, wrong


async def test_each_number_links_to_its_details(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    answers = console.analytics.statistics

    async def links(query: str) -> list[str]:
        """Return the paths of the numbers on the page; "" for a number without one."""
        page = await viewer.get(f"/statistics?appkey={appkey}&{query}")
        cells = re.findall(r'<td class="count"[^>]*>(?:<a href="([^"]+)">)?[0-9.,]+', page.text)
        return [unescape(path) for path in cells]

    answers[appkey] = StatisticsResponse(connections=[ConnectionsRow(date="2026-09-20", maximum=8)])
    by_day = await links("kind=connections&first=2026-09-14&last=2026-09-21")
    assert (len(by_day), len(set(by_day))) == (3, 1)
    (of_day, *_) = await links(by_day[0].partition("?")[2])
    assert "first=2026-09-20&last=2026-09-20" in of_day
    answers[appkey] = StatisticsResponse(connections=[ConnectionsRow(info=info, maximum=8) for info in ("a&b", "")])
    of_values = await links(of_day.partition("?")[2])
    assert (last_asked(console).category, last_asked(console).info) == (CATEGORY_CHANNEL, "all")
    assert of_values[3:] == [""] * 3
    await links(of_values[0].partition("?")[2])
    assert last_asked(console).info == "a&b"
    answers[appkey] = StatisticsResponse(connections=[ConnectionsRow(info="a&b", maximum=8)])
    assert await links(of_values[0].partition("?")[2]) == [""] * 3
    row = BroadcastRow(msgid=9, info="x", target=9, sent=3, failed=2, cancelled=4)
    answers[appkey] = StatisticsResponse(broadcasts=[row])
    reasons = f"/apps/{appkey}/pushes/9/failures"
    by_region = f"/statistics?appkey={appkey}&kind=broadcasts&push=9&category=region"
    page = await viewer.get(by_region)
    assert (page.text.count(f'href="/apps/{appkey}/pushes/9"'), "Broadcasts 9 Region" in text_of(page)) == (1, True)
    assert await links("kind=broadcasts") == [by_region, by_region, "", "", "", reasons, "", reasons]
    by_brand = await links("kind=broadcasts&push=9&category=brand")
    assert by_brand[5] == f"{reasons}?category=brand"
    assert (await links(by_brand[0].partition("?")[2]))[:2] == ["", ""]
    assert (last_asked(console).category, last_asked(console).info) == (CATEGORY_BRAND, "x")


async def test_broadcasts_are_counted_by_channel_once_one_of_them_left_by_another(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    channels = [ChannelCounts(channel="own", sent=1), ChannelCounts(channel="webpush", sent=2, received=1)]
    divided = BroadcastRow(msgid=9, target=4, sent=3, received=1, channels=channels)
    answer = StatisticsResponse(broadcasts=[divided, BroadcastRow(msgid=8, target=2, sent=2)])
    console.analytics.statistics[appkey] = answer
    page = await viewer.get("/statistics?kind=broadcasts")
    by_channel = text_of(page).partition("By push channel ")[2]
    columns, own, web = (
        "Push Push channel Sent Received Shown Clicked",
        "9 own connections 1 0 0 0",
        "9 Web Push 2 1 0 0",
    )
    assert by_channel.startswith(f"{columns} {own} {web} 8 own connections 2 0 0 0 Days begin")
    head, *rows = csv.reader(
        io.StringIO((await viewer.get("/statistics.csv?kind=broadcasts")).content.decode("utf-8-sig"))
    )
    assert head[11:] == [
        *(f"own connections: {name}" for name in ("Sent", "Received", "Shown", "Clicked")),
        *(f"Web Push: {name}" for name in ("Sent", "Received", "Shown", "Clicked")),
    ]
    assert [row[11:] for row in rows] == [[*"10002100"], [*"20000000"]]


async def test_the_file_has_the_numbers_of_the_page_and_no_foreign_app(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    foreign = await console.app("Foreign")
    console.analytics.statistics[appkey] = StatisticsResponse(users=[UsersRow(info="=cmd", count=30)])
    file = await viewer.get("/statistics.csv?kind=users&category=brand&first=2026-09-20&last=2026-09-20")
    assert file.headers["content-disposition"] == 'attachment; filename="users-2026-09-20-2026-09-20.csv"'
    rows = list(csv.reader(io.StringIO(file.content.decode("utf-8-sig"))))
    assert rows == [["Day", "brand", "Push", "Devices"], ["", "'=cmd", "", "30"]]
    asked = len(console.analytics.asked)
    assert (await viewer.get(f"/statistics.csv?appkey={foreign}")).status_code == 404
    assert "Foreign" not in text_of(await viewer.get(f"/statistics?appkey={foreign}"))
    assert len(console.analytics.asked) == asked


async def test_values_of_a_category_stand_by_size(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    counts = {"上海市": 5, "": 99, "北京市": 30, "云南省": 5}
    rows = [UsersRow(info=info, count=count) for info, count in counts.items()]
    console.analytics.statistics[appkey] = StatisticsResponse(users=rows)
    page = text_of(await viewer.get("/statistics?kind=users&category=region"))
    assert page.index("北京市 30") < page.index("上海市 5") < page.index("not reported 99")


async def test_values_of_a_category_stand_by_size_on_each_day(console: ConsoleInstallation) -> None:
    appkey, viewer = await viewer_of_app(console)
    found = (
        ("2026-09-20", "", 9),
        ("2026-09-20", "上海市", 1),
        ("2026-09-20", "北京市", 5),
        ("2026-09-21", "上海市", 7),
    )
    rows = [LoginsRow(date=date, info=info, counts={1: devices}) for date, info, devices in found]
    console.analytics.statistics[appkey] = StatisticsResponse(logins=rows)
    page = await viewer.get("/statistics?kind=logins&category=region")
    assert re.findall(r'<th scope="row">(?:<a [^>]*>)?([^<]+)<', page.text) == [
        *("2026-09-20", "北京市", "2026-09-20", "上海市", "2026-09-20", "not reported"),
        *("2026-09-21", "上海市"),
    ]
