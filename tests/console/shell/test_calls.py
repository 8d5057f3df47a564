"""Answers and changes of the calls of `/console/v1`, with a real registry, real accounts and a scripted analytics."""

from typing import Any

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import ListTeamsRequest, ListTokensRequest, UpdateTeamRequest
from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    AuditAppResponse,
    AuditPushResponse,
    BroadcastRow,
    ChannelCounts,
    ConnectionsRow,
    PushSpeedResponse,
    PushStatesResponse,
    StateCount,
    StatisticsResponse,
    TimelineEntry,
    ValueStates,
)
from protos.analytics.v1.analytics_pb2 import SpeedLine as StoredSpeedLine
from services.domain.topics import LOG_INS, decode
from services.log.port import Partition
from tests.console.conftest import OPERATOR, START_MS, ConsoleInstallation, Program, Programs
from tests.console.pushes.test_pages import MSGID, audit, device, push_of_app
from tests.console.send.test_pages import sent, tasks

SENT_TO_ALIAS = {"userScope": 4, "alias": ["user-0", "nobody"]}
TO_ALL = {"userScope": 1}


def push(appkey: str, target: dict[str, Any], **option: Any) -> dict[str, Any]:
    style = {"basic": {"content": "Stay inside", "is_notif": 1}, "android": {"title": "Storm"}}
    body: dict[str, Any] = {"sendTo": {"appkey": {"android": appkey}, **target}, "msgStyle": style}
    return body | ({"option": option} if option else {})


async def app_of_team(console: ConsoleInstallation, programs: Programs, role: str, devices: int = 2) -> tuple[Any, ...]:
    """Return an app of a team with devices, and a program with a token of this role."""
    team_id = await console.team("News")
    appkey = await console.app(team_id=team_id)
    for number in range(devices):
        await device(console, appkey, f"token-{number}", f"user-{number}")
    return team_id, appkey, await programs.program(team_id, role)


async def demand_approval(console: ConsoleInstallation, team_id: str) -> None:
    rules = ApprovalRules(broadcasts=True)
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))


async def actors(console: ConsoleInstallation, appkey: str) -> list[tuple[str, str, int]]:
    """Return actor, device and message id of each recorded read of personal data of the app."""
    page = await console.log.select({Partition(LOG_INS.name, 0): 0}, 100)
    facts = [decode(record) for record in page.records]
    return [
        (fact.meta.origin.actor, fact.data_read.name, fact.data_read.msgid)
        for fact in facts
        if fact.HasField("data_read") and fact.data_read.appkey == appkey
    ]


async def test_the_speed_of_a_push_is_returned(console: ConsoleInstallation, programs: Programs) -> None:
    appkey = await push_of_app(console)
    team_id = next(team.team.team_id for team in (await console.accounts.ListTeams(ListTeamsRequest())).teams)
    viewer = await programs.program(team_id, "viewer")
    line = StoredSpeedLine(event="received", devices=3, half_ms=20, p90_ms=30, p99_ms=30, all_ms=30, steps=[2, 1])
    stored = PushSpeedResponse(appkey=appkey, begins_ms=START_MS, within_ms=6000, step_ms=100, lines=[line])
    console.analytics.speeds[MSGID] = stored
    speed = (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}/speed?within_ms=6000")).json()
    assert speed["lines"] == [
        {"event": "received", "devices": 3, "half_ms": 20, "p90_ms": 30, "p99_ms": 30, "all_ms": 30, "steps": [2, 1]}
    ]
    assert (speed["begins_ms"], speed["within_ms"], speed["step_ms"]) == (START_MS, 6000, 100)
    assert (await viewer.get(f"/apps/{appkey}/pushes/1/speed")).status_code == 404
    console.analytics.devices_in_state = {(MSGID, "failed", ""): ["token-1", "token-2", "token-3"]}
    console.analytics.pushes[MSGID] = AuditPushResponse(msgid=MSGID, appkey=appkey)
    path = f"/apps/{appkey}/pushes/{MSGID}/devices"
    page = (await viewer.get(path, state="failed")).json()
    assert page["devices"] == [{"msgid": MSGID, "token": token} for token in ("token-1", "token-2")]
    assert (await viewer.get(path, state="failed", cursor=page["next"])).json()["devices"][0]["token"] == "token-3"
    assert (await viewer.get(path, state="elsewhere")).status_code == 400
    states = [StateCount(state="failed", reason="no disk", devices=3)]
    values = [ValueStates(info="北京市", states=states)]
    console.analytics.states[MSGID] = PushStatesResponse(appkey=appkey, values=values, records_behind=2)
    assert (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}/states", category="region")).json() == {
        "values": [{"info": "北京市", "states": [{"state": "failed", "reason": "no disk", "devices": 3}]}],
        "records_behind": 2,
    }
    assert (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}/states")).status_code == 400


async def test_a_push_to_too_many_devices_is_not_sent(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    path = f"/apps/{appkey}/pushes?at_most="
    refused = await sender.post(f"{path}1", push(appkey, TO_ALL))
    assert (refused.status_code, "more devices (2) than it may (1)" in refused.json()["detail"]) == (409, True)
    assert await sent(console) == []
    assert (await sender.post(f"{path}2", push(appkey, TO_ALL))).json()["devices"] == 2


async def test_a_timed_push_is_a_task_that_is_listed_and_cancelled(
    console: ConsoleInstallation, programs: Programs
) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    keys = [
        (await sender.post(f"/apps/{appkey}/pushes", push(appkey, TO_ALL, timed=2, send_time_interval=in_s))).json()
        for in_s in (7200, 3600, 9000)
    ]
    assert {made["outcome"] for made in keys} == {"scheduled"}
    first = (await sender.get("/tasks", limit=2)).json()
    second = (await sender.get("/tasks", limit=2, cursor=first["next"])).json()
    listed = first["tasks"] + second["tasks"]
    assert [task["task_key"] for task in listed] == [keys[number]["task_key"] for number in (1, 0, 2)]
    assert (second["next"], listed[0]["pushes"][0]["title"]) == ("", "Storm")
    key = keys[0]["task_key"]
    assert (await sender.post(f"/apps/{appkey}/tasks/{key}/cancel")).json() == {"task_key": key, "cancelled": True}
    assert (await sender.get(f"/apps/{appkey}/tasks/{key}")).json()["status"] == "cancelled"
    assert (await sender.post(f"/apps/{appkey}/tasks/{key}/cancel")).status_code == 409
    cancels = [command.cancel for command in await tasks(console) if command.HasField("cancel")]
    assert [cancel.appkeys for cancel in cancels] == [[appkey]] * len(cancels) != []


async def test_a_push_that_needs_approval_is_a_draft_which_no_token_approves(
    console: ConsoleInstallation, programs: Programs
) -> None:
    team_id, appkey, sender = await app_of_team(console, programs, "sender")
    await demand_approval(console, team_id)
    body = push(appkey, TO_ALL)
    made = [(await sender.post(f"/apps/{appkey}/pushes", body, Idempotency_Key="k")).json() for _ in range(2)]
    assert made[0] == made[1]
    assert (made[0]["outcome"], made[0]["msgids"]) == ("draft", {})
    path = f"/drafts/{team_id}/{made[0]['draft_id']}"
    draft = (await sender.get(path)).json()
    assert (draft["status"], draft["is_broadcast"], draft["estimated_devices"]) == ("waiting", True, 2)
    assert '"Storm"' in draft["request_json"]
    (listed,) = (await sender.get("/drafts", waiting="true")).json()["drafts"]
    assert (listed["draft_id"], listed["title"]) == (draft["draft_id"], "Storm")
    found = [(await sender.get("/drafts", words=words)).json()["drafts"] for words in ("sTORM", "Sun")]
    assert found == [[listed], []]
    head = await programs.program(team_id, "administrator")
    assert (await head.post(f"{path}/approval")).status_code == 404
    assert (await sender.post(f"{path}/withdraw")).json()["status"] == "withdrawn"
    assert (await sender.post(f"{path}/withdraw")).status_code == 409
    assert (await sender.get("/drafts", waiting="true")).json() == {"drafts": [], "next": ""}
    assert await sent(console) == []


async def test_a_push_names_apps_of_the_team_alone(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender", devices=0)
    other = await console.app("Others", await console.team("Others"))
    for body in (push(other, TO_ALL), push(appkey, TO_ALL) | {"sendTo": {"appkey": {"android": other}, **TO_ALL}}):
        assert (await sender.post(f"/apps/{appkey}/pushes", body)).status_code == 403
    for wrong in ({}, {"sendTo": 7}, push(appkey, {"userScope": 99})):
        answer = await sender.post(f"/apps/{appkey}/estimate", wrong)
        assert (answer.status_code, answer.json()["title"]) == (400, "Bad Request")


async def test_pushes_are_listed_shown_and_cancelled(console: ConsoleInstallation, programs: Programs) -> None:
    appkey = await push_of_app(console)
    team_id = (await console.accounts.ListTeams(ListTeamsRequest())).teams[0].team.team_id
    sender = await programs.program(team_id, "sender")
    for number in range(1, 3):
        row = console.analytics.statistics[appkey].broadcasts.add()
        row.CopyFrom(console.analytics.statistics[appkey].broadcasts[0])
        row.msgid = MSGID + number
    first = (await sender.get("/pushes", limit=2)).json()
    second = (await sender.get("/pushes", limit=2, cursor=first["next"])).json()
    listed = [row["msgid"] for row in first["pushes"] + second["pushes"]]
    assert listed == [MSGID + 2, MSGID + 1, MSGID]
    none = {"pushes": [], "next": "", "records_behind": 0}
    assert (await sender.get("/pushes", from_ms=START_MS + 1)).json() == none
    console.analytics.words[MSGID + 1] = ("Storm", "Stay inside")
    (row,) = (await sender.get("/pushes", words="storm")).json()["pushes"]
    assert (row["msgid"], row["title"], row["text"]) == (MSGID + 1, "Storm", "Stay inside")
    assert (await sender.get("/pushes", cursor="1")).status_code == 400
    shown = (await sender.get(f"/apps/{appkey}/pushes/{MSGID}")).json()
    assert shown == (await sender.get(f"/pushes/{MSGID}")).json()
    assert [step["devices"] for step in shown["funnel"]] == [1200, 1100, 1000, 7, 0]
    assert shown["text"] == "Stay inside"
    cancelled = (await sender.post(f"/apps/{appkey}/pushes/{MSGID}/cancel")).json()
    assert cancelled == {"appkey": appkey, "msgid": MSGID, "cancelled": True}
    (command,) = await sent(console)
    assert command.cancel.msgid == MSGID


async def test_each_look_at_a_device_is_in_the_audit_with_the_token(
    console: ConsoleInstallation, programs: Programs
) -> None:
    _, appkey, viewer = await app_of_team(console, programs, "viewer", devices=1)
    console.analytics.pushes[MSGID] = audit(appkey)
    found = (await viewer.get(f"/apps/{appkey}/devices", name="user-0")).json()["devices"]
    assert [(entry["token"], entry["attributes"]) for entry in found] == [("token-0", {"region": "上海市"})]
    assert (await viewer.get(f"/apps/{appkey}/device-history", token="token-0")).json()["timeline"] == []
    why = (await viewer.get(f"/apps/{appkey}/why", name="user-0", msgid=MSGID)).json()
    assert why["devices"][0]["sentence"] == (
        "Not in the audience: the push was for region 北京市, and the device had region 上海市."
    )
    assert (await viewer.get(f"/pushes/{MSGID}", token="token-0")).json()["device"]["in_audience"] is False
    assert (await viewer.get(f"/apps/{appkey}/why", name="nobody")).status_code == 404
    reader = f"token/{(await viewer.get('/token')).json()['token_id']}"
    looked = [("user-0", 0), ("token-0", 0), ("user-0", MSGID), ("token-0", MSGID), ("nobody", 0)]
    assert await actors(console, appkey) == [(reader, name, msgid) for name, msgid in looked]


async def test_no_device_is_shown_while_the_audit_cannot_be_written(
    console: ConsoleInstallation, programs: Programs
) -> None:
    _, appkey, viewer = await app_of_team(console, programs, "viewer", devices=1)
    await viewer.get("/token")
    with console.servers["accounts"].away():
        answer = await viewer.get(f"/apps/{appkey}/devices", name="user-0")
    assert (answer.status_code, "token-0" in answer.text) == (503, False)
    assert answer.headers["retry-after"] == "2"


async def test_statistics_timeline_audit_and_team(console: ConsoleInstallation, programs: Programs) -> None:
    team_id, appkey, viewer = await app_of_team(console, programs, "viewer", devices=0)
    rows = [ConnectionsRow(date="2026-09-21", average=1.5, maximum=3, minimum=1)]
    console.analytics.statistics[appkey] = StatisticsResponse(connections=rows)
    counts = {"average": 1.5, "maximum": 3.0, "minimum": 1.0}
    expected: dict[str, Any] = {"date": "2026-09-21", "info": None, "msgid": None, "counts": counts, "channels": []}
    assert (await viewer.get(f"/apps/{appkey}/statistics")).json() == {"kind": "connections", "rows": [expected]}
    of_channel: dict[str, Any] = {
        "channel": "webpush",
        "simulated": True,
        "sent": 2,
        "received": 1,
        "shown": 0,
        "clicked": 0,
    }
    broadcast = BroadcastRow(msgid=MSGID, sent=2, channels=[ChannelCounts(**of_channel)])
    console.analytics.statistics[appkey] = StatisticsResponse(broadcasts=[broadcast])
    (row,) = (await viewer.get(f"/apps/{appkey}/statistics", kind="broadcasts")).json()["rows"]
    assert (len(row["counts"]), row["channels"]) == (8, [of_channel])
    entry = TimelineEntry(first_ms=1, last_ms=1, event="push", count=2)
    console.analytics.timelines[appkey] = AuditAppResponse(timeline=[entry])
    timeline = (await viewer.get(f"/apps/{appkey}/timeline", from_ms=0, to_ms=START_MS)).json()
    assert [entry["event"] for entry in timeline["timeline"]] == ["push"]
    console.analytics.actions = [ActionEntry(time_ms=number, action="push sent", appkey=appkey) for number in (3, 2, 1)]
    first = (await viewer.get("/audit")).json()
    second = (await viewer.get("/audit", cursor=first["next"])).json()
    assert [entry["time_ms"] for entry in first["actions"] + second["actions"]] == [3, 2, 1]
    team = (await viewer.get(f"/teams/{team_id}")).json()
    assert (team["name"], team["appkeys"], team["members"]) == ("News", [appkey], [])
    assert [known["team_id"] for known in (await viewer.get("/teams")).json()["teams"]] == [team_id]


async def test_wrong_parameters_are_named(console: ConsoleInstallation, programs: Programs) -> None:
    program = await programs.program(await console.team("News"), "viewer")
    expected = {
        "/pushes?limit=0": "limit: Expected `int` >= 1",
        "/pushes?limit=x": "limit: Expected `int`, got `str`",
        "/pushes?limit=1&limit=2": "a parameter is given twice",
        "/pushes?appkey=%00": "appkey must not contain NUL",
        "/pushes?unknown=1": "Object contains unknown field `unknown`",
        "/pushes?cursor=x": "cursor: give the `next` of the page before, or nothing",
        "/audit?first=2026-99-99": "give days as YYYY-MM-DD",
    }
    answers = {path: (await program.get(path)).json() for path in expected}
    assert {path: answer["detail"] for path, answer in answers.items()} == expected
    assert {answer["status"] for answer in answers.values()} == {400}


async def test_wrong_bodies_are_refused(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    path = f"/console/v1/apps/{await console.app(team_id=team_id)}/pause"
    head = (await programs.program(team_id, "administrator")).http
    json_type = {"Content-Type": "application/json"}
    answers = [
        await head.post(path, content=b'{"reason": 7}', headers=json_type),
        await head.post(path, content=b'{"reasons": ""}', headers=json_type),
        await head.post(path, content=b"[" * 10_000, headers=json_type),
        await head.post(path, content=b"reason=x", headers={"Content-Type": "application/x-www-form-urlencoded"}),
        await head.post(path, content=b" " * 65_537, headers=json_type),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400, 415, 413]
    assert (await head.post(path)).status_code == 200


async def test_the_use_of_a_token_is_noted_once_an_hour(console: ConsoleInstallation, programs: Programs) -> None:
    team_id = await console.team("News")
    program: Program = await programs.program(team_id, "viewer")
    used = []
    for seconds in (0, 60, 3600):
        console.clock.move(seconds)
        await program.get("/token")
        (token,) = (await console.accounts.ListTokens(ListTokensRequest(team_ids=[team_id]))).tokens
        used.append(token.last_used_ms - START_MS)
    assert used == [0, 0, 3_660_000]
