"""When a state counts as caught up with a compacted topic that is written and compacted while it is read."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path

import pytest

from protos.registry.v1.apps_pb2 import App, AppFact
from protos.registry.v1.devices_pb2 import Device, DeviceFact
from services.domain.apps import AppDirectory
from services.domain.topics import APPS, DEVICES, TOPICS
from services.log.port import NewRecord, Partition
from services.log.sqlite.file import RecordPage
from services.log.sqlite.log import SqliteLog
from services.log.sqlite.reader import RecentRecords
from services.registry.tenure import RegistryTenure
from services.replica.catch_up import CatchUpGoal
from services.replica.dead_letters import DeadLetters
from services.replica.follower import Follower
from services.replica.positions import AppliedPositions
from services.replica.sqlite_store import SqliteStore
from services.replica.tenure import Tenure, own_when_elected
from tests.services.replica.tally_role import BOUND_S, DDL, FACTS, Tally, tally

APPS_PARTITION = Partition(APPS.name, 0)


class WrittenWhileReadLog(SqliteLog):
    """A log that reads one record at a time, and appends one of `meanwhile` after each read.

    With `reads_after_look` it reads nothing before it was asked for the ends of its partitions.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, TOPICS)
        self.recent = RecentRecords(max_bytes=0)
        self.meanwhile: list[NewRecord] = []
        self.reads_after_look: asyncio.Event | None = None

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        ends = await super().ends(partitions)
        if self.reads_after_look:
            self.reads_after_look.set()
        return ends

    async def select(self, starts: Mapping[Partition, int], limit: int) -> RecordPage:
        if self.reads_after_look:
            await self.reads_after_look.wait()
        page = await super().select(starts, 1)
        if page.records and self.meanwhile:
            await self.append([self.meanwhile.pop(0)])
        return page


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[WrittenWhileReadLog]:
    log = WrittenWhileReadLog(tmp_path / "log.sqlite")
    yield log
    await log.close()


def app(appkey: str, name: str) -> NewRecord:
    return NewRecord(*APPS_PARTITION, appkey.encode(), AppFact(app=App(appkey=appkey, name=name)).SerializeToString())


def device(token: str, number: int) -> NewRecord:
    fact = DeviceFact(device=Device(token=token, number=number))
    return NewRecord(DEVICES.name, 0, token.encode(), fact.SerializeToString())


async def test_a_ready_directory_has_the_apps_that_were_written_again_meanwhile(log: WrittenWhileReadLog) -> None:
    await log.append([app("1", "a"), app("2", "b"), app("3", "c")])
    log.meanwhile = [app("2", "B"), app("2", "BB")]
    directory, ready = AppDirectory(log), asyncio.Event()
    following = asyncio.create_task(directory.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    assert {each.appkey: each.name for each in directory.all()} == {"1": "a", "2": "BB", "3": "c"}
    following.cancel()
    await asyncio.wait([following])


async def test_a_ready_state_has_the_devices_that_were_written_again_meanwhile(
    log: WrittenWhileReadLog, tmp_path: Path
) -> None:
    await log.append([device("a", 1), device("b", 2), device("c", 3)])
    log.meanwhile = [device("b", 4)]
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower, ready = Follower("tally", log, Tally(store), store, dead_letters, applies=FACTS), asyncio.Event()
    following = asyncio.create_task(follower.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    assert tally(store) == {"a": 1, "b": 4, "c": 3}
    following.cancel()
    await asyncio.wait([following])
    store.close()


async def test_a_refreshed_directory_has_the_apps_that_were_written_again_meanwhile(log: WrittenWhileReadLog) -> None:
    directory, ready = AppDirectory(log), asyncio.Event()
    following = asyncio.create_task(directory.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    log.reads_after_look, log.meanwhile = asyncio.Event(), [app("2", "B")]
    await log.append([app("1", "a"), app("2", "b"), app("3", "c")])
    assert await directory.refresh()
    assert {each.appkey: each.name for each in directory.all()} == {"1": "a", "2": "B", "3": "c"}
    following.cancel()
    await asyncio.wait([following])


class WonElection:
    """An election that this process has won already, and keeps for ever."""

    is_confirmed = True

    def note_caught_up(self) -> None: ...

    async def wait_elected(self) -> None: ...

    def new_epoch(self) -> int:
        return 1

    async def announce(self, epoch: int) -> None: ...

    async def wait_alone(self) -> bool:
        return True

    async def wait_superseded(self) -> None:
        await asyncio.Event().wait()

    async def is_log_away(self) -> bool:
        return False

    def end(self) -> None: ...


@pytest.mark.parametrize("owner", ["of targeting", "of the registry"])
async def test_a_new_owner_has_the_devices_that_were_written_again_meanwhile(
    log: WrittenWhileReadLog, tmp_path: Path, owner: str
) -> None:
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower, ready = Follower("tally", log, Tally(store), store, dead_letters, applies=FACTS), asyncio.Event()
    following = asyncio.create_task(follower.run(ready))
    await asyncio.wait_for(ready.wait(), BOUND_S)
    log.reads_after_look, log.meanwhile = asyncio.Event(), [device("b", 4)]
    await log.append([device("a", 1), device("b", 2), device("c", 3)])
    if owner == "of targeting":
        election = WonElection()
        tenure = Tenure(election)
        owning = asyncio.create_task(own_when_elected("tally", log, tenure, election, follower.applied, FACTS))
        await asyncio.wait_for(tenure.wait(), BOUND_S)
    else:
        of_registry, holding = RegistryTenure(log, follower, follower, None), asyncio.Event()
        owning = asyncio.create_task(of_registry.run(holding))
        await asyncio.wait_for(holding.wait(), BOUND_S)
    assert tally(store) == {"a": 1, "b": 4, "c": 3}
    for task in (owning, following):
        task.cancel()
    await asyncio.wait([owning, following])
    store.close()


async def test_a_topic_that_is_written_all_the_time_is_caught_up_with_too(log: WrittenWhileReadLog) -> None:
    await log.append([app("1", "a")])
    goal, applied = CatchUpGoal(log, "test", {APPS_PARTITION: 1}), AppliedPositions([APPS_PARTITION])
    assert not await goal.is_reached(applied)
    for number in range(1, 1000):
        applied.advance({APPS_PARTITION: number})
        await log.append([app("1", str(number))])
        if await goal.is_reached(applied):
            break
    assert 1 < number < 100
    applied.advance({APPS_PARTITION: number})
    assert await goal.is_reached(applied)
