"""The follower: commands are decided once whatever fails, facts and offsets are committed together."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.devices_pb2 import Device, DeviceFact
from protos.runtime.v1.log_pb2 import Position
from services.domain.topics import DEVICES
from services.errors import BusyError, ConflictError, UnavailableError
from services.log.port import NewRecord, Partition, RecordMark
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact
from testkit.faults.crashing_log import KilledError
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.replica.tally_role import (
    BOUND_S,
    COMMANDS,
    COUNTS,
    DDL,
    FACTS,
    TOKENS,
    FaultyAppendsLog,
    Role,
    appended,
    settled,
    tally,
    write,
)


def fact(token: str) -> Fact:
    return Fact(DEVICES, 0, token.encode(), DeviceFact(device=Device(token=token, number=1)))


async def test_facts_and_offsets_are_committed_together(log: FaultyAppendsLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    produced = await settled(role, await write(log, *TOKENS))
    assert {(position.partition, position.offset) for position in produced} == {(0, 4), (1, 4), (2, 4)}
    await role.stop()
    again = SqliteStore(tmp_path / "tally.sqlite", DDL)
    assert tally(again) == COUNTS
    assert again.offsets() == dict.fromkeys([*COMMANDS, *FACTS], 5)
    again.close()


async def test_a_batch_without_facts_is_applied_and_committed_in_one_call_to_the_thread(
    log: FaultyAppendsLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    query, queries = role.follower.query, []

    async def counted(*arguments: Any) -> Any:
        queries.append(arguments)
        return await query(*arguments)

    monkeypatch.setattr(role.follower, "query", counted)
    (offset,) = await log.append([NewRecord(COMMANDS[0].topic, COMMANDS[0].number, b"a", b"\xff is no command")])
    await settled(role, [Position(topic=COMMANDS[0].topic, partition=COMMANDS[0].number, offset=offset)])
    assert len(queries) == 1
    assert role.store.offsets()[COMMANDS[0]] == offset + 1
    await role.stop()


@pytest.mark.parametrize("after", [False, True], ids=["before the append", "between append and commit"])
async def test_the_next_start_recovers_from_a_crash(log: FaultyAppendsLog, tmp_path: Path, after: bool) -> None:
    await write(log, *TOKENS)
    (log.after_facts if after else log.before_facts).append(KilledError())
    await Role(log, tmp_path).died_of(KilledError)
    role = Role(log, tmp_path)
    await role.is_ready()
    assert tally(role.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    await role.stop()


async def test_recovery_from_many_crashes_in_a_row(log: FaultyAppendsLog, tmp_path: Path) -> None:
    await write(log, *TOKENS)
    for index in range(5):
        (log.after_facts if index % 2 else log.before_facts).append(KilledError())
        await Role(log, tmp_path).died_of(KilledError)
    role = Role(log, tmp_path)
    await role.is_ready()
    assert tally(role.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    await role.stop()


async def test_appends_to_a_busy_or_unavailable_log_are_retried(log: FaultyAppendsLog, tmp_path: Path) -> None:
    log.before_facts += [BusyError("full"), UnavailableError("away")]
    role = Role(log, tmp_path)
    await role.is_ready()
    await settled(role, await write(log, "a"))
    assert tally(role.store) == {"a": 1}
    assert await appended(log) == 1
    await role.stop()


async def test_a_stop_while_facts_are_appended_leaves_nothing_half_done(log: FaultyAppendsLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    log.hold = asyncio.Event()
    await write(log, "a", "b")
    await asyncio.wait_for(log.holding.wait(), BOUND_S)
    await role.stop()
    log.hold = None
    again = Role(log, tmp_path)
    await again.is_ready()
    assert tally(again.store) == {"a": 1, "b": 1}
    assert await appended(log) == 2
    await again.stop()


async def test_facts_that_could_not_be_committed_end_the_follower_and_are_applied_by_the_next_start(
    log: FaultyAppendsLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the log already, and offsets that were committed later would lead past them."""
    role = Role(log, tmp_path)
    await role.is_ready()
    commit, errors = role.store.commit, [UnavailableError("the disk is full")]

    def commit_on_a_full_disk(offsets: Mapping[Partition, int], marks: Mapping[Partition, RecordMark]) -> None:
        if errors:
            role.store.rollback()
            raise errors.pop()
        commit(offsets, marks)

    monkeypatch.setattr(role.store, "commit", commit_on_a_full_disk)
    log.hold = asyncio.Event()
    first = asyncio.create_task(role.follower.write(lambda: [fact("first")]))
    await asyncio.wait_for(log.holding.wait(), BOUND_S)
    second = asyncio.create_task(role.follower.write(lambda: [fact("second")]))
    log.hold.set()
    await role.died_of(UnavailableError)
    for writing in (first, second):
        with pytest.raises(UnavailableError, match="the disk is full"):
            await writing
    again = Role(log, tmp_path)
    await again.is_ready()
    assert tally(again.store) == {"first": 1}
    assert await appended(log) == 1
    await again.stop()


async def test_no_write_begins_while_the_follower_stops(log: FaultyAppendsLog, tmp_path: Path) -> None:
    """It waits for those that have begun; a later one would find the state closed."""
    role = Role(log, tmp_path)
    await role.is_ready()
    log.hold = asyncio.Event()
    begun = asyncio.create_task(role.follower.write(lambda: [fact("begun")]))
    await asyncio.wait_for(log.holding.wait(), BOUND_S)
    role.task.cancel()
    await until_holds(lambda: not role.follower.tenure.is_held)
    late = asyncio.create_task(role.follower.write(lambda: [fact("late")]))
    for _ in range(5):
        await asyncio.sleep(0)
    log.hold.set()
    await asyncio.wait([role.task], timeout=BOUND_S)
    assert begun.done()
    assert not late.done()
    assert tally(role.store) == {"begun": 1}
    assert await appended(log) == 1
    late.cancel()
    role.store.close()


@pytest.mark.parametrize(
    ("error", "logged"), [(ConflictError("it was decided"), []), (ValueError("a mistake"), ["error"])]
)
async def test_what_the_rules_refuse_is_no_error_where_the_caller_has_gone(
    log: FaultyAppendsLog, tmp_path: Path, error: Exception, logged: list[str]
) -> None:
    role = Role(log, tmp_path)
    await role.is_ready()
    log.hold = asyncio.Event()
    begun = asyncio.create_task(role.follower.write(lambda: [fact("begun")]))
    await asyncio.wait_for(log.holding.wait(), BOUND_S)
    refused = asyncio.create_task(role.follower.write(Mock(side_effect=error)))
    await run_ready_tasks()
    refused.cancel()
    with capture_logs() as lines:
        log.hold.set()
        await begun
        await role.follower.write(lambda: [fact("after it")])
    assert [line["log_level"] for line in lines if line["event"] == "facts could not be written"] == logged
    await role.stop()


async def test_callers_can_wait_for_own_facts(log: FaultyAppendsLog, tmp_path: Path) -> None:
    """Also for facts that a crash left in the log, and for facts written after it."""
    await write(log, "a")
    log.after_facts.append(KilledError())
    await Role(log, tmp_path).died_of(KilledError)
    role = Role(log, tmp_path)
    await role.is_ready()
    (produced,) = await settled(role, await write(log, "a"))
    assert produced == Position(topic=DEVICES.name, partition=0, offset=1)
    await settled(role, [produced])
    later = Position(topic=DEVICES.name, partition=0, offset=2)
    waiting = asyncio.create_task(settled(role, [later]))
    await settled(role, await write(log, "b"))
    await waiting
    assert tally(role.store) == {"a": 2, "b": 1}
    await role.stop()
