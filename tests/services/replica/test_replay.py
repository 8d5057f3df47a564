"""The follower on an existing log: a state is rebuilt from facts, and nothing of the past is decided again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.registry.v1.devices_pb2 import Device, DeviceCommand, DeviceFact
from services.domain.topics import DEVICE_COMMANDS, DEVICES, SESSIONS
from services.errors import ConflictError
from services.log.port import NewRecord, Partition, Record
from services.replica.dead_letters import DeadLetters
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact
from tests.services.replica.tally_role import (
    BOUND_S,
    COMMANDS,
    COUNTS,
    DDL,
    FACTS,
    TOKENS,
    FaultyAppendsLog,
    Role,
    Tally,
    appended,
    settled,
    tally,
    write,
)


class Echo:
    """Applies facts, and decides a command for each."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def apply(self, record: Record, message: DeviceFact) -> None:
        self.applied.append(message.device.token)

    def decide(self, record: Record, message: DeviceFact) -> Sequence[Fact]:
        return [Fact(DEVICE_COMMANDS, record.partition, b"k", DeviceCommand(token=f"echo {message.device.token}"))]


async def test_an_empty_state_is_rebuilt_without_deciding_again(log: FaultyAppendsLog, tmp_path: Path) -> None:
    await write(log, *TOKENS)
    role = Role(log, tmp_path / "one")
    await role.is_ready()
    await role.stop()
    fresh = Role(log, tmp_path / "two")
    await fresh.is_ready()
    assert tally(fresh.store) == COUNTS
    assert await appended(log) == len(TOKENS)
    assert fresh.store.offsets() == dict.fromkeys([*COMMANDS, *FACTS], 5)
    await fresh.stop()


async def test_a_replay_applies_facts_up_to_the_ends_and_no_further(log: FaultyAppendsLog, tmp_path: Path) -> None:
    role = Role(log, tmp_path / "one")
    await role.is_ready()
    await settled(role, await write(log, *(f"t{index}" for index in range(30))))
    await role.stop()
    store = SqliteStore(tmp_path / "two" / "tally.sqlite", DDL)
    rules = Tally(store)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower = Follower("tally", log, rules, store, dead_letters, applies=[], decides=COMMANDS, own=FACTS)
    counts: list[int] = []
    ends = {FACTS[0]: 7, FACTS[1]: 0, FACTS[2]: 10}
    await follower.apply_until(ends, counts.append)
    assert sum(counts) == 17
    assert set(tally(store)) == {f"t{index}" for index in range(0, 21, 3)} | {f"t{index}" for index in range(2, 30, 3)}
    assert store.offsets() == {FACTS[0]: 7, FACTS[2]: 10, COMMANDS[0]: 7, COMMANDS[2]: 10}
    await follower.apply_until(dict.fromkeys(FACTS, 10), counts.append)
    assert sum(counts) == 30
    store.close()


@pytest.mark.parametrize("seen", [COMMANDS[0], FACTS[1]], ids=["commands", "own facts"])
async def test_a_state_that_is_ahead_of_the_log_is_refused(
    log: FaultyAppendsLog, tmp_path: Path, seen: Partition
) -> None:
    """Both the start and a replay refuse it: it belongs to another log."""
    await write(log, *TOKENS)
    role = Role(log, tmp_path)
    await role.is_ready()
    await role.stop()
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    store.begin()
    store.commit({seen: 6})
    store.close()
    await Role(log, tmp_path).died_of(ConflictError)
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)
    dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "tally")
    follower = Follower("tally", log, Tally(store), store, dead_letters, applies=[], decides=COMMANDS, own=FACTS)
    with pytest.raises(ConflictError, match=f"ends at offset 5 of {seen.topic}/{seen.number}, but .* is 6"):
        await follower.apply_until(await log.ends(FACTS), lambda count: None)
    store.close()


async def test_own_facts_are_replayed_before_those_of_others(log: FaultyAppendsLog, tmp_path: Path) -> None:
    new_records = [NewRecord(SESSIONS.name, 0, b"", b"")] * 4 + [
        NewRecord(DEVICES.name, 0, bytes([n]), DeviceFact(device=Device()).SerializeToString()) for n in range(4)
    ]
    await log.append(new_records)
    store = SqliteStore(tmp_path / "tally.sqlite", DDL)

    class Order(Tally):
        def apply(self, record: Record, message: Any) -> None:
            self.applied.append((record.topic, record.offset))

    rules = Order(store)
    sessions = Partition(SESSIONS.name, 0)
    follower = Follower(
        "tally", log, rules, store, DeadLetters(tmp_path / "p", "tally"), applies=[sessions], own=FACTS[:1]
    )
    await follower.apply_until({sessions: 4, FACTS[0]: 4}, lambda count: None)
    assert rules.applied == [(topic, offset) for topic in (DEVICES.name, SESSIONS.name) for offset in range(4)]
    store.close()


async def test_a_fresh_state_does_not_decide_on_the_past(log: FaultyAppendsLog, tmp_path: Path) -> None:
    async def facts(*tokens: str) -> None:
        await log.append(
            [
                NewRecord(DEVICES.name, 0, t.encode(), DeviceFact(device=Device(token=t)).SerializeToString())
                for t in tokens
            ]
        )

    async def run_once() -> Echo:
        store = SqliteStore(tmp_path / "echo.sqlite", DDL)
        rules = Echo()
        dead_letters = DeadLetters(tmp_path / "dead-letters.jsonl", "echo")
        follower = Follower("echo", log, rules, store, dead_letters, applies=FACTS, decides=FACTS)
        ready = asyncio.Event()
        task = asyncio.create_task(follower.run(ready))
        await asyncio.wait_for(ready.wait(), BOUND_S)
        task.cancel()
        await asyncio.wait([task])
        store.close()
        return rules

    await facts("a", "b", "c", "d")
    assert (await run_once()).applied == ["a", "b", "c", "d"]
    assert (await log.ends(COMMANDS))[COMMANDS[0]] == 0
    await facts("e")
    assert (await run_once()).applied == ["e"]
    last = await log.last(COMMANDS[0])
    assert last is not None
    assert DeviceCommand.FromString(last.value).token == "echo e"
    assert last.offset == 0
