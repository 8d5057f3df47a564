"""Snapshots: what a restart restores, and what happens when a file cannot be used."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import Filter
from protos.registry.v1.devices_pb2 import Device
from protos.registry.v1.erasures_pb2 import ErasedDevice, ErasureFact, PersonErased
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DEVICES, ERASURES, SESSIONS
from services.log.port import NewRecord, Partition
from services.process.clock import ManualClock
from services.replica.replay import ReplaySource, rebuild, verify
from services.targeting import store
from services.targeting.main import open_state
from services.targeting.settings import TargetingSettings
from services.targeting.state import TargetingState
from services.targeting.store import PartitionSnapshots
from testkit.examples import examples
from testkit.persons import applied_erasures
from tests.services.targeting.conftest import BOUND_S, TargetingHarness, resolve
from tests.services.targeting.model import (
    APP,
    NOON_MS,
    PARTITIONS,
    Open,
    device_record,
    devices,
    expected,
    filters,
    opens,
    opens_record,
    same_each_time,
)
from tests.services.targeting.test_filters import fold, found


def _device(number: int, partition: int = 0) -> Device:
    return Device(appkey=APP, partition=partition, number=number, tags=[1], stags=["s"])


async def _digest_of_a_rebuild(harness: TargetingHarness) -> str:
    ends = await _ends(harness)
    return await rebuild(
        lambda directory, log: open_state(harness.settings, directory, log),
        harness.directory / "rebuilt",
        ReplaySource(harness.log, ends),
    )


async def _ends(harness: TargetingHarness) -> dict[Partition, int]:
    return await harness.log.ends(
        Partition(topic, number) for topic in ("devices", "sessions") for number in range(PARTITIONS)
    )


@settings(same_each_time, max_examples=examples(60))
@given(
    st.lists(devices, max_size=30),
    st.lists(opens, max_size=20),
    st.lists(devices, max_size=30),
    st.lists(opens, max_size=20),
    filters,
)
def test_a_snapshot_and_the_rest_of_the_log_make_the_whole_state(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[Device],
    opened: list[Open],
    after: list[Device],
    reopened: list[Open],
    wanted: Filter,
) -> None:
    directory = tmp_path_factory.mktemp("snapshots")
    first, second, whole = (TargetingState(range(PARTITIONS), ManualClock(NOON_MS)) for _ in range(3))
    head = [device_record(device) for device in before] + [opens_record(p, [(n, ms)]) for p, n, ms in opened]
    recent = [device_record(device) for device in after] + [opens_record(p, [(n, ms)]) for p, n, ms in reopened]
    fold(first, head)
    PartitionSnapshots(directory, first).save()
    PartitionSnapshots(directory, second).restore()
    assert second.offsets() == first.offsets()
    fold(second, recent)
    fold(whole, head + recent)
    assert second.digest() == whole.digest()
    assert second.offsets() == whole.offsets()
    assert found(second, wanted) == expected(before + after, opened + reopened, wanted, NOON_MS)


async def test_a_restart_reads_the_snapshot_and_only_newer_records(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(0)), opens_record(0, [(0, NOON_MS)], b"first")])
    state = open_state(harness.settings, harness.settings.state_dir("targeting"), harness.log)
    assert (await state.followers[0].offsets()) == {Partition("devices", 0): 1, Partition("sessions", 0): 1}
    await harness.append(
        [device_record(_device(1)), device_record(_device(0, 1)), opens_record(0, [(0, NOON_MS)], b"first")]
    )
    async with harness.running() as channel:
        assert await resolve(channel, Filter()) == {(0, 0), (0, 1), (1, 0)}
    verdict = await verify(
        lambda directory, log: open_state(harness.settings, directory, log),
        harness.settings.state_dir("targeting"),
        ReplaySource(harness.log, await _ends(harness)),
    )
    assert verdict.equal
    assert verdict.live == await _digest_of_a_rebuild(harness)


async def test_snapshots_are_saved_at_intervals(harness: TargetingHarness) -> None:
    path = harness.settings.state_dir("targeting") / "partition-0000.snapshot"
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(0))])
        assert not path.exists()
        harness.clock.move(harness.settings.snapshot_s)
        async with asyncio.timeout(BOUND_S):
            while not path.exists():
                await resolve(channel, Filter())
        written = path.stat().st_ino
        await harness.write(channel, [device_record(_device(0, 1))])
    assert path.stat().st_ino == written, "nothing changed in this partition, so it was not written again"
    assert path.with_name("partition-0001.snapshot").exists()


async def test_behind_an_erased_device_a_snapshot_is_saved_at_once(harness: TargetingHarness) -> None:
    path = harness.settings.state_dir("targeting") / "partition-0000.snapshot"
    async with harness.running() as channel:
        await harness.write(channel, [device_record(Device(appkey=APP, number=7, stags=["canary-2c"]))])
        harness.clock.move(harness.settings.snapshot_s)
        async with asyncio.timeout(BOUND_S):
            while not path.exists():
                await resolve(channel, Filter())
            assert b"canary-2c" in path.read_bytes()
            fact = ErasureFact(erased=PersonErased(appkey=APP, devices=[ErasedDevice(number=7)]))
            await harness.append([NewRecord(ERASURES.name, 0, b"e", fact.SerializeToString())])
            assert applied_erasures("targeting", "state") == 0
            stub = Device(appkey=APP, number=7, removed_ms=NOON_MS, removed_reason=FixedReason.ERASED)
            await harness.write(channel, [device_record(stub)])
            while applied_erasures("targeting", "state") < 1:
                assert await resolve(channel, Filter()) == set()
            assert b"canary-2c" not in path.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text"])
async def test_a_damaged_file_is_replaced_by_reading_the_log(harness: TargetingHarness, damage: str) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(number, number % 2)) for number in range(100)])
    path = harness.settings.state_dir("targeting") / "partition-0000.snapshot"
    _damage(path, damage)
    async with harness.running() as channel:
        assert await resolve(channel, Filter()) == {(number % 2, number) for number in range(100)}


def _damage(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "changed":
            position = whole.index(b"reachable") + 12
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.write_text("this is no snapshot\n" * 1000)


async def test_a_file_of_another_schema_is_ignored(harness: TargetingHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(0))])
    monkeypatch.setattr(store, "SCHEMA", store.SCHEMA + 1)
    state = open_state(harness.settings, harness.settings.state_dir("targeting"), harness.log)
    assert await state.followers[0].offsets() == {}
    async with harness.running() as channel:
        assert await resolve(channel, Filter()) == {(0, 0)}


async def test_the_time_zone_of_the_service_changes_no_window_and_no_snapshot(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(0)), opens_record(0, [(0, NOON_MS)])])
    moved = TargetingSettings(data_dir=str(harness.directory), partitions=PARTITIONS, timezone="Asia/Kathmandu")
    state = open_state(moved, moved.state_dir("targeting"), harness.log)
    assert (await state.followers[0].offsets()) == {Partition("devices", 0): 1, Partition("sessions", 0): 1}
    assert state.digest() == await _digest_of_a_rebuild(harness)


@settings(same_each_time, max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.one_of(devices, opens, opens, opens), st.sampled_from([0, 1, 1801, 3600, 86_400])), max_size=50
    ),
    st.lists(st.tuples(filters, st.sampled_from([0, 1, 3599, 90_000])), min_size=1, max_size=4),
    st.integers(0, 49),
)
def test_activity_is_equal_live_restored_rebuilt_and_after_compaction(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[Device | Open, int]],
    queries: list[tuple[Filter, int]],
    saved_after: int,
) -> None:
    """Opens are reported around the moment of a moved clock, at which the live state answers after each record.

    Compaction keeps the last record of each device and every record of sessions.
    """
    clock = ManualClock(NOON_MS)
    live, restored = (TargetingState(range(PARTITIONS), clock) for _ in range(2))
    known, opened, new_records = list[Device](), list[Open](), list[NewRecord]()
    directory = tmp_path_factory.mktemp("snapshots")
    for at, (what, seconds) in enumerate(history):
        clock.move(seconds)
        if isinstance(what, Device):
            known.append(what)
            new_records.append(device_record(what))
        else:
            partition, number, time_ms = what
            opened.append((partition, number, clock.now_ms() - NOON_MS + time_ms))
            new_records.append(opens_record(partition, [(number, opened[-1][2])]))
        fold(live, new_records[-1:])
        wanted = queries[at % len(queries)][0]
        assert found(live, wanted) == expected(known, opened, wanted, clock.now_ms())
        if at == saved_after:
            PartitionSnapshots(directory, live).save()
            PartitionSnapshots(directory, restored).restore()
        elif at > saved_after:
            fold(restored, new_records[-1:])
    if len(history) <= saved_after:
        fold(restored, new_records)
    rebuilt, compacted = (TargetingState(range(PARTITIONS), clock) for _ in range(2))
    fold(rebuilt, new_records)
    last = {record.key: record for record in new_records if record.topic == DEVICES.name}
    fold(compacted, [record for record in new_records if record.topic == SESSIONS.name])
    fold(compacted, list(last.values()))
    for wanted, seconds in queries:
        clock.move(seconds)
        audience = expected(known, opened, wanted, clock.now_ms())
        for state in (live, restored, rebuilt, compacted):
            assert found(state, wanted) == audience
            assert state.digest() == live.digest()


async def test_a_number_that_is_not_dense_is_dead_lettered(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(_device(3)), device_record(_device(2**31))])
        assert await resolve(channel, Filter()) == {(0, 3)}
    assert (harness.directory / "dead-letters" / "targeting.jsonl").read_text().count("not dense") == 1
    async with harness.running() as channel:
        assert await resolve(channel, Filter()) == {(0, 3)}
    assert (harness.directory / "dead-letters" / "targeting.jsonl").read_text().count("not dense") == 1
