"""DELETE /push: a cancelled broadcast reaches no further device, and the answer says whether it is cancelled."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

import services.delivery.main
import services.delivery.settings
from protos.delivery.v1.delivery_pb2 import PushFact
from protos.push.v1.push_pb2 import PushCommand
from protos.registry.v1.apps_pb2 import App
from services.domain.role import BuiltRole, RoleContext
from services.domain.topics import PUSH_COMMANDS, PUSHES, decode
from services.log.port import Partition
from testkit.edge.legacy_client import LegacyClient
from testkit.edge.role import BACKENDS, PARTITIONS, EdgeInstallation, edge_installation
from testkit.faults.slow_log import SlowLog
from testkit.waiting import until

DONE = {"result": 0, "desc": "cancel succ"}
REFUSED = {"result": 400, "desc": "input error: msgid names no broadcast of this app that can be cancelled"}


async def commands(installation: EdgeInstallation) -> list[PushCommand]:
    page = await installation.log.select({Partition(PUSH_COMMANDS.name, 0): 0}, 10_000)
    return [decode(record) for record in page.records]


async def facts(installation: EdgeInstallation, kind: str) -> list[PushFact]:
    page = await installation.log.select({Partition(PUSHES.name, number): 0 for number in range(PARTITIONS)}, 10_000)
    decoded: list[PushFact] = [decode(record) for record in page.records]
    return [fact for fact in decoded if fact.WhichOneof("fact") == kind]


@pytest.mark.parametrize("target", [{}, {"filter": [5]}], ids=["broadcast", "multicast"])
@pytest.mark.parametrize("as_text", [False, True])
async def test_a_cancel_is_a_command_and_applied_when_it_is_answered(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App, target: dict[str, Any], as_text: bool
) -> None:
    await installation.device(android_app, "t")
    sent = await legacy.android(android_app, message="m")
    msgid = sent["msgid"]
    answer = await legacy.android(android_app, "/push", "DELETE", msgid=str(msgid) if as_text else msgid)
    assert answer == DONE
    *_, command = await commands(installation)
    assert (command.cancel.msgid, command.cancel.appkey) == (msgid, android_app.appkey)
    assert (command.meta.origin.interface, command.meta.origin.address) == ("android", "127.0.0.1")

    async def is_cancelled() -> bool:
        return {fact.msgid for fact in await facts(installation, "cancelled")} == {msgid}

    await until(is_cancelled)


async def test_a_second_cancel_is_answered_0_and_writes_nothing(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    msgid = (await legacy.android(android_app, message="m"))["msgid"]
    assert await legacy.android(android_app, "/push", "DELETE", msgid=msgid) == DONE
    written = len(await commands(installation))
    assert await legacy.android(android_app, "/push", "DELETE", msgid=msgid) == DONE
    assert len(await commands(installation)) == written


async def test_cancels_that_are_refused(legacy: LegacyClient, installation: EdgeInstallation, android_app: App) -> None:
    """Unknown, another app's, a unicast, expired: all get the same answer and leave nothing in the log."""
    other = await installation.app()
    await installation.device(android_app, "t", "alice")
    theirs = (await legacy.android(other, message="m"))["msgid"]
    by_token = (await legacy.android(android_app, message="m", token="t"))["msgid"]
    by_alias = (await legacy.android(android_app, message="m", alias="alice"))["msgid"]
    expired = (await legacy.android(android_app, message="m", period=60))["msgid"]
    installation.clock.move(60)
    written = len(await commands(installation))
    for msgid in (12345, theirs, by_token, by_alias, expired):
        assert await legacy.android(android_app, "/push", "DELETE", msgid=msgid) == REFUSED, msgid
    assert len(await commands(installation)) == written


async def test_a_broadcast_can_be_cancelled_until_its_time_to_live_ends(
    legacy: LegacyClient, installation: EdgeInstallation, android_app: App
) -> None:
    msgid = (await legacy.android(android_app, message="m", period=60))["msgid"]
    installation.clock.move(59.999)
    assert await legacy.android(android_app, "/push", "DELETE", msgid=msgid) == DONE


async def test_a_broadcast_without_an_audience_can_be_cancelled(legacy: LegacyClient, android_app: App) -> None:
    """In an app without devices a broadcast finishes at once; delivery still knows it."""
    msgid = (await legacy.android(android_app, message="m"))["msgid"]
    assert await legacy.android(android_app, "/push", "DELETE", msgid=msgid) == DONE


async def test_a_cancel_waits_until_delivery_has_caught_up(tmp_path: Path) -> None:
    """A broadcast that was answered can be cancelled even before delivery has read it."""
    logs: list[SlowLog] = []

    def build(settings: services.delivery.settings.DeliverySettings, context: RoleContext) -> BuiltRole:
        logs.append(SlowLog(context.log, PUSH_COMMANDS.name))
        return services.delivery.main.build(settings, dataclasses.replace(context, log=logs[0]))

    delivery = (services.delivery.settings.DeliverySettings, build)
    async with edge_installation(tmp_path, {**BACKENDS, "delivery": delivery}) as installation:
        legacy, app = LegacyClient(installation), await installation.app()
        await logs[0].read_begun.wait()
        msgid = (await legacy.android(app, message="m"))["msgid"]
        cancelling = asyncio.create_task(legacy.android(app, "/push", "DELETE", msgid=msgid))
        await legacy.android(app, message="another request, so that the first is on its way")
        assert not cancelling.done()
        logs[0].released.set()
        assert await cancelling == DONE
