"""Crashes of the registry: no command is decided twice or lost, and the state equals one rebuilt from the log."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_OPENED
from protos.registry.v1.devices_pb2 import AddTags, DeviceCommand, RemoveDevice, RemoveTags
from services.domain.topics import DEVICE_COMMANDS, DEVICES, TOPICS
from services.errors import UnavailableError
from services.log.port import Log, NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.registry.settings import RegistrySettings
from testkit.faults.crashing_log import KilledError
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    PARTITIONS,
    RunningRegistry,
    Start,
    alias_cleared,
    command,
    position_of_fact,
    records,
    register,
    set_alias,
)


class CrashOnTopicLog(SqliteLog):
    """A log that simulates a crash at the first append of facts or commands to a topic, before or after the append."""

    def __init__(self, path: Path, topic: str, *, after: bool) -> None:
        super().__init__(path, TOPICS)
        self._topic = topic
        self._after = after

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not any(each.topic == self._topic and not is_announcement(each.key) for each in new_records):
            return await super().append(new_records)
        if self._after:
            await super().append(new_records)
        raise KilledError


def log_path(settings: RegistrySettings) -> Path:
    return Path(settings.data_dir) / "log.sqlite"


async def crash(settings: RegistrySettings, clock: ManualClock, topic: str, *, after: bool) -> None:
    """Run a registry until it dies at its next append to the topic."""
    log = CrashOnTopicLog(log_path(settings), topic, after=after)
    running = RunningRegistry(settings, log, clock)
    await running.start()
    done, _ = await asyncio.wait(running.tasks, return_when=asyncio.FIRST_EXCEPTION, timeout=BOUND_S)
    assert [type(task.exception()) for task in done] == [KilledError]
    await running.stop()
    await log.close()


def changes(appkey: str) -> list[DeviceCommand]:
    """Return commands each of which changes a device."""
    return [
        *(register(appkey, f"t{index}") for index in range(30)),
        *(command(appkey, f"t{index}", add_tags=AddTags(tags=[index, 99])) for index in range(30)),
        *(command(appkey, f"t{index}", remove_tags=RemoveTags(tags=[99])) for index in range(0, 30, 2)),
        *(command(appkey, f"t{index}", add_tags=AddTags(tags=[99])) for index in range(0, 30, 4)),
        *(command(appkey, f"t{index}", remove=RemoveDevice()) for index in range(0, 30, 3)),
        *(register(appkey, f"t{index}", NOON_MS + 1) for index in range(0, 30, 6)),
    ]


async def appended(log: Log, topic: str) -> int:
    """Return how many facts were appended to the topic, including those that compaction removed."""
    announcements = sum(is_announcement(record.key) for record in await records(log, topic))
    return sum((await log.ends(Partition(topic, number) for number in range(PARTITIONS))).values()) - announcements


def is_announcement(key: bytes) -> bool:
    """Return whether a record with this key announces an owner's epoch."""
    return key.startswith(b"epoch/")


@pytest.mark.parametrize("after", [False, True], ids=["before the append", "between append and commit"])
async def test_a_crash_decides_nothing_twice_and_loses_nothing(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock, after: bool
) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(register(app, "before"))
        await registry.stop()
        await registry.write(*changes(app.appkey))
    await log.close()
    await crash(settings, clock, DEVICES.name, after=after)

    reopened = SqliteLog(log_path(settings), TOPICS)
    async with start(reopened) as again:
        await again.apply(register(app, "afterwards"))
        assert await appended(reopened, DEVICES.name) == 2 + len(changes(app.appkey))
        tagged = await again.device(app.appkey, "t4")
        assert tagged is not None
        assert list(tagged.tags) == [4, 99]
        assert await again.device(app.appkey, "t3") is None
        assert (await again.verify()).equal
    await reopened.close()


@pytest.mark.parametrize("after", [False, True], ids=["before the append", "between append and commit"])
async def test_a_crash_of_the_alias_follower_clears_each_device_once(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock, after: bool
) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(*(register(app, f"t{index}") for index in range(12)))
        await registry.apply(*(set_alias(app, f"t{index}", "alice", NOON_MS + index) for index in range(10)))
        await registry.stop()
        await registry.write(*(set_alias(app, f"t{index}", "alice", NOON_MS + index) for index in (10, 11)))
    await log.close()
    await crash(settings, clock, DEVICE_COMMANDS.name, after=after)

    reopened = SqliteLog(log_path(settings), TOPICS)
    async with start(reopened) as again:
        for token in ("t0", "t1"):
            await again.peers.wait_applied([await alias_cleared(reopened, token)])
        found = [device.token for device in await again.alias(app.appkey, "alice")]
        assert found == [f"t{index}" for index in range(11, 1, -1)]
        assert await appended(reopened, DEVICES.name) == 12 + 12 + 2
        assert (await again.verify()).equal
    await reopened.close()


async def test_positions_applied_before_a_crash_are_reported_as_applied_after_it(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock
) -> None:
    """Waiting for facts that a crash left in the log returns."""
    async with start() as registry:
        app = await registry.app()
        await registry.stop()
        await registry.write(register(app, "t"))
    await log.close()
    await crash(settings, clock, DEVICES.name, after=True)
    reopened = SqliteLog(log_path(settings), TOPICS)
    async with start(reopened) as again:
        where = await position_of_fact(reopened, lambda device: device.token == "t")
        await again.apply(command(app, "t", add_tags=AddTags(tags=[1])))
        later = await position_of_fact(reopened, lambda device: list(device.tags) == [1])
        await again.peers.wait_applied([where, later])
    await reopened.close()


async def test_nothing_is_answered_before_the_state_has_caught_up(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock
) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(register(app, "t"), set_alias(app, "t", "alice", NOON_MS))
    starting = RunningRegistry(settings, log, clock)
    positions = await starting.write(set_alias(app, "t", "bob", NOON_MS + 1))
    applied = asyncio.create_task(starting.peers.wait_applied(positions))
    for alias in ("alice", "bob"):
        with pytest.raises(UnavailableError, match="has not caught up with the log"):
            await starting.alias(app.appkey, alias)
    assert not applied.done()
    await starting.start()
    await applied
    assert [device.token for device in await starting.alias(app.appkey, "bob")] == ["t"]
    assert await starting.alias(app.appkey, "alice") == []
    await starting.stop()


async def test_deleted_states_are_rebuilt_from_the_log(start: Start, log: SqliteLog) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(*changes(app.appkey), set_alias(app, "t1", "alice", NOON_MS + 2))
        device = await registry.device(app.appkey, "t1")
        assert device is not None
        await registry.report(device, SESSION_EVENT_KIND_OPENED, NOON_MS + 9000)
        before = await registry.alias(app.appkey, "alice")
        count = await appended(log, DEVICES.name)
        directory = registry.settings.state_dir("registry")
    for path in directory.iterdir():
        path.unlink()
    async with start() as again:
        assert await again.device(app.appkey, "t1") == device
        assert await again.alias(app.appkey, "alice") == before
        await again.apply(register(app, "more"))
        assert await appended(log, DEVICES.name) == count + 1
        assert (await again.verify()).equal
