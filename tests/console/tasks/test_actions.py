"""Pushes and timed tasks are cancelled in the console, with the account in the command."""

import re

from protos.analytics.v1.analytics_pb2 import AuditPushResponse
from protos.analytics.v1.details_pb2 import Detail, PartitionCount
from protos.push.v1.push_pb2 import Audience, Everyone, SendPush
from protos.scheduling.v1.scheduling_pb2 import CreateTask, TaskCommand
from services.domain.command_writer import CommandWriter, task_command
from services.domain.topics import PUSH_COMMANDS, TASK_COMMANDS, decode
from services.log.port import Partition
from services.log.topics import partition_of
from testkit.faults.crashing_log import records_of
from tests.console.conftest import PARTITIONS, START_MS, ConsoleInstallation, text_of
from tests.console.scripted_delivery import EXPIRED

MSGID = 236244332179456
REQUEST = '{"msgStyle":{"android":{"title":"<b>Storm</b>"},"basic":{"content":"Stay inside","is_notif":1}}}'


async def test_a_broadcast_is_cancelled_once_by_those_who_may_send(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", viewer="viewer", sender="sender"))
    for msgid, kind in ((MSGID, "broadcast"), (EXPIRED, "multicast"), (8, "unicast")):
        console.analytics.pushes[msgid] = AuditPushResponse(msgid=msgid, appkey=appkey, kind=kind)
    sender, viewer = await console.logged_in("sender"), await console.logged_in("viewer")
    path = f"/apps/{appkey}/pushes/{MSGID}"
    assert "Cancel this push" in text_of(await sender.get(path))
    assert "Cancel this push" not in text_of(await viewer.get(path))
    assert "Cancel this push" not in text_of(await sender.get(f"/apps/{appkey}/pushes/8"))
    for _ in range(2):
        assert (await sender.post(f"{path}/cancel")).headers["location"] == path
    assert "The push is cancelled" in text_of(await sender.get(path))
    commands = [decode(record) for record in await records_of(console.log, Partition(PUSH_COMMANDS.name, 0))]
    assert [(command.cancel.msgid, command.cancel.appkey) for command in commands] == [(MSGID, appkey)]
    assert commands[0].meta.origin.actor.startswith("user/")
    too_late = await sender.post(f"/apps/{appkey}/pushes/{EXPIRED}/cancel")
    assert (too_late.status_code, "names no broadcast" in text_of(too_late)) == (400, True)
    console.analytics.pushes[MSGID].timeline.add(event="cancel command")
    assert "Cancel this push" not in text_of(await sender.get(path))


async def test_the_timeline_of_a_cancelled_push_counts_devices_and_no_partitions(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", viewer="viewer"))
    push = console.analytics.pushes[MSGID] = AuditPushResponse(msgid=MSGID, appkey=appkey)
    partitions = [Detail(partitions=PartitionCount(count=25, of=32))]
    for event, details in {"audience": [], "push cancelled": partitions, "cancelled": []}.items():
        push.timeline.add(event=event, count=25, details=details)
    words = text_of(await (await console.logged_in("viewer")).get(f"/apps/{appkey}/pushes/{MSGID}"))
    assert "push cancelled – in 25 of 32 partitions" in words
    assert ("audience fixed 25 –" in words, "cancelled 25 –" in words) == (True, True)


async def timed(console: ConsoleInstallation, key: str, *appkeys: str, in_s: int = 3600) -> None:
    """Write a task that sends to these apps after this while, an hour unless it is given."""
    everyone = Audience(everyone=Everyone())
    pushes = [
        SendPush(msgid=index + 1, appkey=appkey, request_json=REQUEST, audience=everyone)
        for index, appkey in enumerate(appkeys)
    ]
    command = TaskCommand(task_key=key, create=CreateTask(pushes=pushes, due_ms=START_MS + in_s * 1000))
    writer = CommandWriter("test", console.log, console.peers, console.clock, PARTITIONS)
    await writer.append_and_wait([task_command(command)])


async def test_the_task_that_is_due_next_is_on_top(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", sender="sender")
    appkey = await console.app("News", team_id)
    for key, in_s in {"second": 7200, "first": 3600, "third": 9000, "cancelled": 60}.items():
        await timed(console, key, appkey, in_s=in_s)
    sender = await console.logged_in("sender")
    await sender.get("/tasks")
    await sender.post(f"/apps/{appkey}/tasks/cancelled/cancel")
    page = await sender.get("/tasks")
    assert re.findall(r'tasks/([^"/]+)/cancel"', page.text) == ["first", "second", "third"]
    assert re.findall(r'class="badge [^"]+">([^<]+)<', page.text) == ["waits", "waits", "waits", "cancelled"]


async def test_tasks_are_listed_and_cancelled_by_those_who_may_send_all_of_it(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer", sender="sender")
    appkey, foreign = await console.app("News", team_id), await console.app("Foreign")
    await timed(console, "own", appkey)
    await timed(console, "both", foreign, appkey)
    await timed(console, "hidden", foreign)
    sender, viewer = await console.logged_in("sender"), await console.logged_in("viewer")
    page = await viewer.get("/tasks")
    words = text_of(page)
    line = "<b>Storm</b> Stay inside 2026-09-21 23:13:20 all devices News 2026-09-21 22:13:20 waits –"
    assert words.count(line) == 2
    assert "Foreign" not in words
    page = await sender.get(f"/tasks?appkey={appkey}")
    assert re.findall(r'action="([^"]+/cancel)"', page.text) == [f"/apps/{appkey}/tasks/own/cancel"]
    assert "The push <b>Storm</b> is not sent. This cannot be undone. Cancel the task <b>Storm</b>" in text_of(page)
    assert (await sender.post(f"/apps/{appkey}/tasks/both/cancel")).status_code == 403
    for key in ("hidden", "unknown"):
        assert (await sender.post(f"/apps/{appkey}/tasks/{key}/cancel")).status_code == 400
    await sender.get("/tasks")
    assert (await sender.post(f"/apps/{appkey}/tasks/own/cancel")).headers["location"] == "/tasks"
    words = text_of(await sender.get("/tasks"))
    assert ("nothing of it is sent" in words, words.count("cancelled –"), words.count("waits –")) == (True, 1, 1)
    again = await sender.post(f"/apps/{appkey}/tasks/own/cancel")
    assert (again.status_code, "The task was cancelled already." in text_of(again)) == (400, True)
    assert (await sender.get("/tasks?page=0")).status_code == 400
    assert "No timed push" in text_of(await sender.get("/tasks?page=2"))
    partition = Partition(TASK_COMMANDS.name, partition_of(b"own", PARTITIONS))
    cancels = [decode(record) for record in await records_of(console.log, partition)][1:]
    assert [command.meta.origin.actor[:5] for command in cancels if command.HasField("cancel")] == ["user/"]
