"""Pages of a push that its timed task has not sent: when it is due, its cancel, and why no device has it."""

import re
from html import unescape

import httpx
import pytest

from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    AuditActionsRequest,
    AuditPushResponse,
    Exclusion,
    ExclusionReason,
    PushOnDevice,
    TimelineEntry,
)
from protos.analytics.v1.details_pb2 import AudienceSummary, CommandOrigin, Detail
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from tests.console.conftest import Browser, ConsoleInstallation, text_of
from tests.console.send.test_pages import reviewed, send, sender_of, tasks

DUE = "2026-09-22 08:30:00"
NOT_STARTED = Exclusion(reason=ExclusionReason.EXCLUSION_REASON_PUSH_NOT_STARTED, partition=2)


async def scheduled(console: ConsoleInstallation, appkey: str, sender: Browser, **fields: str) -> CreateTask:
    """Schedule a push for DUE, have analytics know it, and return its task."""
    chosen = {"audience": "filter", "stag": "a", "title": "Storm <1>", "content": "Stay inside", **fields}
    _, hidden = await reviewed(sender, appkey, when="at", send_at=DUE.replace(" ", "T")[:16], **chosen)
    assert (await send(sender, appkey, hidden)).status_code == 303
    (command,) = await tasks(console)
    push = command.create.pushes[0]
    origin = Detail(origin=CommandOrigin(interface=command.meta.origin.interface))
    details = [Detail(task=command.task_key), Detail(due_ms=command.create.due_ms), origin]
    console.analytics.actions = [
        ActionEntry(action=action, actor=command.meta.origin.actor, details=[Detail(task=command.task_key)])
        for action in ("task cancelled", "task scheduled")
    ]
    console.analytics.pushes[push.msgid] = AuditPushResponse(
        msgid=push.msgid,
        appkey=appkey,
        kind="multicast",
        request_json=push.request_json,
        audience_summary=AudienceSummary(filter=push.audience.filter),
        timeline=[TimelineEntry(first_ms=command.meta.time_ms, event="task scheduled", count=1, details=details)],
        device=PushOnDevice(exclusion=NOT_STARTED),
    )
    return command.create


async def test_the_page_of_a_scheduled_push_says_when_it_is_due_and_cancels_its_task(
    console: ConsoleInstallation,
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    task = await scheduled(console, appkey, sender)
    (command,) = await tasks(console)
    path = f"/apps/{appkey}/pushes/{task.pushes[0].msgid}"
    page = await sender.get(path)
    words = text_of(page)
    assert f"Due {DUE} (in 10 hours)" in words
    assert "Scheduled 2026-09-21 22:13:20 by sender" in words
    assert f"Scheduled for {DUE}; it has not been sent yet." in words
    for absent in ("Results", "0 devices", "No device is in the audience", "Speed"):
        assert absent not in words, words
    assert f'action="{path}/cancel"' not in page.text
    cancel = f"/apps/{appkey}/tasks/{command.task_key}/cancel"
    assert f'action="{cancel}"' in page.text
    assert (await sender.post(cancel)).headers["location"] == "/tasks"
    page = await sender.get(path)
    assert f"Scheduled for {DUE}, and cancelled before: nothing was sent." in text_of(page)
    assert f'action="{cancel}"' not in page.text


async def test_a_scheduled_push_that_was_sent_has_its_numbers(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    msgid = (await scheduled(console, appkey, sender)).pushes[0].msgid
    console.analytics.pushes[msgid].timeline.add(event="command", count=1)
    page = await sender.get(f"/apps/{appkey}/pushes/{msgid}")
    words = text_of(page)
    assert ("Results" in words, "Scheduled for" in words) == (True, False)
    assert f'action="/apps/{appkey}/pushes/{msgid}/cancel"' in page.text


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_scheduled_push_is_the_reason_why_no_device_has_it(
    console: ConsoleInstallation, is_cancelled: bool
) -> None:
    appkey, sender = await sender_of(console, devices=1)
    task = await scheduled(console, appkey, sender)
    if is_cancelled:
        (command,) = await tasks(console)
        await sender.get("/tasks")
        await sender.post(f"/apps/{appkey}/tasks/{command.task_key}/cancel")
    answer = text_of(await sender.get(f"/apps/{appkey}/why?name=user-0&push={task.pushes[0].msgid}"))
    told = ", and cancelled before: nothing was sent." if is_cancelled else "; it has not been sent yet."
    assert f"Scheduled for {DUE}{told}" in answer
    assert "Not in the audience" not in answer


async def test_each_task_leads_to_its_push_and_tells_its_text_and_audience(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    chosen = {"audience": "alias", "alias": "user-0"}
    msgid = (await scheduled(console, appkey, sender, **chosen)).pushes[0].msgid
    (command,) = await tasks(console)
    for state in ("waits", "cancelled"):
        page = await sender.get("/tasks")
        assert f'<a href="/apps/{appkey}/pushes/{msgid}">Storm &lt;1&gt;</a>' in page.text
        words = text_of(page)
        for told in ("Stay inside", "alias user-0", "22:13:20 sender", state):
            assert told in words, words
        await sender.post(f"/apps/{appkey}/tasks/{command.task_key}/cancel")


async def test_tasks_are_listed_without_their_authors_while_analytics_is_away(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await scheduled(console, appkey, sender)
    asked = [request for request in console.analytics.asked if isinstance(request, AuditActionsRequest)]
    assert asked == []
    console.analytics.is_away = True
    page = await sender.get("/tasks")
    assert (page.status_code, "Storm <1>" in text_of(page)) == (200, True)


def change_of(page: httpx.Response) -> dict[str, str]:
    """Return the fields of the form with which a timed push is changed."""
    found = re.findall(r'name="(task|send_at|title)"[^>]*? value="([^"]*)"', page.text)
    return {name: unescape(value) for name, value in found}


async def test_a_scheduled_push_is_changed_by_another_in_its_place(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    task = await scheduled(console, appkey, sender)
    (former,) = await tasks(console)
    link = f"/apps/{appkey}/send?task={former.task_key}"
    for path in ("/tasks", f"/apps/{appkey}/pushes/{task.pushes[0].msgid}"):
        assert f'href="{link}"' in (await sender.get(path)).text
    form = await sender.get(link)
    fields = change_of(form)
    assert fields == {"task": former.task_key, "send_at": "2026-09-22T08:30", "title": "Storm <1>"}
    assert re.search(r'<textarea id="f-stag"[^>]*>a</textarea>', form.text)
    assert "Change the timed push of News" in text_of(form)
    changed = {**fields, "stag": "a", "send_at": "2026-09-22T09:00", "content": "Come out"}
    page, hidden = await reviewed(sender, appkey, when="at", **changed)
    assert "This replaces the timed push, which is cancelled with it." in text_of(page)
    assert page.text.count(f'name="task" value="{former.task_key}"') == 2
    again = await sender.post(f"/apps/{appkey}/send", body=hidden["body"], task=former.task_key)
    assert change_of(again)["task"] == former.task_key
    for _ in range(2):
        answer = await send(sender, appkey, hidden, task=former.task_key)
        assert answer.headers["location"] == f"/tasks?appkey={appkey}"
    commands = await tasks(console)
    assert [command.task_key for command in commands if command.HasField("cancel")] == [former.task_key]
    created = [command.create.pushes[0].request_json for command in commands if command.HasField("create")]
    assert [("Come out" in text) for text in sorted(created, key=len)] in ([True, False], [False, True])
    waiting = text_of(await sender.get("/tasks"))
    assert (waiting.count(" waits "), waiting.count(" cancelled ")) == (1, 1), waiting
    moved = await sender.get(link)
    assert moved.headers["location"] == f"/apps/{appkey}/pushes/{task.pushes[0].msgid}"


async def test_a_change_that_comes_too_late_sends_nothing_of_its_own(console: ConsoleInstallation) -> None:
    appkey, sender = await sender_of(console, devices=1)
    await scheduled(console, appkey, sender)
    (former,) = await tasks(console)
    fields = {"audience": "filter", "stag": "a", "content": "Come out", "task": former.task_key}
    _, hidden = await reviewed(sender, appkey, when="at", send_at="2026-09-22T09:00", **fields)
    await sender.post(f"/apps/{appkey}/tasks/{former.task_key}/cancel")
    refused = await send(sender, appkey, hidden, task=former.task_key)
    assert (refused.status_code, 'role="alert"' in refused.text) == (400, True)
    assert [command.WhichOneof("command") for command in await tasks(console)].count("create") == 1
    other = await console.app("Others")
    assert (await sender.get(f"/apps/{appkey}/send?task=none")).status_code == 404
    assert (await sender.get(f"/apps/{other}/send?task={former.task_key}")).status_code == 403
