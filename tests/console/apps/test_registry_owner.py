"""The console while the registry has no owner: pages of apps are shown, and a change waits for the next owner."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from protos.registry.v1.registry_pb2 import ListAppsRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.process.clock import ManualClock
from services.replica import owner_channel
from testkit.waiting import until_holds
from tests.console.conftest import START_MS, ConsoleInstallation, running_console, text_of


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[ConsoleInstallation]:
    async with running_console(tmp_path, ManualClock(START_MS), has_owner=True) as installation:
        yield installation


async def test_a_change_that_no_owner_takes_is_answered_with_503_and_is_not_made(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    team_id = await console.team("News", approver="approver")
    appkey = await console.app(team_id=team_id)
    browser = await console.logged_in("approver")
    path = f"/apps/{appkey}"
    await browser.get(path)
    monkeypatch.setattr(owner_channel, "TAKEOVER_S", 0.0)
    async with console.owned_registry.standing_by():
        assert "Pause sending" in text_of(await browser.get(path))
        refused = await browser.post(f"{path}/pause", change="pause", reason="storm")
        assert (refused.status_code, "stands by" in text_of(refused)) == (503, False)
    monkeypatch.undo()
    assert "Pause sending" in text_of(await browser.get(path))


async def test_an_app_that_is_registered_meanwhile_is_registered_once(console: ConsoleInstallation) -> None:
    team_id = await console.team("News")
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    await root.get("/apps/new")
    form = {"name": "Weather", "platform": "android", "package": "org.example.weather", "team_id": team_id}
    async with console.owned_registry.standing_by():
        before = console.owned_registry.refused()
        making = asyncio.create_task(root.post("/apps/new", **form))
        await until_holds(lambda: console.owned_registry.refused() > before)
    assert (await making).status_code == 303
    found = await RegistryServiceStub(console.peers.all("registry")[0]).ListApps(ListAppsRequest())
    assert [app.name for app in found.apps] == ["Weather"]
