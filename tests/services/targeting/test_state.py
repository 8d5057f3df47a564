"""Which devices have an address on a channel: one bitmap for each app, partition and channel."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, Revocations
from protos.registry.v1.devices_pb2 import Address, Device, DeviceFact
from protos.targeting.v1.targeting_pb2 import FindAddressedRequest, WaitAddressedRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.topics import DEVICES
from services.errors import UnavailableError
from services.log.port import NewRecord
from services.net.rpc.channel import Channel
from services.process.clock import ManualClock
from services.targeting import server
from services.targeting.state import NewAddress, NewAddresses, TargetingState
from services.targeting.store import PartitionSnapshots
from tests.services.targeting.conftest import TargetingHarness
from tests.services.targeting.model import APP, NOON_MS, PARTITIONS, device_record, same_each_time
from tests.services.targeting.test_filters import fold


def device(number: int, *channels: int, partition: int = 0, **fields: Any) -> Device:
    addresses = [Address(channel=channel, address="a", since_ms=1) for channel in channels]  # type: ignore[arg-type]
    return Device(appkey=APP, partition=partition, number=number, addresses=addresses, **fields)


async def addressed(channel: Channel, *partitions: int, appkey: str = APP) -> dict[tuple[int, int], list[int]]:
    """Return the device numbers by partition and channel."""
    request = FindAddressedRequest(appkey=appkey, partitions=partitions)
    found = (await TargetingServiceStub(channel).FindAddressed(request)).addressed
    return {(each.partition, each.channel): list(BitMap.deserialize(each.bitmap)) for each in found}


async def test_the_bitmaps_follow_the_devices(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(
            channel,
            [
                device_record(device(0, CHANNEL_WEBPUSH)),
                device_record(device(1)),
                device_record(device(2, CHANNEL_WEBPUSH, CHANNEL_FCM)),
                device_record(device(3, CHANNEL_FCM)),
                device_record(device(9, CHANNEL_FCM, partition=1)),
            ],
        )
        first = {(0, CHANNEL_WEBPUSH): [0, 2], (0, CHANNEL_FCM): [2, 3]}
        assert await addressed(channel, 0) == first
        assert await addressed(channel, 0, 1) == first | {(1, CHANNEL_FCM): [9]}
        assert await addressed(channel, 0, 1, appkey="2000000002") == {}
        changes = [
            device(2, CHANNEL_FCM),
            device(3, CHANNEL_FCM, removed_ms=5),
            device(7, CHANNEL_FCM, former_numbers=[0]),
        ]
        await harness.write(channel, [device_record(each) for each in changes])
        assert await addressed(channel, 0) == {(0, CHANNEL_FCM): [2, 7]}
        revoked = DeviceFact(revocations=Revocations(appkey=APP, partition=0, below=3))
        await harness.write(channel, [NewRecord(DEVICES.name, 0, APP.encode(), revoked.SerializeToString())])
        assert await addressed(channel, 0) == {(0, CHANNEL_FCM): [7]}
        with pytest.raises(UnavailableError, match="does not own partition 2"):
            await addressed(channel, 2)
    async with harness.running() as again:
        assert await addressed(again, 0) == {(0, CHANNEL_FCM): [7]}


async def test_new_addresses_are_told_once_as_soon_as_they_are_read(
    harness: TargetingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.running() as channel:
        targeting = TargetingServiceStub(channel)
        await harness.write(channel, [device_record(device(0, CHANNEL_WEBPUSH))])
        latest = await targeting.WaitAddressed(WaitAddressedRequest())
        assert (latest.is_incomplete, latest.until, len(latest.addresses)) == (True, 1, 0)

        async def told() -> list[tuple[int, int, list[int]]]:
            nonlocal latest
            latest = await targeting.WaitAddressed(WaitAddressedRequest(process=latest.process, after=latest.until))
            assert not latest.is_incomplete
            assert {each.appkey for each in latest.addresses} <= {APP}
            return [(each.partition, each.number, list(each.channels)) for each in latest.addresses]

        waiting = asyncio.create_task(told())
        await harness.write(channel, [device_record(device(1))])
        assert not waiting.done()
        changed = [device(0, CHANNEL_WEBPUSH, CHANNEL_FCM), device(5, CHANNEL_FCM, partition=1)]
        await harness.write(channel, [device_record(each) for each in changed])
        found = await waiting
        while len(found) < 2:  # the partitions were read one after the other
            found += await told()
        assert sorted(found) == [(0, 0, [CHANNEL_FCM]), (1, 5, [CHANNEL_FCM])]
        monkeypatch.setattr(server, "WAIT_S", 0.05)
        await harness.write(channel, [device_record(changed[0]), device_record(device(5, partition=1))])
        assert await told() == []
        await harness.write(channel, [device_record(changed[1])])
        assert await told() == [(1, 5, [CHANNEL_FCM])]
        latest.process = b"of a former process"
        answer = await targeting.WaitAddressed(WaitAddressedRequest(process=latest.process, after=latest.until))
        assert (answer.is_incomplete, answer.until, len(answer.addresses)) == (True, latest.until, 0)


def test_only_the_last_new_addresses_are_kept() -> None:
    known = NewAddresses()
    for number in range(NewAddresses.KEPT + 2):
        known.add(NewAddress(APP, 0, number, (CHANNEL_FCM,)))
    assert known.after(1) is None
    assert [new.number for new in known.after(2) or ()] == list(range(2, NewAddresses.KEPT + 2))
    assert known.after(known.until) == []
    assert known.after(known.until + 1) is None


CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.sets(st.sampled_from([CHANNEL_WEBPUSH, CHANNEL_FCM])), st.booleans()), max_size=40
)


@same_each_time
@given(CHANGES)
def test_a_bitmap_has_the_devices_with_an_address(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, set[int], bool]]
) -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    expected: dict[int, set[int]] = {}
    records = []
    for number, channels, is_removed in changes:
        records.append(device_record(device(number, *sorted(channels), removed_ms=int(is_removed))))
        expected[number] = set() if is_removed else channels
    fold(state, records)
    snapshots = tmp_path_factory.mktemp("snapshots")
    PartitionSnapshots(snapshots, state).save()
    restored = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    PartitionSnapshots(snapshots, restored).restore()
    for each in (state, restored):
        index = each.partitions[0].app(APP)
        found = {channel: set(bitmap) for channel, bitmap in index.channels.values.items()}
        assert found == {
            channel: numbers
            for channel in (CHANNEL_WEBPUSH, CHANNEL_FCM)
            if (numbers := {number for number, channels in expected.items() if channel in channels})
        }
