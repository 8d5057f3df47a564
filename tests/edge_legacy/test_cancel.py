"""DELETE /push: the answer is honest, and whoever has not received the broadcast never does."""

from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import PushFact
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import App
from services.runtime.follower import decode
from services.runtime.log import Partition
from services.runtime.topics import PUSH_COMMANDS, PUSHES
from tests.edge.conftest import PARTITIONS, Installation
from tests.edge_legacy.conftest import Doors

DONE = {"result": 0, "desc": "cancel succ"}
REFUSED = {"result": 400, "desc": "input error: msgid names no broadcast of this app that can be cancelled"}


async def commands(installation: Installation) -> list[PushCommand]:
    page = await installation.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 10_000)
    return [decode(record) for record in page.records]


async def facts(installation: Installation, kind: str) -> list[PushFact]:
    page = await installation.log.select({Partition(PUSHES.name, number): 0 for number in range(PARTITIONS)}, 10_000)
    decoded: list[PushFact] = [decode(record) for record in page.records]
    return [fact for fact in decoded if fact.WhichOneof("fact") == kind]


@pytest.mark.parametrize("target", [{}, {"filter": [5]}], ids=["broadcast", "multicast"])
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_cancel_is_a_command_and_done_when_it_is_answered(
    doors: Doors, installation: Installation, android_app: App, target: dict[str, Any], as_text: bool
) -> None:
    await installation.device(android_app, "t")
    sent = await doors.android(android_app, message="m")
    msgid = sent["msgid"]
    answer = await doors.android(android_app, method="DELETE", msgid=str(msgid) if as_text else msgid)
    assert answer == DONE
    *_, command = await commands(installation)
    assert (command.cancel.msgid, command.cancel.appkey) == (msgid, android_app.appkey)
    assert (command.meta.origin.door, command.meta.origin.address) == ("android", "127.0.0.1")
    assert {fact.msgid for fact in await facts(installation, "cancelled")} == {msgid}


async def test_a_second_cancel_is_answered_0_and_writes_nothing(
    doors: Doors, installation: Installation, android_app: App
) -> None:
    msgid = (await doors.android(android_app, message="m"))["msgid"]
    assert await doors.android(android_app, method="DELETE", msgid=msgid) == DONE
    written = len(await commands(installation))
    assert await doors.android(android_app, method="DELETE", msgid=msgid) == DONE
    assert len(await commands(installation)) == written


async def test_what_cannot_be_cancelled(doors: Doors, installation: Installation, android_app: App) -> None:
    """Unknown, another app's, a unicast, expired: all are answered alike, and leave nothing in the log."""
    other = await installation.app()
    await installation.device(android_app, "t", "alice")
    theirs = (await doors.android(other, message="m"))["msgid"]
    by_token = (await doors.android(android_app, message="m", token="t"))["msgid"]
    by_alias = (await doors.android(android_app, message="m", alias="alice"))["msgid"]
    expired = (await doors.android(android_app, message="m", period=60))["msgid"]
    installation.clock.move(60)
    written = len(await commands(installation))
    for msgid in (12345, theirs, by_token, by_alias, expired):
        assert await doors.android(android_app, method="DELETE", msgid=msgid) == REFUSED, msgid
    assert len(await commands(installation)) == written


async def test_until_its_last_moment_a_broadcast_can_be_cancelled(
    doors: Doors, installation: Installation, android_app: App
) -> None:
    msgid = (await doors.android(android_app, message="m", period=60))["msgid"]
    installation.clock.move(59.999)
    assert await doors.android(android_app, method="DELETE", msgid=msgid) == DONE


async def test_a_broadcast_that_nobody_waits_for_can_be_cancelled(doors: Doors, android_app: App) -> None:
    """An app without devices: the broadcast ends as it starts, and is known all the same."""
    msgid = (await doors.android(android_app, message="m"))["msgid"]
    assert await doors.android(android_app, method="DELETE", msgid=msgid) == DONE
