"""A push is composed, looked at and sent, through the same rules and commands as those of app servers."""

import re
from collections.abc import Sequence
from html import unescape
from typing import Any

import httpx
import msgspec
import pytest

from console.send.audience import SAMPLES, Audiences, Sample
from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import ListTeamsRequest, UpdateTeamRequest
from protos.push.v1.push_pb2 import KIND_BROADCAST, KIND_MULTICAST, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.scheduling.v1.scheduling_pb2 import TaskCommand
from services.domain.topics import PUSH_COMMANDS, TASK_COMMANDS, decode
from services.log.port import Partition
from tests.console.conftest import OPERATOR, PARTITIONS, Browser, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import audit, device

_HIDDEN = re.compile(r'<input type="hidden" name="(body|key|devices|typed|again)" value="([^"]*)">')
FIELDS = {"is_notif": "1", "click_action": "1", "removable": "1", "audience": "filter", "when": "now"}


async def sender_of(console: ConsoleInstallation, devices: int = 3) -> tuple[str, Browser]:
    """Return an app with so many devices, and a browser of somebody who may send."""
    appkey = await console.app(team_id=await console.team("News", sender="sender"))
    for number in range(devices):
        await device(console, appkey, f"token-{number}", f"user-{number}")
    return appkey, await console.logged_in("sender")


async def reviewed(browser: Browser, appkey: str, **fields: str) -> tuple[httpx.Response, dict[str, str]]:
    """Fill in the form; return the review and the hidden fields of its form."""
    page = await browser.post(f"/apps/{appkey}/send", **{**FIELDS, **fields})
    return page, hidden_of(page)


def hidden_of(page: httpx.Response) -> dict[str, str]:
    """Return the hidden fields with which a page sends a push."""
    return {name: unescape(value) for name, value in _HIDDEN.findall(page.text)}


async def send(browser: Browser, appkey: str, hidden: dict[str, str], **typed: str) -> httpx.Response:
    return await browser.post(f"/apps/{appkey}/send/now", **hidden, **typed)


async def sent(console: ConsoleInstallation) -> list[PushCommand]:
    page = await console.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 100)
    return [decode(record) for record in page.records]


async def tasks(console: ConsoleInstallation) -> list[TaskCommand]:
    page = await console.log.select({Partition(TASK_COMMANDS.name, number): 0 for number in range(PARTITIONS)}, 100)
    return [decode(record) for record in page.records]


async def test_a_push_is_composed_looked_at_and_sent_once(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console)
    chosen = await sender.get("/send")
    assert chosen.headers["location"] == f"/apps/{appkey}/send"
    form = text_of(await sender.get(f"/apps/{appkey}/send"))
    for expected in (
        "Send a push to the devices of News",
        "-1 raises the badge by one.",
        "Empty: 1 day, as the app says.",
    ):
        assert expected in form, form
    message = {"title": "Storm <1>", "content": "Stay inside", "click_action": "2", "url": "https://example.org/?a=1&b"}
    page, hidden = await reviewed(sender, appkey, stag="sports & <news>", locate="上海市", **message)
    words = text_of(page)
    for expected in ("Storm <1>", "Stay inside", "A click opens https://example.org/?a=1&b", "3 devices would get"):
        assert expected in words, words
    assert {f"token-{number}" for number in range(3)} <= set(words.split())
    assert "Type the number" not in words
    answers = [await send(sender, appkey, hidden) for _ in range(3)]
    paths = {answer.headers["location"] for answer in answers}
    (command,) = await sent(console)
    assert paths == {f"/apps/{appkey}/sent/{command.send.msgid}"}
    assert (command.send.kind, command.send.appkey) == (KIND_MULTICAST, appkey)
    assert command.meta.origin.interface == "console"
    assert command.meta.origin.actor.startswith("user/")
    assert command.send.message.android.title == "Storm <1>"
    assert msgspec.json.decode(command.send.request_json)["sendTo"]["userScope"] == 8
    waits = await sender.get(paths.pop())
    assert "The numbers of the push will be here in a moment." in text_of(waits)
    console.analytics.pushes[command.send.msgid] = audit(appkey, msgid=command.send.msgid)
    shown = await sender.get(f"/apps/{appkey}/sent/{command.send.msgid}")
    assert shown.headers["location"] == f"/apps/{appkey}/pushes/{command.send.msgid}"
    fragment = await sender.get(f"/apps/{appkey}/sent/{command.send.msgid}", **{"HX-Request": "true"})
    assert fragment.headers["hx-redirect"] == shown.headers["location"]


async def test_a_form_shows_what_is_typed_as_phones_show_it(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console)
    form = await sender.get(f"/apps/{appkey}/send")
    assert f'hx-post="/apps/{appkey}/send/typed"' in form.text
    typed = {
        "title": "Storm <1>",
        "content": "Stay inside 🌧",
        "badge": "-1",
        "audience": "token",
        "token": "unfinished",
    }
    shown = await sender.post(f"/apps/{appkey}/send/typed", **typed)
    words = text_of(shown)
    assert shown.status_code == 200
    for expected in ("News · +1", "Storm <1>", "Title: 9 characters, 9 bytes", "Text: 13 characters, 16 bytes"):
        assert expected in words, words
    assert "iOS" not in words
    assert "<html" not in shown.text
    silent = text_of(await sender.post(f"/apps/{appkey}/send/typed", is_notif="0", content="{}"))
    assert "Nothing is shown: the app alone gets the message." in silent
    assert await sent(console) == []


async def test_a_broadcast_asks_for_the_number_of_devices(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console)
    page, hidden = await reviewed(sender, appkey, audience="everyone", content="To all")
    assert "Type the number of devices: 3" in text_of(page)
    for typed in ("", "2", "x", "9" * 5000):
        refused = await send(sender, appkey, hidden, typed=typed)
        assert (refused.status_code, "Type the number of devices that" in text_of(refused)) == (400, True)
    assert (await send(sender, appkey, {**hidden, "devices": "many"}, typed="3")).status_code == 400
    assert (await send(sender, appkey, {**hidden, "key": f"{'9' * 5000}-{'a' * 32}"}, typed="3")).status_code == 400
    assert await sent(console) == []
    assert (await send(sender, appkey, hidden, typed="3 devices")).status_code == 303
    (command,) = await sent(console)
    assert command.send.kind == KIND_BROADCAST


async def test_a_review_that_lay_open_too_long_is_looked_at_again(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    _, hidden = await reviewed(sender, appkey, audience="alias", alias="user-0", content="Hello")
    assert (await send(sender, appkey, hidden)).status_code == 303
    console.clock.move(11 * 60)
    again = await send(sender, appkey, hidden)
    assert (again.status_code, "some minutes ago" in text_of(again)) == (400, True)
    assert len(await sent(console)) == 1
    assert (await send(sender, appkey, hidden_of(again))).status_code == 303
    assert len(await sent(console)) == 2


async def test_what_the_interface_refuses_is_refused_with_the_form_as_it_was(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    refusals = {
        "Enter at least one tag, or an attribute of the devices.": {},
        "Numeric tags: Enter whole numbers, not one.": {"tag": "one"},
        "Numeric tags: Enter a whole number from -32,727 to 32,727.": {"tag": "99999"},
        "Region: There is no region Mars.": {"locate": "Mars"},
        "Times opened in 7 days: Enter comparisons": {"activity_7": "often"},
        "Models: Enter lines such as": {"model": "brand"},
        "Choose who gets the push": {"audience": "nobody"},
        "Text: Fill in this field.": {"audience": "everyone", "content": ""},
        "Address of the picture: Fill in this field.": {"stag": "a", "click_action": "4"},
        "Summary of entry 1: Fill in this field.": {
            "stag": "a",
            "click_action": "6",
            "click6.flow-mode": "1",
            "click6.0.title": "One",
            "click6.1.title": "Two",
        },
        "Day and time: Choose a time in the future, within 365 days.": {
            "stag": "a",
            "when": "at",
            "send_at": "2020-01-01T10:00",
        },
        "Day and time: Choose a day and a time.": {"stag": "a", "when": "at"},
        "Messages a second: Enter a whole number from": {"stag": "a", "qps": "-1"},
        "Choose an app of the other platform": {"stag": "a", "other": "12345"},
    }
    for words, fields in refusals.items():
        page, _ = await reviewed(sender, appkey, **{"content": "Kept <here>", **fields})
        assert (page.status_code, words in text_of(page)) == (400, True), (words, text_of(page))
        if "content" not in fields:
            assert "Kept &lt;here&gt;</textarea>" in page.text
    assert await sent(console) == []


async def test_a_refused_form_shows_all_its_errors_and_leads_to_their_fields(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    wrong = {"content": "", "tag": "one", "locate": "Mars", "activity_7": "often", "model": "brand", "qps": "-1"}
    page, _ = await reviewed(sender, appkey, **wrong, when="at", send_at="2020-01-01T10:00")
    assert (page.status_code, "7 fields must be corrected:" in text_of(page)) == (400, True), text_of(page)
    links = re.findall(r'<li><a href="#f-([^"]+)">', page.text)
    assert sorted(links) == sorted([*wrong, "send_at"])
    for field in links:
        assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', page.text), field
        assert f'id="e-{field}"' in page.text
    assert re.findall(r"<[^>]* autofocus", page.text) == ['<div class="alert bad" role="alert" tabindex="-1" autofocus']
    one, _ = await reviewed(sender, appkey, content="Kept", tag="one")
    assert re.search(r'role="alert"><a href="#f-tag">Numeric tags: Enter whole numbers, not one.</a>', one.text)
    assert re.findall(r'id="f-([^"]+)"[^>]* autofocus', one.text) == ["tag"]
    clean, _ = await reviewed(sender, appkey, content="Kept", stag="a")
    assert (clean.status_code, "autofocus" in clean.text) == (200, False)


async def test_while_targeting_is_away_nothing_is_sent_and_nothing_lost(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    _, hidden = await reviewed(sender, appkey, stag="sports & <news>", content="Kept")
    with console.servers["targeting"].away():
        page, _ = await reviewed(sender, appkey, stag="sports & <news>", content="Kept")
        refused = await send(sender, appkey, hidden)
        for answer in (page, refused):
            assert (answer.status_code, "Nothing was sent" in text_of(answer)) == (400, True)
            assert "Kept</textarea>" in answer.text
    assert await sent(console) == []
    assert (await send(sender, appkey, hidden)).status_code == 303


async def test_a_timed_push_becomes_one_task_in_the_time_zone_of_the_person(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await sender.get("/account")
    await sender.post("/account", display_name="S", locale="", zone="Europe/Berlin")
    page, hidden = await reviewed(sender, appkey, stag="a", content="x", when="at", send_at="2026-09-22T08:30")
    assert "2026-09-22 08:30:00 (Europe/Berlin)" in text_of(page)
    assert msgspec.json.decode(hidden["body"])["option"] == {"timed": 1, "send_time": "2026-09-22 14:30"}
    for _ in range(2):
        assert (await send(sender, appkey, hidden)).headers["location"] == f"/tasks?appkey={appkey}"
    assert "The push is scheduled, under the task key" in text_of(await sender.get(f"/tasks?appkey={appkey}"))
    (command,) = await tasks(console)
    assert (command.create.due_ms, command.create.at_once) == (1_790_058_600_000, False)
    assert await sent(console) == []


async def test_a_push_to_both_platforms_goes_to_apps_of_one_team_alone(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=2)
    team_id = next(iter(await team_ids(console, "News")))
    ios = await console.app("News iOS", team_id, PLATFORM_IOS)
    foreign = await console.app("Foreign", platform=PLATFORM_IOS)
    fields = {"audience": "everyone", "content": "On both", "content_ios": "On iOS", "other": ios}
    page, hidden = await reviewed(sender, appkey, **fields)
    assert "On iOS" in text_of(page)
    stolen = {**hidden, "body": hidden["body"].replace(ios, foreign)}
    assert (await send(sender, appkey, stolen, typed="2")).status_code == 403
    _, of_android = await reviewed(sender, appkey, audience="everyone", content="x")
    assert (await send(sender, ios, of_android, typed="2")).status_code == 403
    assert (await send(sender, appkey, hidden, typed="2")).status_code == 303
    by_app = {command.send.appkey: command.send for command in await sent(console)}
    assert [by_app[key].message.content for key in (appkey, ios)] == ["On both", "On iOS"]
    changed = await sender.post(f"/apps/{appkey}/send", body=hidden["body"])
    assert f'<option value="{ios}" selected>' in changed.text
    assert ("On both</textarea>" in changed.text, "On iOS</textarea>" in changed.text) == (True, True)


async def test_attributes_are_not_combined_with_ios_whose_devices_have_none(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console)
    ios = await console.app("News iOS", next(iter(await team_ids(console, "News"))), PLATFORM_IOS)
    for first, other in ((appkey, ios), (ios, appkey), (ios, "")):
        page, hidden = await reviewed(sender, first, content="x", stag="a", locate="上海市", other=other)
        assert (page.status_code, hidden.get("key")) == (400, None)
        assert "Attributes are known of Android devices alone." in text_of(page)
        assert "上海市" in page.text
    page, hidden = await reviewed(sender, appkey, content="x", stag="a", other=ios)
    assert (page.status_code, ios in hidden["body"]) == (200, True)


async def team_ids(console: ConsoleInstallation, name: str) -> list[str]:
    answer: Any = await console.accounts.ListTeams(ListTeamsRequest(team=name))
    return [summary.team.team_id for summary in answer.teams]


async def test_an_earlier_push_is_copied(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    console.analytics.pushes[7] = audit(appkey, msgid=7)
    form = await sender.get(f"/apps/{appkey}/send?copy=7")
    assert ("Stay inside</textarea>" in form.text, 'value="&lt;b&gt;Storm&lt;/b&gt;"' in form.text) == (True, True)
    assert (await sender.get(f"/apps/{appkey}/send?copy=8")).status_code == 200
    assert (await sender.get(f"/apps/{appkey}/send?copy=x")).status_code == 404


async def test_an_app_that_is_paused_sends_nothing(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", approver="approver"))
    approver = await console.logged_in("approver")
    _, hidden = await reviewed(approver, appkey, stag="a", content="x")
    warning = "News is paused: pushes are refused"
    assert warning not in text_of(await approver.get(f"/apps/{appkey}/send"))
    await approver.post(f"/apps/{appkey}/pause", change="pause", reason="night <1>")
    review, _ = await reviewed(approver, appkey, stag="a", content="x")
    for page in (review, await approver.get(f"/apps/{appkey}/send")):
        assert (warning in text_of(page), "Reason: night <1>" in text_of(page)) == (True, True)
    refused = await send(approver, appkey, hidden)
    assert (refused.status_code, "is paused" in text_of(refused)) == (400, True)
    assert SendPush() not in [command.send for command in await sent(console)]
    assert await sent(console) == await tasks(console) == []


async def test_ten_devices_of_a_larger_audience_are_shown_for_the_calls_of_one_partition(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []
    look_up = Audiences._look_up

    async def noted(self: Audiences, appkey: str, partition: int, numbers: Sequence[int]) -> list[Sample]:
        looked_up.append(len(numbers))
        return await look_up(self, appkey, partition, numbers)

    monkeypatch.setattr(Audiences, "_look_up", noted)
    devices = 25 * PARTITIONS
    appkey, sender = await sender_of(console, devices)
    page, _ = await reviewed(sender, appkey, content="To all", audience="everyone")
    shown = {word for word in text_of(page).split() if word.startswith("token-")}
    assert len(shown) == SAMPLES
    assert shown <= {f"token-{number}" for number in range(devices)}
    assert looked_up == [SAMPLES]


async def test_the_review_and_the_draft_show_the_options_that_are_set(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", sender="sender", approver="approver")
    appkey = await console.app(team_id=team_id)
    await console.accounts.UpdateTeam(
        UpdateTeamRequest(team_id=team_id, name="News", rules=ApprovalRules(broadcasts=True), origin=OPERATOR)
    )
    sender, approver = await console.logged_in("sender"), await console.logged_in("approver")
    options = {"period": "2", "period_unit": "h", "qps": "1", "sound": "1", "extra": "campaign 7"}
    page, hidden = await reviewed(sender, appkey, audience="everyone", content="x", **options)
    draft = await send(sender, appkey, hidden, typed="0")
    for words in (text_of(page), text_of(await approver.get(draft.headers["location"]))):
        assert "Keep for offline devices 2 hours Messages a second 1" in words
        assert "Extra text for the app campaign 7 On Android Sound Can be swiped away" in words
        assert "Nobody would get this push now: the app has no devices." in words
    plain, _ = await reviewed(sender, appkey, audience="everyone", content="x")
    assert "Messages a second" not in text_of(plain)


async def test_an_empty_audience_is_warned_about(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    warning = "Nobody would get this push now:"
    audiences = {
        "check the spelling of the tags and attributes.": {"stag": "drivers"},
        "check the spelling of the aliases.": {"audience": "alias", "alias": "nobody"},
        "check the device tokens.": {"audience": "token", "token_android": "none"},
    }
    for advice, fields in audiences.items():
        page, _ = await reviewed(sender, appkey, content="x", **fields)
        assert f"{warning} {advice}" in text_of(page)
    some, _ = await reviewed(sender, appkey, content="x", audience="alias", alias="user-0", alias_devices="all")
    assert (warning in text_of(some), "Devices of an alias all" in text_of(some)) == (False, True)
    by_region, _ = await reviewed(sender, appkey, content="x", locate="上海市", locate_not="北京市")
    assert "Region 上海市 Exclude: Region 北京市" in text_of(by_region)


async def test_a_viewer_is_told_that_the_role_may_not_send(console: ConsoleInstallation) -> None:
    await console.app(team_id=await console.team("News", viewer="viewer"))
    viewer = await console.logged_in("viewer")
    words = text_of(await viewer.get("/send"))
    assert ("Your role may not send" in words, "No app belongs to your teams yet" in words) == (True, False)
