"""The export of everything that is held about a person, with a real registry and a scripted analytics."""

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from carillon.main import main
from protos.accounts.v1.accounts_pb2 import DataRead
from protos.accounts.v1.service_pb2 import SetTestDevicesRequest
from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    AuditActionsRequest,
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushResponse,
    PushOnDevice,
    TimelineEntry,
)
from protos.analytics.v1.details_pb2 import AliasTakenAway, Detail
from tests.console.audit.test_pages import data_reads
from tests.console.conftest import OPERATOR, START_MS, ConsoleInstallation, Program, Programs, text_of
from tests.console.pushes.test_pages import MSGID
from tests.console.shell.test_calls import app_of_team, demand_approval, push

LISTS = ("devices", "test_devices", "tasks", "drafts", "actions", "history")


async def everything(program: Program, appkey: str, name: str, limit: int = 2) -> dict[str, list[Any]]:
    """Return the lists of all pages together."""
    found: dict[str, list[Any]] = {field: [] for field in LISTS}
    cursor = ""
    while True:
        answer = await program.get(f"/apps/{appkey}/person", name=name, cursor=cursor, limit=limit)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        for field in LISTS:
            found[field] += page[field]
        if not (cursor := page["next"]):
            return found


def history(appkey: str, token: str) -> AuditDeviceResponse:
    taken = Detail(alias_taken=AliasTakenAway(token="thief"))
    timeline = [
        TimelineEntry(first_ms=START_MS, last_ms=START_MS, event="registered", count=1, detail="android"),
        TimelineEntry(first_ms=START_MS + 1, event="audience", msgid=MSGID, push_title="Storm"),
        TimelineEntry(first_ms=START_MS + 2, event="received", msgid=MSGID),
        TimelineEntry(first_ms=START_MS + 3, event="audience", msgid=MSGID + 1),
        TimelineEntry(first_ms=START_MS + 4, event="asked", detail="taken by thief", details=[taken]),
    ]
    return AuditDeviceResponse(appkey=appkey, token=token, timeline=timeline)


async def person_of_app(console: ConsoleInstallation, programs: Programs) -> tuple[str, Program]:
    """Return an app with a person, named by a push, a task, a draft, a test device and the audit, and by others not."""
    team_id, appkey, administrator = await app_of_team(console, programs, "administrator")
    sender = await programs.program(team_id, "sender")
    for alias in ("user-0", "user-1"):
        target = {"userScope": 4, "alias": [alias, "third"]}
        await sender.post(f"/apps/{appkey}/pushes", push(appkey, target, timed=2, send_time_interval=3600))
    await demand_approval(console, team_id)
    await sender.post(f"/apps/{appkey}/pushes", push(appkey, {"userScope": 4, "alias": ["user-0", "user-1"]}))
    test_devices = SetTestDevicesRequest(team_id=team_id, origin=OPERATOR)
    for number in range(2):
        test_devices.devices.add(appkey=appkey, token=f"token-{number}", name=f"phone {number}")
    await console.accounts.SetTestDevices(test_devices)
    console.analytics.devices["token-0"] = history(appkey, "token-0")
    request = json.dumps({**push(appkey, {"alias": ["user-0", "third"]}), "sign": "s", "extra": "e"})
    outcome = TimelineEntry(event="received", msgid=MSGID)
    of_device = PushOnDevice(in_audience=True, timeline=[TimelineEntry(event="audience"), outcome])
    console.analytics.pushes[MSGID] = AuditPushResponse(appkey=appkey, request_json=request, device=of_device)
    waiting = PushOnDevice(in_audience=True, timeline=[TimelineEntry(event="audience"), outcome])
    console.analytics.pushes[MSGID + 1] = AuditPushResponse(appkey=appkey, device=waiting)
    console.analytics.actions = [
        ActionEntry(time_ms=3, action="data read", actor="user/a", details=[Detail(text="user-0"), Detail(text="x")]),
        ActionEntry(time_ms=2, action="data read", actor="user/b", details=[Detail(text="user-01")]),
        ActionEntry(time_ms=1, action="team test device set", details=[Detail(text=f"{appkey} token-0 phone 0")]),
    ]
    return appkey, administrator


async def test_everything_that_is_held_about_a_person_is_exported(
    console: ConsoleInstallation, programs: Programs
) -> None:
    appkey, administrator = await person_of_app(console, programs)
    found = await everything(administrator, appkey, "user-0")
    (record,) = found["devices"]
    assert (record["token"], record["alias"], record["stags"]) == ("token-0", "user-0", ["sports & <news>"])
    assert record["attributes"]["region"] == "上海市"
    assert [(one["team"], one["name"]) for one in found["test_devices"]] == [("News", "phone 0")]
    assert [task["status"] for task in found["tasks"]] == ["unsent"]
    assert [draft["status"] for draft in found["drafts"]] == ["waiting"]
    assert [(done["action"], done["actor"]) for done in found["actions"]] == [
        ("data read", "user/a"),
        ("team test device set", ""),
    ]
    assert [(one["event"], one["msgid"], one["detail"]) for one in found["history"]] == [
        ("asked", None, "taken by another device"),
        ("audience", MSGID + 1, ""),
        ("received", MSGID, ""),
        ("audience", MSGID, ""),
        ("registered", None, "android"),
    ]
    received, waiting = found["history"][3]["push"], found["history"][1]["push"]
    assert (received["title"], received["is_waiting"], waiting["is_waiting"]) == ("Storm", False, True)
    assert json.loads(received["content_json"]) == {"msgStyle": push("", {})["msgStyle"], "extra": "e"}
    text = json.dumps(found, ensure_ascii=False)
    assert [word for word in ("third", "thief", "token-1", "user-1", "user-01") if word in text] == []
    asked = [one for one in console.analytics.asked if isinstance(one, AuditDeviceRequest | AuditActionsRequest)]
    assert not any(one.allow_behind for one in asked)
    assert max(one.limit for one in asked) == 2
    assert await everything(administrator, appkey, "token-0") == found


async def test_the_audit_says_who_exported_and_not_whose_data(console: ConsoleInstallation, programs: Programs) -> None:
    appkey, administrator = await person_of_app(console, programs)
    unknown = await administrator.get(f"/apps/{appkey}/person", name="nobody")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "the app has no device with this alias or token")
    assert (await administrator.get(f"/apps/{appkey}/person", name="user-0")).status_code == 200
    reads = await data_reads(console)
    assert [read.data_read for read in reads] == [DataRead(appkey=appkey, exported_devices=number) for number in (0, 1)]
    assert all(read.meta.origin.actor.startswith("token/") for read in reads)
    assert all(b"user-0" not in read.SerializeToString() for read in reads)


async def test_a_cursor_that_no_page_gave_is_refused(console: ConsoleInstallation, programs: Programs) -> None:
    appkey, administrator = await person_of_app(console, programs)
    for cursor in ("x", "tasks", "tasks:-1", "drafts:a", "history:a:token-0"):
        answer = await administrator.get(f"/apps/{appkey}/person", name="user-0", cursor=cursor)
        assert answer.status_code == 400, cursor
    last = (await administrator.get(f"/apps/{appkey}/person", name="user-0", cursor="history:0:zzz")).json()
    assert (last["history"], last["next"]) == ([], "")


async def test_a_file_of_the_page_of_a_device_has_the_same(console: ConsoleInstallation, programs: Programs) -> None:
    appkey, administrator = await person_of_app(console, programs)
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    page = await root.get(f"/apps/{appkey}/device?name=token-0")
    assert "Download all data of this device" in text_of(page)
    assert f'href="/apps/{appkey}/person?name=token-0"' in page.text
    file = await root.get(f"/apps/{appkey}/person?name=token-0")
    assert file.headers["content-disposition"] == f'attachment; filename="person-{appkey}.json"'
    assert file.json() == await everything(administrator, appkey, "token-0")
    assert (await root.get(f"/apps/{appkey}/person?name=token-1")).json()["history"] == []
    assert (await root.get(f"/apps/{appkey}/person?name=nobody")).status_code == 404


async def test_a_file_that_fails_has_no_end(console: ConsoleInstallation, programs: Programs) -> None:
    appkey, _ = await person_of_app(console, programs)
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    console.analytics.is_away = True
    file = await root.get(f"/apps/{appkey}/person?name=token-0")
    assert not file.content.endswith(b"]}")


async def test_the_command_prints_all_pages_as_one_object(
    console: ConsoleInstallation, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    appkey, administrator = await person_of_app(console, programs)
    whole = await everything(administrator, appkey, "user-0")
    pages: list[dict[str, Any]] = [{"devices": whole["devices"], "next": "2"}]
    pages += [{**{name: whole[name] for name in LISTS[1:]}, "next": ""}]
    asked: list[dict[str, Any]] = []

    class Client:
        def get(self, kind: Any, *path: str, **query: Any) -> Any:
            asked.append(query)
            return msgspec.convert(pages[len(asked) % 2 - 1], kind)

    monkeypatch.setattr("carillon.commands.person.console_client", Client)
    done = CliRunner().invoke(main, ["person", "export", "--app", appkey, "--alias", "user-0", "--json"])
    assert json.loads(done.stdout) == whole
    assert [(query["name"], query["cursor"]) for query in asked] == [("user-0", ""), ("user-0", "2")]
    shown = CliRunner().invoke(main, ["person", "export", "--app", appkey, "--token", "token-0"]).stdout
    assert "token-0" in shown
    assert "1 timed pushes, 1 drafts, 1 test devices and 2 actions" in shown
    for wrong in ([], ["--alias", "a", "--token", "t"]):
        refused = CliRunner().invoke(main, ["person", "export", "--app", appkey, *wrong])
        assert (refused.exit_code, "either --alias or --token" in refused.output) == (2, True)
