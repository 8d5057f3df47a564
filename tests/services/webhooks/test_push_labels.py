"""A webhook that names labels gets the events of the pushes with them, whatever the order in which records are read."""

import asyncio
from typing import Any

import pytest

from protos.push.v1.push_pb2 import PushCommand, SendPush
from protos.registry.v1.apps_pb2 import EVENT_KIND_APP_PAUSED, EVENT_KIND_MESSAGE_RECEIVED, AppChanged, AppFact
from services.domain.topics import APPS, PUSH_COMMANDS
from services.log.port import NewRecord
from services.webhooks import push_labels
from services.webhooks.push_labels import LOOK_BACK_MS, PushLabels, labels_file
from services.webhooks.settings import ROLE_NAME
from testkit.waiting import until_holds
from testkit.webhook_receiver import WebhookReceiver
from tests.services.webhooks.conftest import APP, Installation

RECEIVED: dict[str, Any] = {"kinds": [EVENT_KIND_MESSAGE_RECEIVED]}


async def push(installation: Installation, msgid: int, label: str = "", id_count: int = 1) -> None:
    send = SendPush(msgid=msgid, id_count=id_count, appkey=APP, label=label)
    command = PushCommand(meta=installation.meta(), send=send)
    await installation.log.append([NewRecord(PUSH_COMMANDS.name, 0, b"%d" % msgid, command.SerializeToString())])


def ids_of(receiver: WebhookReceiver) -> list[str]:
    return [event["id"] for event in receiver.events]


async def test_the_events_of_labelled_pushes_and_of_no_push_come(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        kinds = [EVENT_KIND_MESSAGE_RECEIVED, EVENT_KIND_APP_PAUSED]
        webhook = await installation.subscribe(receiver.url, labels=["spring"], msgids=[99], kinds=kinds)
        await installation.until_followed(webhook)
        await push(installation, 10, "spring", id_count=2)
        await push(installation, 20, "autumn")
        expected = await installation.report(1, msgid=11)
        await installation.report(1, msgid=12)
        await installation.report(1, msgid=20)
        expected += await installation.report(1, msgid=99, partition=1)
        paused = AppFact(meta=installation.meta(), changed=AppChanged(appkey=APP, action="paused"))
        await installation.log.append([NewRecord(APPS.name, 0, b"changed", paused.SerializeToString())])
        await receiver.until_events(3)
        await installation.report(1, msgid=20)
        expected += await installation.report(1, msgid=10)
        await receiver.until_events(4)
    got = [event["id"] for event in receiver.events if event["type"] == "message.received"]
    assert sorted(got) == sorted(expected)
    assert len(receiver.events) == 4


@pytest.mark.parametrize("loses_snapshot", [False, True])
async def test_outcomes_after_a_restart_belong_to_their_push(
    installation: Installation, receiver: WebhookReceiver, loses_snapshot: bool
) -> None:
    async with installation.running():
        await installation.until_followed(await installation.subscribe(receiver.url, labels=["spring"], **RECEIVED))
        await push(installation, 10, "spring")
        expected = await installation.report(1, msgid=10)
        await receiver.until_events(1)
    snapshot = labels_file(installation.settings.state_dir(ROLE_NAME)).path
    assert snapshot.exists()
    if loses_snapshot:
        snapshot.unlink()
    await push(installation, 11, "spring")
    expected += await installation.report(1, msgid=11)
    async with installation.running():
        expected += await installation.report(1, msgid=10)
        await receiver.until_events(3)
    assert ids_of(receiver) == expected


async def test_a_webhook_that_names_another_label_gets_its_pushes(
    installation: Installation, receiver: WebhookReceiver
) -> None:
    async with installation.running():
        await installation.until_followed(await installation.subscribe(receiver.url, labels=["spring"], **RECEIVED))
        await push(installation, 10, "autumn")
        await push(installation, 11, "spring")
        expected = await installation.report(1, msgid=11)
        await installation.report(1, msgid=10)
        await receiver.until_events(1)
        (stored,) = installation.apps[APP].webhooks
        stored.labels[:] = ["autumn"]
        await installation.write_app(APP)
        await installation.until_followed(stored)
        await installation.report(1, msgid=11)
        expected += await installation.report(1, msgid=10)
        await receiver.until_events(2)
    assert ids_of(receiver) == expected


async def test_other_webhooks_do_not_wait_for_labels(
    installation: Installation,
    receiver: WebhookReceiver,
    other_receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_read, follow = asyncio.Event(), PushLabels._follow

    async def follow_later(labels: PushLabels) -> None:
        await may_read.wait()
        await follow(labels)

    monkeypatch.setattr(PushLabels, "_follow", follow_later)
    async with installation.running():
        await installation.until_followed(await installation.subscribe(receiver.url, labels=["spring"], **RECEIVED))
        await installation.until_followed(await installation.subscribe(other_receiver.url, **RECEIVED))
        await push(installation, 10, "spring")
        expected = await installation.report(2, msgid=10)
        await other_receiver.until_events(2)
        assert receiver.events == []
        may_read.set()
        await receiver.until_events(2)
    assert ids_of(receiver) == ids_of(other_receiver) == expected


class Wanted:
    """Subscriptions whose webhooks name these labels."""

    def __init__(self, **labels: int) -> None:
        self.wanted = labels
        self.changes = (asyncio.Event(), asyncio.Event())

    def labels(self) -> dict[str, int]:
        return self.wanted

    def next_change_ms(self) -> None:
        return None


async def test_old_pushes_are_not_looked_for_and_the_oldest_ids_are_forgotten(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_labels, "MAX_KEPT", 3)
    await push(installation, 1, "spring")
    installation.clock.move(LOOK_BACK_MS / 1000 + 1)
    await push(installation, 5, "spring", id_count=2)
    wanted: Any = Wanted(spring=0)
    file = labels_file(installation.settings.state_dir(ROLE_NAME))
    labels = PushLabels(installation.log, wanted, installation.clock, file)
    running = asyncio.create_task(labels.run(asyncio.Event()))
    await until_holds(lambda: labels.know(["spring"]))
    assert [labels.has(["spring"], msgid) for msgid in (1, 4, 5, 6, 7)] == [False, False, True, True, False]
    assert not labels.know(["autumn"])
    await push(installation, 8, "spring", id_count=2)
    await until_holds(lambda: labels.has(["spring"], 9))
    assert [labels.has(["none", "spring"], msgid) for msgid in (5, 6, 8, 9)] == [False, True, True, True]
    wanted.wanted = {}
    wanted.changes[0].set()
    await until_holds(lambda: not file.path.exists())
    assert not labels.has(["spring"], 9)
    running.cancel()
    await asyncio.wait([running])
