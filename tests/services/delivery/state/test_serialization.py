"""Delivery's state as bytes."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import PushFact, PushStarted
from protos.push.v1.push_pb2 import Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state import serialization
from services.delivery.state.audience_parts import BitmapAudience, DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.log.port import Record
from testkit.delivery.records import APP, OTHER_APP, RECEIVED, START_MS, NumberedDevice, listed_audience
from tests.services.delivery.state.records import outcomes_fact

EXPIRES_MS = START_MS + 60_000


def test_equal_bitmaps_are_dumped_alike_however_they_were_made() -> None:
    ranges, singles = BitMap(range(5000)), BitMap()
    ranges.run_optimize()
    for number in range(5000):
        singles.add(number)
    assert BitmapAudience(1, ranges, singles).dump() == BitmapAudience(1, singles, ranges).dump()


@given(st.integers(1, 20), st.sets(st.integers(0, 60)))
@example(7, {9, 11, 13, 15})  # as large as runs as it is as an array
def test_equal_bitmaps_with_and_without_runs_are_dumped_alike(first: int, later: set[int]) -> None:
    runs, singles = BitMap(range(first)), BitMap()
    runs.run_optimize()
    for number in later:
        runs |= BitMap([number])
    for number in sorted({*range(first), *later}):
        singles |= BitMap([number])
    assert BitmapAudience(1, runs, singles).dump() == BitmapAudience(1, singles, runs).dump()


def start(state: DeliveryState, msgid: int, appkey: str, *devices: NumberedDevice, id_count: int = 1) -> None:
    """Request a push and start it in the partitions of its devices."""
    audience = listed_audience(*devices, own_ids=id_count > 1)
    send = SendPush(msgid=msgid, id_count=id_count, appkey=appkey, platform=PLATFORM_ANDROID, audience=audience)
    send.message.CopyFrom(Message(content=f"message {msgid}"))
    state.apply(Record("push-commands", 0, msgid, b"", b""), PushCommand(meta=Meta(time_ms=START_MS), send=send))
    for partition in sorted({device.partition for device in devices}):
        fact = PushFact(msgid=msgid, partition=partition, started=PushStarted(expires_ms=EXPIRES_MS))
        state.apply(Record("pushes", partition, msgid, b"", b""), fact)


def pending(state: DeliveryState, appkey: str, partition: int, number: int) -> list[tuple[int, str]]:
    found = state.pending(DeviceAddress(appkey, partition, number))
    return [(msgid, push.send.message.content) for msgid, push in found]


def restored(blobs: list[serialization.Blob]) -> DeliveryState:
    state = DeliveryState(range(2))
    serialization.load(state, blobs)
    return state


def test_unicasts_are_stored_packed_and_unpacked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "PACKED_PUSHES", 2)
    state = DeliveryState(range(2))
    for msgid in (5000, 5001, 5002):
        start(state, msgid, APP, NumberedDevice(msgid % 2, 7))
    start(state, 5003, OTHER_APP, NumberedDevice(1, 7))
    start(state, 5004, APP, NumberedDevice(0, 7), NumberedDevice(1, 9), NumberedDevice(1, 7), id_count=3)
    blobs = list(serialization.dump(state))
    assert Counter(key for key, _ in blobs if key in (b"packed", b"push")) == {b"packed": 2, b"push": 1}
    assert sum(value.count(b"message 500") for key, value in blobs if key == b"packed") == 4
    again = restored(blobs)
    assert list(serialization.dump(again)) == blobs, "what was never unpacked is stored as it was"
    assert pending(again, APP, 0, 7) == [(5000, "message 5000"), (5002, "message 5002"), (5004, "message 5004")]
    assert pending(again, APP, 1, 7) == [(5001, "message 5001"), (5006, "message 5004")]
    assert pending(again, OTHER_APP, 1, 7) == [(5003, "message 5003")]
    assert [push and push.msgid for push in map(again.push_of, range(4999, 5008))] == [
        *(None, 5000, 5001, 5002, 5003),
        *(5004, 5004, 5004, None),
    ]
    assert list(serialization.dump(again)) == blobs
    for each in (state, again):
        each.apply(Record("deliveries", 0, 0, b"", b""), outcomes_fact(APP, [(5002, 7, RECEIVED), (5003, 7, RECEIVED)]))
    assert pending(again, APP, 0, 7) == [(5000, "message 5000"), (5004, "message 5004")]
    assert serialization.digest(again) == serialization.digest(state)
    expired = restored(list(serialization.dump(again))).pop_expired(EXPIRES_MS)
    assert sorted(push.msgid for push in expired) == [5000, 5001, 5003, 5004]
