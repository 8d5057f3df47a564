"""A push that needs approval waits as a draft, and a second person decides it."""

import re

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.accounts.v1.service_pb2 import GiveAppRequest, UpdateTeamRequest
from services.domain.topics import DRAFTS, decode
from services.log.port import Partition
from testkit.waiting import until
from tests.console.audit.test_pages import data_reads
from tests.console.conftest import OPERATOR, START_MS, Browser, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import device
from tests.console.send.test_pages import reviewed, send, sent

BROADCASTS = ApprovalRules(broadcasts=True)
ABOVE_ONE = ApprovalRules(above_devices=1)


class Team:
    """A team with an app of two devices, and browsers of its members."""

    def __init__(self, appkey: str, sender: Browser, approver: Browser, viewer: Browser) -> None:
        self.appkey, self.sender, self.approver, self.viewer = appkey, sender, approver, viewer


async def team_with(console: ConsoleInstallation, rules: ApprovalRules) -> Team:
    team_id = await console.team("News", sender="sender", approver="approver", viewer="viewer")
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))
    appkey = await console.app(team_id=team_id)
    for number in range(2):
        await device(console, appkey, f"token-{number}", f"user-{number}")
    return Team(appkey, *[await console.logged_in(login) for login in ("sender", "approver", "viewer")])


async def draft_of(browser: Browser, appkey: str, **words: str) -> str:
    """Submit a broadcast twice, as by a double click; return the path of its draft."""
    page, hidden = await reviewed(browser, appkey, **{"audience": "everyone", "content": "To <all>", **words})
    assert "Submit for approval" in text_of(page)
    answers = [await send(browser, appkey, hidden, typed="2") for _ in range(2)]
    (path,) = {answer.headers["location"] for answer in answers}
    return str(path)


async def drafts(console: ConsoleInstallation) -> list[DraftFact]:
    page = await console.log.select({Partition(DRAFTS.name, 0): 0}, 100)
    facts = [decode(record) for record in page.records]
    return [fact for fact in facts if fact.WhichOneof("fact")]


async def digest(browser: Browser, path: str) -> str:
    found = re.search(r'name="digest" value="([0-9a-f]+)"', (await browser.get(path)).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("rules", [BROADCASTS, ABOVE_ONE])
async def test_a_draft_is_sent_once_when_somebody_else_approves_it(
    console: ConsoleInstallation, rules: ApprovalRules
) -> None:
    team = await team_with(console, rules)
    path = await draft_of(team.sender, team.appkey)
    assert await sent(console) == []
    (submitted,) = await drafts(console)
    assert submitted.meta.origin.actor.startswith("user/")
    for browser in (team.sender, team.viewer):
        words = text_of(await browser.get(path))
        assert "To <all>" in words
        assert "Approve and send" not in words
    assert "waits for approval" in text_of(await team.viewer.get("/drafts"))
    assert (await team.approver.post(f"{path}/approval", digest="00")).status_code == 400
    shown = await digest(team.approver, path)
    approved = await team.approver.post(f"{path}/approval", digest=shown)
    assert approved.headers["location"] == path
    again = await team.approver.post(f"{path}/approval", digest=shown)
    assert (again.status_code, "does not wait any more" in text_of(again)) == (400, True)

    async def is_sent() -> bool:
        return len(await sent(console)) == 1

    await until(is_sent)
    (command,) = await sent(console)
    assert command.send.msgid == submitted.submitted.draft.task.pushes[0].msgid
    assert f"/sent/{command.send.msgid}" in (await team.sender.get(path)).text


async def test_a_form_that_made_a_draft_sends_nothing_when_it_is_submitted_again(console: ConsoleInstallation) -> None:
    team = await team_with(console, ABOVE_ONE)
    _, hidden = await reviewed(team.sender, team.appkey, audience="everyone", content="To <all>")
    first = await send(team.sender, team.appkey, hidden, typed="2")
    none = UpdateTeamRequest(team_id=first.headers["location"].split("/")[2], rules=ApprovalRules(), origin=OPERATOR)
    await console.accounts.UpdateTeam(none)
    again = await send(team.sender, team.appkey, hidden, typed="2")
    assert again.headers["location"] == first.headers["location"]
    assert (len(await drafts(console)), await sent(console)) == (1, [])


async def test_an_approved_draft_with_a_time_is_scheduled_and_not_sent(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey, when="at", send_at="2026-09-22T08:30")
    shown = await digest(team.approver, path)
    assert "Approve and schedule" in text_of(await team.approver.get(path))
    await team.approver.post(f"{path}/approval", digest=shown)

    async def is_scheduled() -> bool:
        return "approved; scheduled for 2026-09-22 08:30:00" in text_of(await team.viewer.get(path))

    await until(is_scheduled)
    approved = text_of(await team.approver.get(path))
    assert "The push is approved; it is sent at 2026-09-22 08:30:00." in approved
    listed = text_of(await team.viewer.get("/drafts"))
    assert ("scheduled for 2026-09-22 08:30:00" in listed, "approved and sent" in listed) == (True, False)
    assert await sent(console) == []


async def test_a_draft_is_rejected_with_a_reason_or_withdrawn(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    await team.approver.get(path)
    assert (await team.approver.post(f"{path}/rejection", reason="a typo <")).status_code == 303
    assert "a typo <" in text_of(await team.sender.get(path))
    link = f"/apps/{team.appkey}/send?draft={path.split('/')[-1]}"
    assert f'href="{link}"' in (await team.sender.get(path)).text
    assert f'href="{link}"' not in (await team.viewer.get(path)).text
    anew = await team.sender.get(link)
    assert ("To &lt;all&gt;</textarea>" in anew.text, 'name="draft"' in anew.text) == (True, False)
    other = await draft_of(team.sender, team.appkey)
    assert (await team.sender.post(f"{other}/withdrawal")).status_code == 303
    assert "withdrawn" in text_of(await team.sender.get(other))
    assert await sent(console) == []
    assert [fact.WhichOneof("fact") for fact in await drafts(console)] == [
        "submitted",
        "rejected",
        "submitted",
        "withdrawn",
    ]


async def test_an_approver_does_not_approve_what_they_wrote(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.approver, team.appkey)
    words = text_of(await team.approver.get(path))
    assert "another approver has to look at it" in words
    digest_of = (await drafts(console))[0].submitted.draft.digest.hex()
    assert (await team.approver.post(f"{path}/approval", digest=digest_of)).status_code == 403
    assert await sent(console) == []


async def test_a_draft_is_changed_and_the_approver_approves_what_it_is_then(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    draft_id = path.split("/")[-1]
    shown = await digest(team.approver, path)
    form = await team.sender.get(f"/apps/{team.appkey}/send?draft={draft_id}")
    assert ("Edit the draft" in text_of(form), "To &lt;all&gt;</textarea>" in form.text) == (True, True)
    of_draft = {"draft": draft_id, "digest": shown}
    refused, _ = await reviewed(team.sender, team.appkey, audience="everyone", content="", **of_draft)
    assert (refused.status_code, f'name="draft" value="{draft_id}"' in refused.text) == (400, True)
    page, hidden = await reviewed(team.sender, team.appkey, audience="everyone", content="To <some>", **of_draft)
    assert "has not changed it has to approve it" in text_of(page)
    again = await team.sender.post(f"/apps/{team.appkey}/send", body=hidden["body"], **of_draft)
    assert f'name="digest" value="{shown}"' in again.text
    answers = [await send(team.sender, team.appkey, {**hidden, **of_draft}, typed="2") for _ in range(2)]
    assert {answer.headers["location"] for answer in answers} == {path}
    words = text_of(await team.viewer.get(path))
    assert ("To <some>" in words, "(version 2)" in words) == (True, True)
    assert [fact.submitted.draft.version for fact in await drafts(console)] == [1, 2]

    old = await team.approver.post(f"{path}/approval", digest=shown)
    assert (old.status_code, "The draft was changed meanwhile. Look at it again." in text_of(old)) == (400, True)
    _, stale = await reviewed(team.approver, team.appkey, audience="everyone", content="Mine", **of_draft)
    late = await send(team.approver, team.appkey, {**stale, **of_draft}, typed="2")
    assert (late.status_code, "changed meanwhile" in text_of(late)) == (400, True)
    assert (await team.approver.post(f"{path}/approval", digest=await digest(team.approver, path))).status_code == 303
    over = await team.sender.get(f"/apps/{team.appkey}/send?draft={draft_id}")
    assert over.headers["location"] == path

    async def is_sent() -> bool:
        return [command.send.message.content for command in await sent(console)] == ["To <some>"]

    await until(is_sent)


async def test_a_changed_draft_waits_also_if_it_would_need_no_approval(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    of_draft = {"draft": path.split("/")[-1], "digest": await digest(team.approver, path)}
    fields = {"audience": "token", "token_android": "token-0", "content": "x"}
    _, hidden = await reviewed(team.sender, team.appkey, **fields, **of_draft)
    for wrong in ("", "00", "no digest"):
        refused = await send(team.sender, team.appkey, {**hidden, **of_draft, "digest": wrong})
        assert (refused.status_code, "changed meanwhile" in text_of(refused)) == (400, True)
    assert (await send(team.sender, team.appkey, {**hidden, **of_draft})).headers["location"] == path
    assert await sent(console) == []


async def test_small_pushes_need_no_approval(console: ConsoleInstallation) -> None:
    team = await team_with(console, ABOVE_ONE)
    page, hidden = await reviewed(team.sender, team.appkey, audience="token", token_android="token-0", content="x")
    assert "Submit for approval" not in text_of(page)
    assert (await send(team.sender, team.appkey, hidden)).status_code == 303
    assert len(await sent(console)) == 1


async def test_a_draft_is_found_under_its_team_alone(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    other = await console.team("Others", stranger="administrator")
    stranger = await console.logged_in("stranger")
    _, _, team_id, draft_id = path.split("/")
    assert (await stranger.get(path)).status_code == 403
    _, hidden = await reviewed(team.sender, team.appkey, audience="everyone", content="x")
    foreign = await console.app("Foreign", team_id=other)
    assert (await stranger.get(f"/apps/{foreign}/send?draft={draft_id}")).status_code == 404
    assert (await team.viewer.get(f"/apps/{team.appkey}/send?draft={draft_id}")).status_code == 403
    stolen = {**hidden, "body": hidden["body"].replace(team.appkey, foreign), "draft": draft_id, "digest": "00"}
    await stranger.get("/account")
    refused = await send(stranger, foreign, {**stolen, "devices": "0"}, typed="0")
    assert (refused.status_code, "belongs to another team" in text_of(refused)) == (400, True)
    for change in ("approval", "rejection", "withdrawal"):
        assert (await stranger.post(f"/drafts/{other}/{draft_id}/{change}")).status_code == 404
    assert (await stranger.get(f"/drafts/{other}/{draft_id}")).status_code == 404
    assert "No drafts" in text_of(await stranger.get("/drafts"))
    assert (await team.sender.get(f"/drafts/{team_id}/{'0' * 32}")).status_code == 404


async def test_the_list_has_pages_and_those_that_wait_stand_first(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.send.draft_pages.PAGE_DRAFTS", 2)
    team = await team_with(console, BROADCASTS)
    paths = []
    for _ in range(3):
        paths.append(await draft_of(team.sender, team.appkey))
        console.clock.move(1)
    await team.sender.post(f"{paths[2]}/withdrawal")
    first, second = [await team.viewer.get(f"/drafts?page={number}") for number in (1, 2)]
    listed = [re.findall(r'<th scope="row" class="push-name"><a href="([^"]*)"', page.text) for page in (first, second)]
    assert listed == [[paths[1], paths[0]], [paths[2]]]
    assert ("page=2" in first.text, "page=1" in second.text, "page=3" in second.text) == (True, True, False)


async def test_a_draft_is_found_by_its_title_or_text(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    titled = await draft_of(team.sender, team.appkey, title="ÄPFEL & Birnen", content="Ripe now")
    other = await draft_of(team.sender, team.appkey)
    page = await team.viewer.get("/drafts?q=äpfel+%26")
    assert (titled in page.text, other in page.text) == (True, False)
    assert "ÄPFEL & Birnen Ripe now" in text_of(page)
    assert titled in (await team.viewer.get("/drafts?q=ripe")).text
    nothing = text_of(await team.viewer.get("/drafts?q=plums"))
    assert ("No draft of your teams has these words" in nothing, "No drafts" in nothing) == (True, False)
    await console.team("Others", stranger="viewer")
    stranger = await console.logged_in("stranger")
    assert titled not in (await stranger.get("/drafts?q=ripe")).text


async def test_a_draft_of_an_app_that_another_team_has_now_shows_no_devices(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    path = await draft_of(team.sender, team.appkey)
    other = await console.team("Others")
    await console.accounts.GiveApp(GiveAppRequest(appkey=team.appkey, team_id=other, origin=OPERATOR))
    await device(console, team.appkey, "token-new", "user-new")
    before = await data_reads(console)
    page = await team.viewer.get(path)
    assert "The app does not belong to the team any more. Withdraw the draft." in text_of(page)
    assert ("token-" in page.text, "user-" in page.text, "would get it" in page.text) == (False, False, False)
    assert await data_reads(console) == before


async def test_a_changed_draft_with_a_delay_shows_the_time_at_which_it_is_sent(console: ConsoleInstallation) -> None:
    team = await team_with(console, BROADCASTS)
    delay = {"when": "after", "after": "120"}
    path = await draft_of(team.sender, team.appkey, **delay)
    of_draft = {"draft": path.split("/")[-1], "digest": await digest(team.approver, path)}
    console.clock.move(3600)
    fields = {"audience": "everyone", "content": "To <some>", **delay}
    page, hidden = await reviewed(team.sender, team.appkey, **fields, **of_draft)
    assert "The draft will be changed. It waits as before" in text_of(page)
    assert '<button class="primary" type="submit">Save the change</button>' in page.text
    await send(team.sender, team.appkey, {**hidden, **of_draft}, typed="2")
    due_ms = (await drafts(console))[-1].submitted.draft.task.due_ms
    assert due_ms == START_MS + 3 * 3_600_000
    assert "Time of sending 2026-09-22 01:13:20 (Asia/Shanghai)" in text_of(await team.approver.get(path))
