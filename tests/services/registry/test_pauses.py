"""Pauses of one app and of all apps: facts and records for the audit, and the commands that make them."""

import asyncio

import pytest

from protos.registry.v1.apps_pb2 import Pause
from protos.registry.v1.registry_pb2 import (
    GetAppRequest,
    ListAppsRequest,
    PauseAppsRequest,
    ResumeAppsRequest,
    RotateSecretRequest,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.topics import APPS, decode
from services.errors import InputError, NotFoundError
from services.process.metrics import APPS_PAUSED
from testkit.waiting import run_ready_tasks
from tests.services.registry.conftest import BOUND_S, NOON_MS, RunningRegistry, records

ALICE = Origin(interface="cli", address="alice@ops", request_id="r1")


def paused_apps() -> float:
    (metric,) = APPS_PAUSED.collect()
    return metric.samples[0].value


async def changes(registry: RunningRegistry) -> list[tuple[str, str, list[str], str]]:
    """Return the changes in the log as (appkey, action, settings, address of the origin)."""
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    return [
        (fact.changed.appkey, fact.changed.action, list(fact.changed.settings), fact.meta.origin.address)
        for fact in facts
        if fact.WhichOneof("fact") == "changed" and fact.changed.action != "created"
    ]


async def test_a_paused_app_says_since_when_by_whom_and_why_until_it_is_resumed(registry: RunningRegistry) -> None:
    app, other = await registry.app(), await registry.app()
    change = registry.apps.pauses_changed
    paused = await registry.stub.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="complaints", origin=ALICE))
    pause = Pause(since_ms=NOON_MS, reason="complaints", origin=ALICE)
    assert (paused.pause, paused.already_paused) == (pause, False)
    assert (await registry.stub.GetApp(GetAppRequest(appkey=app.appkey))).app.pause == pause
    assert change.is_set()
    assert registry.apps.is_paused(app.appkey)
    assert not registry.apps.is_paused(other.appkey)
    await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey))
    assert registry.apps.is_paused(app.appkey), "another change of the app leaves the pause"

    registry.clock.move(60)
    again = await registry.stub.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="again"))
    assert (again.pause, again.already_paused) == (pause, True)
    waiting = asyncio.create_task(registry.apps.until_resumed(app.appkey))
    await run_ready_tasks()
    assert not waiting.done()
    resumed = await registry.stub.ResumeApps(ResumeAppsRequest(appkey=app.appkey, reason="mended", origin=ALICE))
    await asyncio.wait_for(waiting, BOUND_S)
    assert resumed.ended == pause
    assert not registry.apps.is_paused(app.appkey)
    twice = await registry.stub.ResumeApps(ResumeAppsRequest(appkey=app.appkey))
    assert not twice.HasField("ended")

    assert [change for change in await changes(registry) if change[1] != "secret rotated"] == [
        (app.appkey, "paused", ["complaints"], "alice@ops"),
        (app.appkey, "resumed", ["mended"], "alice@ops"),
    ]


async def test_the_pause_of_all_apps_is_independent_of_the_pauses_of_single_apps(registry: RunningRegistry) -> None:
    one, other = await registry.app(), await registry.app()
    await registry.stub.PauseApps(PauseAppsRequest(appkey=one.appkey))
    assert paused_apps() == 1
    await registry.stub.PauseApps(PauseAppsRequest(all_apps=True, reason="attack", origin=ALICE))
    later = await registry.app()
    for app in (one, other, later):
        assert registry.apps.is_paused(app.appkey)
    assert paused_apps() == 3
    assert (await registry.stub.ListApps(ListAppsRequest())).installation_pause.reason == "attack"

    await registry.stub.ResumeApps(ResumeAppsRequest(all_apps=True))
    assert [registry.apps.is_paused(app.appkey) for app in (one, other, later)] == [True, False, False]
    assert paused_apps() == 1
    await registry.stub.PauseApps(PauseAppsRequest(all_apps=True))
    await registry.stub.ResumeApps(ResumeAppsRequest(appkey=one.appkey))
    assert registry.apps.is_paused(one.appkey)
    assert ("", "paused", ["attack"], "alice@ops") in await changes(registry)


async def test_a_restarted_registry_knows_the_pauses(registry: RunningRegistry) -> None:
    app, other = await registry.app(), await registry.app()
    await registry.stub.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="night"))
    await registry.stub.PauseApps(PauseAppsRequest(all_apps=True))
    await registry.stub.ResumeApps(ResumeAppsRequest(all_apps=True))
    await registry.stop()
    again = RunningRegistry(registry.settings, registry.log, registry.clock)
    await again.start()
    assert again.apps.is_paused(app.appkey)
    assert not again.apps.is_paused(other.appkey)
    await again.stop()


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (PauseAppsRequest(appkey="1"), NotFoundError),
        (PauseAppsRequest(), NotFoundError),
        (PauseAppsRequest(appkey="1", all_apps=True), InputError),
        (PauseAppsRequest(all_apps=True, reason="x" * 201), InputError),
        (PauseAppsRequest(all_apps=True, reason="two\nlines"), InputError),
    ],
)
async def test_a_wrong_request_changes_nothing(
    registry: RunningRegistry, request_: PauseAppsRequest, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await registry.stub.PauseApps(request_)
    assert await changes(registry) == []
