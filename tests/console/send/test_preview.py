"""Whoever decides about a push is shown all that it has, and where its links lead; links that are none are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.send.composed_pushes import Link, link_of
from console.send.preview import contents_of_sends, previews_of_form
from console.shell.languages import english
from console.shell.renderer import visible
from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.push.v1.push_pb2 import AndroidStyle, Audience, Everyone, IosStyle, Message, SendPush
from tests.console.conftest import ConsoleInstallation, Programs, text_of
from tests.console.send.test_draft_pages import team_with
from tests.console.send.test_pages import reviewed, send, sender_of, sent, team_ids
from tests.console.send.test_reach import app_with
from tests.console.shell.test_calls import push

LINK = "https://bank.example@evil.example/x"
LANDING = {
    "click_action": "4",
    "click4.picture-addr": "https://pictures.example/a.png",
    "click4.picture-hyperlink": LINK,
    "click4.jump-button": "1",
    "click4.jump-seconds": "17",
    "click4.tip-content": "Look here",
    "click4.tip-url": "https://xn--bcher-kva.example:8443/",
    "click4.download-condition": "1",
}
FLOW = {
    "click_action": "6",
    "click6.flow-mode": "1",
    "click6.top-title": "Above all",
    "click6.0.title": "First one",
    "click6.0.picture-addr": "https://first.example/1.png",
    "click6.0.text-abstract": "In short",
    "click6.0.text-detail": "https://detail.example/deep",
    "click6.1.title": "Second one",
    "click6.1.text-abstract": "Shorter",
    "click6.1.text-detail": "At length",
}
REFUSED = (
    *("javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "intent://x#Intent;end", "example.org", "/path"),
    *("https:evil.example", "https:///evil.example", "https://bank.example\\@evil.example", "https://a.example/ x"),
    *(" https://a.example", "https://a\u202e.example", "https://%65vil.example", "https://", "ftp://a.example"),
)


def test_a_link_is_told_by_the_host_that_a_phone_goes_to() -> None:
    assert link_of("https://example.org/?a=1&b") == Link("example.org", "", "")
    assert link_of("HTTP://EXAMPLE.org:80") == Link("example.org:80", "EXAMPLE.org:80", "")
    assert link_of(LINK) == Link("evil.example", "", "bank.example")
    assert link_of("https://a:b@c@d.example#@e") == Link("d.example", "", "a:b@c")
    assert link_of("https://bücher.example") == Link("xn--bcher-kva.example", "bücher.example", "")
    assert link_of("https://аpple.example") == Link("xn--pple-43d.example", "аpple.example", "")
    assert link_of("https://evil。example/") == Link("evil.example", "evil。example", "")
    assert link_of("https://[2001:db8::1]:8/") == Link("[2001:db8::1]:8", "", "")
    assert link_of("https://2130706433/") == Link("2130706433", "", "")
    assert [text for text in REFUSED if link_of(text)] == []


@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_any_text_is_a_link_or_none_without_an_error(text: str) -> None:
    link = link_of(f"https://{text}")
    assert link is None or (link.host.isascii() and "@" not in link.host)


def test_characters_that_are_invisible_or_turn_the_text_round_are_named() -> None:
    assert visible("pay \u202ekcab\u202c now") == "pay ⟨U+202E⟩kcab⟨U+202C⟩ now"
    assert (
        visible("a\u200bb\u00adc\u2066\x1b[0m\u2028\u3164") == "a⟨U+200B⟩b⟨U+00AD⟩c⟨U+2066⟩⟨U+001B⟩[0m⟨U+2028⟩⟨U+3164⟩"
    )
    assert visible("a\u200db") == "a⟨U+200D⟩b"
    for kept in ("two\nlines\tand more", "中文 é", "👨\u200d👩\u200d👧", "می\u200cخواهم"):
        assert visible(kept) == kept


def test_every_field_of_a_message_is_shown() -> None:
    audience = Audience(everyone=Everyone())
    android = AndroidStyle(
        title="A title", sound=True, vibrate=True, removable=True, click_action=7, badge=41,
        click_param_json='{"url":"https://rich.example/","deeper":{"unknown":["javascript:x"]},"count":7}',
    )  # fmt: skip
    ios = IosStyle(badge=42, sound="horn.caf", content_available=True, category="REPLY", title="An iOS title")
    sends = [
        SendPush(appkey="1", audience=audience, message=Message(is_notif=True, content="To read", extra="for the app",
                 android=android), period_s=7200, qps=9),
        SendPush(appkey="2", audience=audience, message=Message(is_notif=True, content="To read", ios=ios)),
    ]  # fmt: skip
    first, second = contents_of_sends(sends, english())
    values = {shown.value for shown in first.shown}
    assert {
        "A title",
        "To read",
        "for the app",
        "41",
        "https://rich.example/",
        "javascript:x",
        "7",
        "2 hours",
        "9",
    } <= (values)
    assert [shown.link.host for shown in first.shown if shown.link] == ["rich.example"]
    assert [shown.value for shown in first.shown if shown.is_unsafe] == ["javascript:x"]
    assert {"An iOS title", "42", "horn.caf", "REPLY"} <= {shown.value for shown in second.shown}
    names = {shown.name for shown in (*first.shown, *second.shown)}
    assert {
        "Sound",
        "Vibration",
        "Can be swiped away",
        "Wakes the app in the background on iOS",
        "When tapped",
    } <= names
    styles = [*AndroidStyle.DESCRIPTOR.fields_by_name, *IosStyle.DESCRIPTOR.fields_by_name]
    assert sorted(set(styles)) == sorted(
        {"title", "sound", "vibrate", "removable", "click_action", "click_param_json", "badge"}
        | {"content_available", "category", "content_is_json"}
        | {"sealed_possession_code"}  # of the service's own pushes alone
        | {"carries_msgid"}  # what the app's setting was, which is no content
    ), "a field that is added to messages must be shown too"


@pytest.mark.parametrize("fields", [LANDING, FLOW])
async def test_the_author_and_the_approver_see_every_parameter_and_the_hosts_of_links(
    console: ConsoleInstallation, fields: dict[str, str]
) -> None:
    team = await team_with(console, ApprovalRules(broadcasts=True))
    more = {"title": "Ti\u202etle", "content": "Te\u200bxt", "extra": "deep=1", "badge": "12"}
    page, hidden = await reviewed(team.sender, team.appkey, audience="everyone", **more, **fields)
    draft = await send(team.sender, team.appkey, hidden, typed="2")
    approver = await team.approver.get(draft.headers["location"])
    for words in (text_of(page), text_of(approver)):
        shown = {value for name, value in fields.items() if name not in ("click_action", "click6.flow-mode")}
        assert [value for value in shown - {"1"} if value not in words] == []
        for expected in ("Ti⟨U+202E⟩tle", "Te⟨U+200B⟩xt", "deep=1", "12"):
            assert expected in words
    hosts = (
        ("Goes to evil.example", "What stands before the @, bank.example, is not where it goes.")
        if fields is LANDING
        else ("Goes to first.example", "Goes to detail.example")
    )
    for host in hosts:
        assert host in text_of(approver)


@pytest.mark.parametrize("link", REFUSED)
async def test_a_link_that_is_no_web_link_is_refused_at_the_form_and_in_a_call(
    console: ConsoleInstallation,
    link: str,
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    forms = (
        {"click_action": "2", "url": link},
        {**LANDING, "click4.tip-url": link},
        {"click_action": "7", "click7.url": link},
    )
    for fields in forms:
        if link.strip() != link:
            continue  # a form is stripped of spaces around its fields
        page, _ = await reviewed(sender, appkey, audience="everyone", content="x", **fields)
        assert (page.status_code, "Enter a link that begins with http:// or https://" in text_of(page)) == (400, True)
    program = await Programs(console).program(next(iter(await team_ids(console, "News"))), "sender")
    params: list[tuple[int, Any]] = [
        (2, link),
        (4, {"picture-addr": link}),
        (4, {"picture_addr": link}),
        (5, {"popup-mode": 1, "picture-addr": "https://a.example", "picture-hyperlink": link}),
        (6, {"flow-mode": 2, "information": [{"title": "a", "picture-addr": link}, {"title": "b"}]}),
        (7, {"url": link}),
    ]
    for action, param in params:
        body = push(appkey, {"userScope": 1})
        body["msgStyle"]["android"] |= {"click_action": action, "click_param": param}
        answer = await program.post(f"/apps/{appkey}/pushes", body)
        assert (answer.status_code, "must be a link that begins with" in answer.text) == (400, True), param
    assert await sent(console) == []


async def test_a_draft_whose_links_would_be_refused_now_is_shown_all_the_same(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, appkey = await app_with(console)
    sender = await console.logged_in("sender")
    monkeypatch.setattr("console.send.composed_pushes.check_links", lambda order: None)
    fields = {"audience": "everyone", "content": "x", "click_action": "2", "url": "javascript:alert(1)"}
    _, hidden = await reviewed(sender, appkey, **fields)
    draft = await send(sender, appkey, hidden, typed="4")
    monkeypatch.undo()
    approver = await console.logged_in("approver")
    words = text_of(await approver.get(draft.headers["location"]))
    assert "javascript:alert(1) This is no link to a web page." in words


def test_a_form_has_a_preview_for_each_platform_that_it_goes_to() -> None:
    form = {"title": "Storm", "content": "Stay inside", "badge": "2", "ios_badge": "-1"}
    (android,) = previews_of_form(form, is_android=True)
    assert (android.title, android.content, android.badge) == ("Storm", "Stay inside", "2")
    (ios,) = previews_of_form({**form, "content_ios": "no such field"}, is_android=False)
    assert (ios.title, ios.content, ios.badge) == ("", "Stay inside", "+1")
    both = {**form, "other": "1", "content_ios": "Stay in"}
    assert [(p.is_android, p.content) for p in previews_of_form(both, is_android=False)] == [
        (False, "Stay in"),
        (True, "Stay inside"),
    ]
    assert [p.content for p in previews_of_form({**both, "content_ios": ""}, is_android=True)] == ["Stay inside"] * 2
    (silent,) = previews_of_form({**form, "is_notif": "0"}, is_android=True)
    assert (silent.is_shown, silent.title) == (False, "")
