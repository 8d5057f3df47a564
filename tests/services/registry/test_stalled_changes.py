"""Changes of apps while the log stalls: none is based on an app that an earlier change is still about to replace."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.registry_pb2 import (
    PauseAppsRequest,
    RotateSecretRequest,
    UpdateAppRequest,
    UpdateAppResponse,
)
from services.domain.topics import APPS, decode
from services.errors import InputError
from services.log.port import DelegatingLog, Log, NewRecord
from services.log.sqlite.log import SqliteLog
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.registry.conftest import BOUND_S, RunningRegistry, Start, records


class StallingLog(DelegatingLog):
    """A log that carries out no append while `goes_on` is not set. Cancelling the call does not stop the append."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.refuses = False
        self.begun = 0

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        self.begun += 1
        return await asyncio.shield(asyncio.create_task(self._append_later(new_records)))

    async def _append_later(self, new_records: Sequence[NewRecord]) -> list[int]:
        await self.goes_on.wait()
        if self.refuses:
            raise InputError("too large")
        return await super().append(new_records)


@pytest.fixture
def stalling(log: SqliteLog) -> StallingLog:
    return StallingLog(log)


@pytest.fixture
async def registry(start: Start, stalling: StallingLog) -> AsyncIterator[RunningRegistry]:
    async with start(stalling) as running:
        yield running


async def begun_and_given_up(stalling: StallingLog, call: Awaitable[Any]) -> None:
    """Make the call until its append has begun, in a log that stalls from now on, and end it as its deadline does."""
    stalling.goes_on.clear()
    begun = stalling.begun
    calling = asyncio.ensure_future(call)
    await until_holds(lambda: stalling.begun > begun)
    calling.cancel()
    await asyncio.wait([calling], timeout=BOUND_S)
    assert calling.cancelled()


async def renaming_behind_a_pause(
    registry: RunningRegistry, stalling: StallingLog
) -> tuple[App, "asyncio.Future[UpdateAppResponse]"]:
    """Return an app, and the call that renames it: it waits for a pause whose own call was given up."""
    app = await registry.app()
    await begun_and_given_up(stalling, registry.stub.PauseApps(PauseAppsRequest(appkey=app.appkey)))
    renaming = asyncio.ensure_future(registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="Shop")))
    await run_ready_tasks()
    return app, renaming


async def actions(registry: RunningRegistry) -> list[str]:
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    return [fact.changed.action for fact in facts if fact.WhichOneof("fact") == "changed"]


async def test_a_change_that_outlives_its_call_is_not_undone_by_the_next_one(
    registry: RunningRegistry, stalling: StallingLog
) -> None:
    app, renaming = await renaming_behind_a_pause(registry, stalling)
    rotating = asyncio.ensure_future(registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey)))
    await run_ready_tasks()
    assert not renaming.done()
    stalling.goes_on.set()
    renamed = (await asyncio.wait_for(renaming, BOUND_S)).app
    assert (renamed.name, renamed.HasField("pause")) == ("Shop", True)
    rotated = await asyncio.wait_for(rotating, BOUND_S)
    known = registry.apps.get(app.appkey)
    assert known is not None
    assert (known.name, known.HasField("pause")) == ("Shop", True)
    assert registry.keys.open(known.sealed_secret, known.appkey) == rotated.secret_key
    assert await actions(registry) == ["created", "paused", "set", "secret rotated"]


async def test_a_change_whose_call_ends_before_its_turn_is_not_made(
    registry: RunningRegistry, stalling: StallingLog
) -> None:
    app, renaming = await renaming_behind_a_pause(registry, stalling)
    renaming.cancel()
    await asyncio.wait([renaming], timeout=BOUND_S)
    stalling.goes_on.set()
    await registry.stub.RotateSecret(RotateSecretRequest(appkey=app.appkey))
    assert await actions(registry) == ["created", "paused", "secret rotated"]


async def test_a_change_that_fails_after_its_call_is_logged_and_ends_its_turn(
    registry: RunningRegistry, stalling: StallingLog
) -> None:
    app, renaming = await renaming_behind_a_pause(registry, stalling)
    stalling.refuses = True
    with capture_logs() as logged:
        stalling.goes_on.set()
        with pytest.raises(InputError):
            await asyncio.wait_for(renaming, BOUND_S)
    assert [(entry["event"], str(entry["exc_info"])) for entry in logged] == [
        ("a change of apps failed after its call had ended", "too large")
    ]
    stalling.refuses = False
    assert (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, name="Shop"))).app.name == "Shop"
    assert await actions(registry) == ["created", "set"]
