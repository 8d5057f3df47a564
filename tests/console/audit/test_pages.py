"""The page of the audit: permissions, filters, pages and CSV. Reading personal data is a fact in the log."""

import csv
import io
import re
from html import unescape
from pathlib import Path

import pytest

from analytics.ingestion.tables import actions
from console.audit.actions import SUBJECTS
from console.audit.words import action_words
from protos.accounts.v1.accounts_pb2 import DataRead, LogInFact
from protos.analytics.v1.analytics_pb2 import ActionEntry, ActionScope, AuditActionsRequest
from protos.analytics.v1.details_pb2 import AudienceSummary, Detail
from services.domain.topics import LOG_INS, decode
from services.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.console.conftest import START_MS, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import MSGID, device, push_of_app, viewer_of
from tests.console.send.test_pages import reviewed

DAY_MS = 86_400_000


def last_asked(console: ConsoleInstallation) -> AuditActionsRequest:
    asked = console.analytics.asked[-1]
    assert isinstance(asked, AuditActionsRequest)
    return asked


async def data_reads(console: ConsoleInstallation) -> list[LogInFact]:
    facts = [decode(record) for record in await records_of(console.log, Partition(LOG_INS.name, 0))]
    return [fact for fact in facts if fact.HasField("data_read")]


async def test_the_audit_is_filtered_paged_and_exported(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    other_id = await console.team("Others")
    appkey, foreign = await console.app("Weather", team_id), await console.app("Foreign", other_id)
    user_id = await console.user("root", administrator=True)
    console.analytics.actions = [
        ActionEntry(time_ms=START_MS, actor=f"user/{user_id}", action="app paused", appkey=appkey, detail="<storm>"),
        ActionEntry(time_ms=START_MS, action="team created", team_id=team_id, detail="=1+1", interface="cli"),
        ActionEntry(time_ms=START_MS, actor="user/gone", action="log-in"),
    ]
    root, viewer = await console.logged_in("root"), await console.logged_in("viewer")
    page = await root.get("/audit")
    assert "2026-09-21 22:13:20 root paused an app Weather <storm>" in text_of(page)
    assert "an operator created a team News" in text_of(page)
    assert not last_asked(console).HasField("scope")
    assert (last_asked(console).to_ms - START_MS) // DAY_MS == 0
    assert "pos=2" in page.text
    assert "user/gone logged in" in text_of(await root.get("/audit?pos=2"))
    file = await root.get("/audit.csv?first=2026-09-01&last=2026-09-21")
    assert file.headers["content-disposition"] == 'attachment; filename="audit-2026-09-01-2026-09-21.csv"'
    rows = list(csv.DictReader(io.StringIO(file.content.decode("utf-8-sig"))))
    assert [(row["who"], row["action"], row["detail"]) for row in rows] == [
        ("root", "app paused", "<storm>"),
        ("", "team created", "'=1+1"),
        ("user/gone", "log-in", ""),
    ]
    assert rows[0]["time"] == "2026-09-21T22:13:20.000+08:00"

    await root.get(f"/audit?team={team_id}&who=VIEWER&subject=push&first=2026-09-20&last=2026-09-20")
    asked = last_asked(console)
    assert asked.scope == ActionScope(team_ids=[team_id], appkeys=[appkey])
    assert (asked.subject, asked.to_ms - asked.from_ms) == ("push", DAY_MS)
    assert asked.actor.startswith("user/")
    for path in ("/audit", "/audit.csv"):
        await viewer.get(path)
        assert last_asked(console).scope == ActionScope(team_ids=[team_id], appkeys=[appkey])
        for others in (f"team={other_id}", f"app={foreign}"):
            await viewer.get(f"{path}?{others}")
            assert last_asked(console).scope == ActionScope()
        await viewer.get(f"{path}?who=mallory")
        assert last_asked(console).actor == "user/mallory"
        assert (await root.get(f"{path}?who=mallory")).status_code == 400
        for wrong in ("first=yesterday", "last=9999-12-31"):
            assert (await viewer.get(f"{path}?{wrong}")).status_code == 400


async def test_a_line_of_the_audit_is_in_the_readers_language(console: ConsoleInstallation) -> None:
    await console.user("root", administrator=True)
    sent = [Detail(push=7), Detail(audience=AudienceSummary(devices=2)), Detail(until_ms=START_MS)]
    console.analytics.actions = [ActionEntry(time_ms=START_MS, action="push sent", detail="English", details=sent)]
    page = await (await console.logged_in("root")).get("/audit", **{"Accept-Language": "zh-CN"})
    assert "推送 7, 2 台设备, 至 2026-09-21 22:13:20" in text_of(page)
    assert "English" not in page.text


async def test_the_last_row_of_a_file_says_that_older_actions_are_left_out(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.audit.pages.MAX_CSV_ROWS", 2)
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    for count, left_out in ((2, []), (3, [["Older actions are left out: choose fewer days."]])):
        console.analytics.actions = [ActionEntry(time_ms=START_MS, action="log-in")] * count
        file = await root.get("/audit.csv")
        assert list(csv.reader(io.StringIO(file.content.decode("utf-8-sig"))))[3:] == left_out


async def test_a_line_of_the_audit_leads_to_what_it_is_about(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    other_id = await console.team("Others")
    appkey, foreign = await console.app("Weather", team_id), await console.app("Foreign", other_id)
    user_id = await console.user("alice")
    console.analytics.actions = [
        ActionEntry(action="push sent", appkey=appkey, details=[Detail(push=7)]),
        ActionEntry(action="task cancelled", appkey=appkey, details=[Detail(task="k")]),
        ActionEntry(action="draft approved", team_id=team_id, details=[Detail(draft="d")]),
        ActionEntry(action="push sent", appkey=foreign, details=[Detail(push=8)]),
        ActionEntry(action="draft approved", team_id=other_id, details=[Detail(draft="e")]),
        ActionEntry(action="team test device set", details=[Detail(text="News"), Detail(text=f"{appkey} token-1 Tim")]),
        ActionEntry(action="user link made", details=[Detail(text=f"user/{user_id}")]),
        ActionEntry(action="data read", appkey=appkey, details=[Detail(text=f"user/{user_id}")]),
    ]
    viewer = await console.logged_in("viewer")
    pages = [await viewer.get(f"/audit?pos={pos}") for pos in ("0", "2", "4", "6")]
    links = [
        link for page in pages for link in re.findall(r'<th scope="row" class="action"><a href="([^"]+)"', page.text)
    ]
    assert links == [f"/apps/{appkey}/pushes/7", f"/tasks?appkey={appkey}", f"/drafts/{team_id}/d"]
    assert f'<a href="/teams/{team_id}">News</a>' in pages[1].text
    assert f'<a href="/apps/{appkey}">Weather</a>' in pages[0].text
    assert "News, Weather token-1 Tim" in text_of(pages[2])
    assert "made a one-time link – alice" in text_of(pages[3])
    assert f"looked at devices Weather user/{user_id}" in text_of(pages[3])


async def test_reading_the_data_of_a_device_is_in_the_log(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", viewer="viewer"))
    viewer = await console.logged_in("viewer")
    assert (await viewer.get(f"/apps/{appkey}/device?name=alice")).status_code == 404
    assert (await viewer.get(f"/apps/{appkey}/why?name=bob&push=7")).status_code == 404
    reads = await data_reads(console)
    assert [fact.data_read for fact in reads] == [
        DataRead(appkey=appkey, name="alice"),
        DataRead(appkey=appkey, name="bob", msgid=7),
    ]
    assert all(fact.meta.origin.actor.startswith("user/") for fact in reads)


async def test_the_devices_shown_before_a_push_is_sent_are_in_the_log(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", sender="sender"))
    await device(console, appkey, "token-0", "alice")
    sender = await console.logged_in("sender")
    page, _ = await reviewed(sender, appkey, audience="everyone", content="x")
    assert "alice" in text_of(page)
    assert [read.data_read for read in await data_reads(console)] == [DataRead(appkey=appkey, tokens=["token-0"])]
    with console.servers["accounts"].away():
        page, _ = await reviewed(sender, appkey, audience="everyone", content="x")
    assert ("1 device would get it now" in text_of(page), "alice" in page.text) == (True, False)


def test_every_action_of_the_audit_has_words_for_people() -> None:
    """The names are those that analytics gives to facts."""
    words = action_words(str)
    source = Path(actions.__file__).read_text()
    subjects = "push|task|draft|data|app|user|token|log-in"
    named = set(re.findall(rf'"((?:{subjects})(?: [a-z -]*[a-z])?)"', source)) - {"app", "token", "user"}
    assert len(named) > 15
    assert named - words.keys() == set()
    assert {action.partition(" ")[0] for action in words} == set(SUBJECTS)


async def test_devices_in_one_state_are_listed_in_pages_and_noted_by_their_tokens(
    console: ConsoleInstallation,
) -> None:
    appkey = await push_of_app(console)
    tokens = ["token-1", "token-2", "token-3"]
    console.analytics.devices_in_state = {(MSGID, "failed", "no disk"): tokens}
    viewer = await viewer_of(console)
    path = f"/apps/{appkey}/pushes/{MSGID}/devices"
    link = f"{path}?state=failed&amp;reason=no+disk"
    assert link in (await viewer.get(f"/apps/{appkey}/pushes/{MSGID}")).text
    first = await viewer.get(f"{path}?state=failed&reason=no+disk")
    (older,) = re.findall(r'href="([^"]*after=[^"]*)"', first.text)
    assert ("token-2" in first.text, "token-3" in first.text, "no disk" in first.text) == (True, False, True)
    second = await viewer.get(path + unescape(older))
    assert ("token-2" in second.text, "token-3" in second.text, "after=" in second.text) == (False, True, False)
    assert "No device is in this state now" in text_of(await viewer.get(f"{path}?state=failed"))
    noted = [DataRead(appkey=appkey, msgid=MSGID, tokens=part) for part in (tokens[:2], tokens[2:])]
    assert [read.data_read for read in await data_reads(console)] == noted
    other = await console.app("Other", await console.team("Other", **{"viewer-Other": "viewer"}))
    stranger = await viewer_of(console, "Other")
    assert (await stranger.get(f"{path}?state=failed&reason=no+disk")).status_code == 403
    found = await stranger.get(f"/apps/{other}/pushes/{MSGID}/devices?state=failed&reason=no+disk")
    assert (found.status_code, "token-1" in found.text) == (404, False)
    assert len(await data_reads(console)) == 2
