"""What the page of a push says of its request: who sent it and when, to whom, how fast, and what a click does."""

import pytest

from protos.analytics.v1.analytics_pb2 import ActionEntry, ActionScope, AuditActionsRequest, TimelineEntry
from protos.analytics.v1.details_pb2 import CommandOrigin, Detail
from tests.console.conftest import START_MS, ConsoleInstallation, text_of
from tests.console.pushes.test_pages import MSGID, audit
from tests.console.send.test_pages import reviewed, sender_of

MINUTE_MS = 60_000


def caused(event: str, detail: Detail, at_ms: int = START_MS) -> TimelineEntry:
    return TimelineEntry(first_ms=at_ms, last_ms=at_ms, event=event, count=1, details=[detail])


async def test_a_push_page_says_who_sent_it_to_whom_and_how(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    user = f"user/{await console.user('amara')}"
    chosen = {"audience": "alias", "alias": "my-phone", "period": "2", "period_unit": "h", "qps": "1"}
    _, hidden = await reviewed(sender, appkey, content="x", click_action="2", url="https://example.org/", **chosen)
    accepted = caused("command", Detail(accepted=CommandOrigin(interface="console")))
    push = audit(appkey, request_json=hidden["body"], timeline=[accepted])
    console.analytics.pushes[MSGID] = push
    console.analytics.actions = [
        ActionEntry(action="push sent", actor="user/another", details=[Detail(push=MSGID + 1)]),
        ActionEntry(action="push sent", actor=user, details=[Detail(push=MSGID)]),
    ]
    words = text_of(await sender.get(f"/apps/{appkey}/pushes/{MSGID}"))
    for told in (
        "Audience alias my-phone (1,200 devices)",
        "Sent 2026-09-21 22:13:20 by amara",
        "Time to live 2 hours",
        "Messages a second 1",
        "When tapped A click opens https://example.org/",
    ):
        assert told in words, words
    assert console.analytics.asked[-1] == AuditActionsRequest(
        from_ms=START_MS,
        to_ms=START_MS + MINUTE_MS,
        scope=ActionScope(appkeys=[appkey]),
        subject="push",
        limit=1000,
        allow_behind=True,
    )


@pytest.mark.parametrize(("interface", "told"), [("console", "22:13:21 by amara"), ("v2", "22:13:21")])
async def test_the_account_that_cancelled_a_push_is_named(
    console: ConsoleInstallation, interface: str, told: str
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    user = f"user/{await console.user('amara')}"
    cancel = caused("cancel command", Detail(origin=CommandOrigin(interface=interface)), START_MS + 1000)
    console.analytics.pushes[MSGID] = audit(appkey, timeline=[cancel])
    console.analytics.actions = [ActionEntry(action="push cancelled", actor=user, details=[Detail(push=MSGID)])]
    words = text_of(await sender.get(f"/apps/{appkey}/pushes/{MSGID}"))
    assert f"Cancelled 2026-09-21 {told}" in words, words
    assert ("amara" in words) == (interface == "console")


async def test_a_request_of_another_interface_has_fewer_facts(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    for request_json in ("", '{"message":"hello"}'):
        console.analytics.pushes[MSGID] = audit(appkey)
        console.analytics.pushes[MSGID].request_json = request_json
        page = await sender.get(f"/apps/{appkey}/pushes/{MSGID}")
        assert (page.status_code, "Time to live" in text_of(page)) == (200, False)
