"""Pages of pushes and devices, and the explanation of a push on a device, with a scripted analytics."""

import pytest

from console.shell import backend
from console.shell.backend import MAX_AGE_MS
from protos.analytics.v1.analytics_pb2 import (
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
    BroadcastRow,
    Category,
    ChannelCounts,
    Clause,
    LatestPushesRequest,
    ListPushDevicesRequest,
    PushOnDevice,
    PushSpeedRequest,
    PushSpeedResponse,
    PushStatesRequest,
    PushStatesResponse,
    SpeedLine,
    StateCount,
    StatisticsRequest,
    StatisticsResponse,
    TimelineEntry,
    ValueStates,
)
from protos.analytics.v1.details_pb2 import AudienceSummary, Detail
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, Platform
from protos.registry.v1.devices_pb2 import AddStags, Attributes, DeviceCommand, RegisterDevice, SetAlias
from services.domain.command_writer import CommandWriter, device_command
from tests.console.conftest import START_MS, Browser, ConsoleInstallation, text_of

MSGID = 236244332179456
REQUEST = '{"msgStyle":{"android":{"title":"<b>Storm</b>"},"basic":{"content":"Stay inside","is_notif":1}}}'


def audit(appkey: str, **changes: object) -> AuditPushResponse:
    answer = AuditPushResponse(
        msgid=MSGID,
        appkey=appkey,
        kind="multicast",
        audience="region 北京市",
        audience_count=1200,
        request_json=REQUEST,
        states=[
            StateCount(state="received", devices=1000),
            StateCount(state="failed", reason="no disk", devices=200),
        ],
        device=PushOnDevice(clauses=[Clause(text="region 北京市", holds=False, found="region 上海市")]),
    )
    answer.MergeFrom(AuditPushResponse(**changes))  # type: ignore[arg-type]
    return answer


async def push_of_app(
    console: ConsoleInstallation, name: str = "News", platform: "Platform.ValueType" = PLATFORM_ANDROID
) -> str:
    """Register an app of the team of viewer, with a push; return the appkey."""
    appkey = await console.app(name, await console.team(name, **{f"viewer-{name}": "viewer"}), platform)
    row = BroadcastRow(msgid=MSGID, sent_ms=START_MS, target=1200, sent=1100, received=1000, shown=7)
    console.analytics.statistics[appkey] = StatisticsResponse(broadcasts=[row])
    console.analytics.pushes[MSGID] = audit(appkey)
    return appkey


async def device(
    console: ConsoleInstallation, appkey: str, token: str, alias: str, platform: "Platform.ValueType" = PLATFORM_ANDROID
) -> None:
    writer = CommandWriter("test", console.log, console.peers, console.clock, 4)
    changes = (
        DeviceCommand(register=RegisterDevice(platform=platform, attributes=Attributes(region="上海市"))),
        DeviceCommand(set_alias=SetAlias(alias=alias)),
        DeviceCommand(add_stags=AddStags(stags=["sports & <news>"])),
    )
    for change in changes:
        change.appkey, change.token = appkey, token
        await writer.append_and_wait([device_command(change)])


async def viewer_of(console: ConsoleInstallation, name: str = "News") -> Browser:
    return await console.logged_in(f"viewer-{name}")


async def test_reasons_are_divided_by_a_category_and_lead_to_the_devices(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    path = f"/apps/{appkey}/pushes/{MSGID}"
    assert f'href="{path}/failures"' in (await viewer.get(path)).text
    assert f'href="{path}/failures"' not in (await viewer.get("/pushes")).text
    row = console.analytics.statistics[appkey].broadcasts[0]
    row.failed, row.expired = 1000, 234
    assert f'href="{path}/failures">1,234</a>' in (await viewer.get("/pushes", **{"Accept-Language": "en"})).text
    full = StateCount(state="dropped", reason="mailbox full", devices=3)
    values = [
        ValueStates(info="", states=[StateCount(state="pending", devices=4)]),
        ValueStates(info="北京市", states=[StateCount(state="received", devices=9), full]),
        ValueStates(info="<上海市>", states=[StateCount(state="expired", devices=5), full]),
    ]
    console.analytics.states[MSGID] = PushStatesResponse(appkey=appkey, values=values)
    page = await viewer.get(f"{path}/failures")
    assert 'data-name="dropped: more than 100 messages were waiting"' in page.text
    words = text_of(page)
    assert "dropped more than 100 messages were waiting expired" in words
    assert "<上海市> 8 3 37.5% 5 62.5% 北京市 12 3 25% 0 not reported 4 0 0 Each device" in words
    link = "devices?state=dropped&amp;reason=mailbox+full&amp;category=region&amp;info=%E5%8C%97%E4%BA%AC%E5%B8%82"
    assert link in page.text
    console.analytics.devices_in_state[MSGID, "dropped", "mailbox full"] = ["token-1", "token-2", "token-3"]
    devices = await viewer.get(f"{path}/{link.replace('&amp;', '&')}")
    assert "Region 北京市" in text_of(devices)
    assert f"{link.partition('?')[2]}&amp;after=2" in devices.text
    asked = console.analytics.asked[-1]
    assert isinstance(asked, ListPushDevicesRequest)
    assert (asked.category, asked.info) == (Category.CATEGORY_REGION, "北京市")
    console.analytics.states[MSGID] = PushStatesResponse(appkey=appkey, values=values[:1])
    assert "may still receive it" in text_of(await viewer.get(f"{path}/failures?category=brand"))
    assert console.analytics.asked[-1] == PushStatesRequest(
        msgid=MSGID, category=Category.CATEGORY_BRAND, allow_behind=True
    )
    assert (await viewer.get(f"{path}/failures?category=model")).status_code == 400
    console.analytics.states[MSGID].appkey = "another"
    assert (await viewer.get(f"{path}/failures")).status_code == 404


async def test_the_speed_of_a_push_is_a_part_of_its_page_and_a_page(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    path = f"/apps/{appkey}/pushes/{MSGID}"
    line = SpeedLine(event="received", devices=1000, half_ms=350, p90_ms=2400, p99_ms=90_000, all_ms=7_500_000)
    line.steps.extend([900, 50])
    console.analytics.speeds[MSGID] = PushSpeedResponse(
        appkey=appkey, begins_ms=START_MS, within_ms=6000, step_ms=100, ranges_ms=[6000, 60_000], lines=[line]
    )
    page = (await viewer.get(path)).text
    assert (f'hx-get="{path}/speed"' in page, f"push={MSGID}&amp;category=region" in page) == (True, True)
    part = await viewer.get(f"{path}/speed", **{"HX-Request": "true"})
    assert "<html" not in part.text
    assert "Received 1,000 350 ms 2.4 s 1.5 min 2.1 h" in text_of(part)
    assert f'href="{path}/speed?within=60000"' in part.text
    assert "Speed of push" in text_of(await viewer.get(f"{path}/speed?within=60000"))
    assert console.analytics.asked[-1] == PushSpeedRequest(msgid=MSGID, within_ms=60_000, allow_behind=True)
    console.analytics.speeds[MSGID].appkey = "another"
    statuses = [(await viewer.get(f"{path}/speed{query}")).status_code for query in ("?within=x", "")]
    assert statuses == [400, 404]
    console.analytics.speeds[MSGID] = PushSpeedResponse(appkey=appkey, within_ms=6000, lines=[line], one_in=20)
    assert "device in 20. As of 2026-09-21 22:13:20 . Load again" in text_of(await viewer.get(f"{path}/speed"))
    console.analytics.speeds[MSGID] = PushSpeedResponse(appkey=appkey, within_ms=6000)
    for headers in ({}, {"HX-Request": "true"}):
        assert "Nothing is sent yet" in text_of(await viewer.get(f"{path}/speed", **headers))


async def test_the_list_goes_on_beyond_its_first_page(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    (first,) = console.analytics.statistics[appkey].broadcasts
    for number in range(1, 101):
        row = console.analytics.statistics[appkey].broadcasts.add()
        row.CopyFrom(first)
        row.msgid = MSGID - number
    newest = await viewer.get("/pushes")
    assert str(MSGID - 99) in newest.text
    assert str(MSGID - 100) not in newest.text
    older = await viewer.get(f"/pushes?before={START_MS}-{MSGID - 99}")
    assert str(MSGID - 100) in older.text
    assert [page.text.count(">Older<") for page in (newest, older)] == [1, 0]
    assert [page.text.count("sse-connect") for page in (newest, older)] == [1, 0]


async def test_pushes_are_listed_found_and_shown_with_their_funnel(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    console.analytics.words[MSGID] = ("Storm", "Stay inside")
    listed = text_of(await viewer.get("/pushes"))
    assert f"Storm {MSGID} Stay inside 2026-09-21 22:13:20 News 1,200 1,000 83.3% 7 0 0% 0" in listed
    assert [request for request in console.analytics.asked if isinstance(request, StatisticsRequest)] == []
    assert "Stay inside" in text_of(await viewer.get("/pushes?q=storm"))
    for sought in ("nothing like it", MSGID + 1):
        missing = await viewer.get(f"/pushes?q={sought}")
        assert (missing.status_code, "Only broadcasts and multicasts are" in text_of(missing)) == (404, True)
    found = await viewer.get(f"/pushes?q={MSGID}")
    assert found.headers["location"] == f"/apps/{appkey}/pushes/{MSGID}"
    page = await viewer.get(found.headers["location"])
    assert "<b>Storm" not in page.text
    words = text_of(page)
    for expected in (
        "<b>Storm</b> Stay inside",
        "region 北京市 (1,200 devices)",
        "Sent 1,100 91.7%",
        "failed 200 no disk",
    ):
        assert expected in words, words
    assert "sse-connect" not in page.text
    console.analytics.pushes[MSGID].timeline.add(event="clicked", last_ms=START_MS)
    assert "sse-connect" in (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}")).text
    console.clock.move(600)
    assert "sse-connect" not in (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}")).text
    console.analytics.pushes[MSGID].states.add(state="pending", devices=3)
    page = await viewer.get(f"/apps/{appkey}/pushes/{MSGID}")
    assert f'sse-connect="/apps/{appkey}/pushes/{MSGID}/live"' in page.text
    rows = await viewer.get("/pushes", **{"HX-Request": "true"})
    assert rows.text.lstrip().startswith("<tr>")
    one = await viewer.get("/pushes?latest=1", **{"HX-Request": "true"})
    assert one.text.count("<tr>") == 1
    assert (await viewer.get("/pushes?latest=0")).status_code == 400
    expires = TimelineEntry(event="audience", detail="English", details=[Detail(until_ms=START_MS)])
    changes = AuditPushResponse(audience_summary=AudienceSummary(tokens=1200), timeline=[expires])
    console.analytics.pushes[MSGID].MergeFrom(changes)
    chinese = await viewer.http.get(f"/apps/{appkey}/pushes/{MSGID}", headers={"Accept-Language": "zh-CN"})
    assert "1,200 个 Token (1,200 台设备)" in text_of(chinese)
    assert "至 2026-09-21 22:13:20" in text_of(chinese)


async def test_a_push_that_push_services_took_over_is_counted_by_channel(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    viewer, path = await viewer_of(console), f"/apps/{appkey}/pushes/{MSGID}"
    assert "By push channel" not in text_of(await viewer.get(path))
    channels = [
        ChannelCounts(channel="own", sent=1000, received=900, shown=7),
        ChannelCounts(channel="webpush", simulated=True, sent=100, received=2),
        ChannelCounts(channel="apns", sent=5),
    ]
    console.analytics.pushes[MSGID].channels.extend(channels)
    console.analytics.statistics[appkey].broadcasts[0].channels.extend(channels)
    page = text_of(await viewer.get(path))
    assert "own connections 1,000 900 7 0 simulator of Web Push 100 2 0 0 Apple's push service 5 – – – What a" in page
    listed = text_of(await viewer.get("/pushes"))
    assert "own connections: 1,000, simulator of Web Push: 100" in listed


async def test_a_push_of_another_team_is_not_found_in_any_way(console: ConsoleInstallation) -> None:
    await push_of_app(console, "Others")
    own = await push_of_app(console)
    console.analytics.pushes[MSGID].appkey = "another"
    viewer = await viewer_of(console)
    assert (await viewer.get(f"/apps/{own}/pushes/{MSGID}")).status_code == 404
    refused = await viewer.get(f"/pushes?q={MSGID}")
    assert (refused.status_code, "No push of your apps" in text_of(refused)) == (404, True)
    assert "Others" not in text_of(refused)
    for odd in ("0", "-1", "x", "9" * 30, "9" * 5000, "٣"):
        assert (await viewer.get(f"/apps/{own}/pushes/{odd}")).status_code == 404
        assert (await viewer.get(f"/pushes?q={odd}")).status_code == 404


async def test_the_reason_is_one_sentence_with_the_clauses_behind_it(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    viewer = await viewer_of(console)
    assert "Why did a user not get it?" in text_of(await viewer.get("/"))
    asked = await viewer.get(f"/why?appkey={appkey}&name=alice&push=")
    choice = await viewer.get(asked.headers["location"])
    assert f"/apps/{appkey}/why?name=alice&amp;push={MSGID}" in choice.text
    answer = text_of(await viewer.get(f"/apps/{appkey}/why?name=alice&push={MSGID}"))
    assert "Not in the audience: the push was for region 北京市, and the device had region 上海市." in answer
    asked_of = AuditPushRequest(msgid=MSGID, token="token-1", allow_behind=True, device_only=True)
    assert console.analytics.asked[-1] == asked_of


async def test_a_device_is_found_by_token_or_alias_with_what_waits(console: ConsoleInstallation) -> None:
    appkey = await push_of_app(console)
    await device(console, appkey, "token-1", "alice")
    console.analytics.devices["token-1"] = AuditDeviceResponse(
        timeline=[
            TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="connected", count=1),
            TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="audience", count=1, msgid=5, detail="push 5"),
            TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="audience", count=1, msgid=6, detail="push 6"),
            *(
                TimelineEntry(
                    first_ms=START_MS,
                    last_ms=START_MS,
                    event=event,
                    count=1,
                    msgid=msgid,
                    push_expires_ms=START_MS + expires_in_ms,
                    push_cancelled_ms=cancelled_ms,
                )
                for msgid, events, expires_in_ms, cancelled_ms in (
                    (7, ["audience"], 0, 0),
                    (8, ["audience"], 86_400_000, 0),
                    (9, ["audience"], 0, START_MS),
                    (10, ["audience", "sent"], 0, 0),
                )
                for event in events
            ),
            TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="received", count=1, msgid=5, detail="message 5"),
        ]
    )
    viewer = await viewer_of(console)
    found = await viewer.get(f"/devices?appkey={appkey}&name=alice")
    by_alias = await viewer.get(found.headers["location"])
    by_token = await viewer.get(f"/apps/{appkey}/device?name=token-1")
    for page in (by_alias, by_token):
        words = text_of(page)
        for expected in (
            "token-1",
            "sports & <news>",
            "上海市",
            "online since 2026",
            "6 offline, waiting",
            "5 received",
            "7 expired",
            "8 offline, waiting",
            "9 cancelled",
            "10 sent",
        ):
            assert expected in words, words
    await device(console, appkey, "token-2", "alice")
    both = text_of(await viewer.get(f"/apps/{appkey}/device?name=alice"))
    assert ("token-1" in both, "token-2" in both) == (True, True)


async def test_while_analytics_is_away_pages_say_so(console: ConsoleInstallation) -> None:
    await push_of_app(console)
    viewer = await viewer_of(console)
    console.analytics.is_away = True
    page = await viewer.get("/pushes")
    assert (page.status_code, "does not answer at present" in text_of(page)) == (503, True)
    assert "tries again by itself" in text_of(page)
    assert "tries again by itself" not in text_of(await viewer.get("/nothing"))
    fragment = await viewer.get("/pushes?latest=5", **{"HX-Request": "true"})
    assert (fragment.status_code, fragment.text.startswith('<div class="alert bad"')) == (503, True)
    assert (await viewer.get("/")).status_code == 200
    assert (await viewer.get("/apps")).status_code == 200


async def test_readers_share_answers_until_somebody_changes_something(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MAX_AGE_MS", MAX_AGE_MS)
    appkey = await push_of_app(console)
    viewer = await viewer_of(console)
    for _ in range(3):
        assert (await viewer.get("/pushes")).status_code == 200
    asked = [request for request in console.analytics.asked if isinstance(request, LatestPushesRequest)]
    assert len(asked) == 1
    console.analytics.words[MSGID] = ("Storm", "")
    assert "Storm" not in (await viewer.get(f"/pushes?appkey={appkey}")).text
    await viewer.post("/account", display_name="Vera", locale="", zone="")
    assert "Storm" in (await viewer.get("/pushes")).text
