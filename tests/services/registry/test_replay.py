"""Replays of the registry: rebuilding the state, and comparing it with the live one while it runs."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SESSION_EVENT_KIND_OPENED
from protos.registry.v1.apps_pb2 import App
from protos.registry.v1.devices_pb2 import AddTags, DeviceCommand, RemoveDevice
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer
from services.domain.topics import DEVICE_COMMANDS, DEVICES
from services.log.sqlite.log import SqliteLog
from services.registry.main import open_state
from services.registry.store import DEVICES_FILE
from services.replica import replay
from testkit.persons import key_ring
from testkit.replay_progress import CountedProgress
from tests.services.registry.conftest import (
    NOON_MS,
    RunningRegistry,
    Start,
    clear_alias,
    command,
    every_partition,
    records,
    register,
    set_alias,
)


def history(app: App) -> Iterator[DeviceCommand]:
    """Yield the commands of a few devices."""
    moments = itertools.count(NOON_MS)
    for index in range(40):
        yield register(app, f"t{index}", next(moments), model=f"X{index % 3}")
        yield set_alias(app, f"t{index}", f"user{index % 3}", next(moments))
        yield command(app, f"t{index}", at_ms=next(moments), add_tags=AddTags(tags=[index % 5]))
    for index in range(0, 40, 4):
        yield command(app, f"t{index}", at_ms=next(moments), remove=RemoveDevice(reason="gone"))
        yield clear_alias(app, f"t{index + 1}")
    for index in range(0, 40, 8):
        yield register(app, f"t{index}", next(moments))


async def with_history(registry: RunningRegistry) -> App:
    app = await registry.app()
    for what in history(app):
        await registry.apply(what)
    for index in range(0, 40, 3):
        device = await registry.device(app.appkey, f"t{index}")
        if device:
            await registry.report(device, SESSION_EVENT_KIND_OPENED, NOON_MS + 5000 + index)
            await registry.report(device, SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 4000)
    return app


async def test_the_live_state_equals_one_rebuilt_from_the_log(registry: RunningRegistry) -> None:
    await with_history(registry)
    verdict = await registry.verify()
    assert verdict.equal


async def test_a_registry_on_a_sealed_log_starts_again_and_equals_its_replay(
    start: Start, log: SqliteLog, tmp_path: Path
) -> None:
    """A state marks the records that it has applied as the log holds them: sealed."""
    sealed = SealedLog(log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    async with start(sealed) as registry:
        app = await with_history(registry)
        before = await registry.device(app.appkey, "t3")
    assert before is not None
    async with start(sealed) as again:
        assert await again.device(app.appkey, "t3") == before
        assert (await again.verify()).equal
    stored = [*await records(log, DEVICES.name), *await records(log, DEVICE_COMMANDS.name)]
    assert len(stored) > 150
    assert not [record for record in stored if b"user" in record.value]


async def test_a_difference_is_found(start: Start) -> None:
    async with start() as registry:
        app = await with_history(registry)
        device = await registry.device(app.appkey, "t1")
        assert device is not None
    state = open_state(registry.settings, registry.settings.state_dir("registry"), registry.log)
    state.devices.rows.execute("UPDATE activity SET active_ms = active_ms + 1")  # type: ignore[attr-defined]
    state.close()
    assert not (await registry.verify()).equal


async def test_a_state_can_be_copied_while_it_is_written(registry: RunningRegistry) -> None:
    app = await with_history(registry)
    copies = [registry.settings.data / f"copy{index}" for index in range(5)]

    async def write() -> None:
        for index in itertools.count():
            await registry.apply(register(app, f"new{index}"), set_alias(app, f"new{index}", f"new{index // 5}"))

    writing = asyncio.create_task(write())
    for copy in copies:
        await asyncio.to_thread(replay.copy_state, registry.settings.state_dir("registry"), copy)
    writing.cancel()
    await asyncio.wait([writing])
    await registry.apply(*(register(app, f"last{index}") for index in range(20)))
    verdict = await registry.verify()
    assert verdict.equal
    ends = await registry.log.ends(every_partition())
    for copy in copies:
        assert not list(copy.glob("*-wal"))
        state = open_state(registry.settings, copy, registry.log)
        for follower in state.followers:
            await follower.apply_until(ends, lambda count: None)
        assert state.digest() == verdict.live
        state.close()


async def test_a_rebuilt_state_replaces_a_broken_one(start: Start, log: SqliteLog) -> None:
    async with start() as registry:
        app = await with_history(registry)
        aliases = [await registry.alias(app.appkey, f"user{index}") for index in range(3)]
        device = await registry.device(app.appkey, "t2")
        settings = registry.settings
    directory = settings.state_dir("registry")
    (directory / DEVICES_FILE).write_bytes(b"this is no database")
    progress = CountedProgress()
    source = replay.ReplaySource(log, await log.ends(every_partition()), progress)
    await replay.rebuild(lambda path, log: open_state(settings, path, log), directory, source)
    assert progress.ahead == progress.passed > 40
    async with start() as registry:
        assert await registry.device(app.appkey, "t2") == device
        assert [await registry.alias(app.appkey, f"user{index}") for index in range(3)] == aliases
        before = await log.ends(every_partition())
        await registry.apply(register(app, "t2"))
        after = await log.ends(every_partition())
        assert {partition.topic for partition in after if after[partition] != before[partition]} == {"device-commands"}
        assert (await registry.verify()).equal
