"""The values of a field with their devices: as a scan of all devices counts them, whenever devices change."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import Audience, Filter, StagGroup
from protos.registry.v1.apps_pb2 import CHANNEL_FCM, IDENTITY_MODE_REQUIRE, App, AppFact, Identity, Revocations
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from protos.targeting.v1.targeting_pb2 import (
    CountAudienceRequest,
    CountValuesRequest,
    CountValuesResponse,
    ValueCount,
    ValueField,
)
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.apps import AppDirectory
from services.domain.topics import APPS, DEVICES
from services.errors import InputError, UnavailableError
from services.log.port import NewRecord
from services.process.clock import ManualClock
from services.targeting.counting import FIELDS, Counting
from services.targeting.filters import AudienceSize
from services.targeting.state import TargetingState
from testkit.services import running_services
from tests.services.targeting.conftest import TargetingHarness
from tests.services.targeting.model import APP, NOON_MS, PARTITIONS, device_record, devices, filters, same_each_time
from tests.services.targeting.test_filters import fold, found

STAG, TAG, MODEL = ValueField.VALUE_FIELD_STAG, ValueField.VALUE_FIELD_TAG, ValueField.VALUE_FIELD_MODEL

Listed = dict[tuple[str, str], int]
"""Devices by value and brand."""


def values_of(device: Device, field: ValueField.ValueType) -> list[tuple[str, str]]:
    attributes = device.attributes
    match field:
        case ValueField.VALUE_FIELD_TAG:
            return [(str(tag), "") for tag in device.tags]
        case ValueField.VALUE_FIELD_STAG:
            return [(stag, "") for stag in device.stags]
        case ValueField.VALUE_FIELD_MODEL:
            return [(attributes.model, attributes.brand)] if attributes.model else []
        case _:
            name = ValueField.Name(field).removeprefix("VALUE_FIELD_").lower()
            value: str = getattr(attributes, name)
            return [(value, "")] if value else []


def expected(folded: list[Device], field: ValueField.ValueType) -> Listed:
    latest = {(device.partition, device.number): device for device in folded}
    present = [device for device in latest.values() if not device.removed_ms]
    return dict(Counter(value for device in present for value in values_of(device, field)))


def counted(state: TargetingState, request: CountValuesRequest) -> CountValuesResponse:
    counting = Counting(state, request, lambda tag: False)
    while not counting.advance(1):
        pass
    return counting.response


def listed(answer: CountValuesResponse) -> Listed:
    return {(each.value, each.brand): each.devices for each in answer.values}


def asked(field: ValueField.ValueType, words: str = "", limit: int = 100) -> CountValuesRequest:
    return CountValuesRequest(appkey=APP, field=field, words=words, limit=limit)


@given(st.lists(devices, max_size=12), st.lists(devices, max_size=12), st.sampled_from(sorted(FIELDS)))
@same_each_time
def test_the_counts_are_those_of_a_scan_before_and_after_devices_change(
    before: list[Device], after: list[Device], number: int
) -> None:
    field = ValueField.ValueType(number)
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [device_record(device) for device in before])
    assert listed(counted(state, asked(field))) == expected(before, field)
    for count, device in enumerate(after, 1):
        fold(state, [device_record(device)])
        assert listed(counted(state, asked(field))) == expected([*before, *after[:count]], field)
    answer = counted(state, asked(field))
    numbers = [each.devices for each in answer.values]
    assert numbers == sorted(numbers, reverse=True)
    assert answer.devices == sum(len(part.apps[APP].reachable) for part in state.partitions.values() if part.apps)
    assert list(answer.partitions) == list(range(PARTITIONS))


def test_devices_that_change_while_their_values_are_counted_are_counted_once() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [_tagged(number, "a", partition=number % PARTITIONS) for number in range(10)])
    counting = Counting(state, asked(STAG), lambda tag: False)
    assert not counting.advance(1)
    fold(state, [_tagged(number, "b", partition=number % PARTITIONS) for number in range(4)])
    while not counting.advance(1):
        pass
    assert listed(counting.response) == listed(counted(state, asked(STAG))) == {("a", ""): 6, ("b", ""): 4}


def test_revoked_devices_are_not_counted_any_more() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [_tagged(number, "a") for number in range(5)])
    assert listed(counted(state, asked(STAG))) == {("a", ""): 5}
    revoked = DeviceFact(revocations=Revocations(appkey=APP, partition=0, below=3))
    fold(state, [NewRecord(DEVICES.name, 0, APP.encode(), revoked.SerializeToString())])
    assert listed(counted(state, asked(STAG))) == {("a", ""): 2}


def test_the_values_that_most_devices_have_come_first_and_words_choose_among_them() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    names = ["Sports News", "news", "体育", "Weather"]
    fold(state, [_tagged(number, *names[: 1 + number]) for number in range(4)])
    first = counted(state, asked(STAG, limit=2))
    assert [(each.value, each.devices) for each in first.values] == [("Sports News", 4), ("news", 3)]
    assert first.has_more
    assert not counted(state, asked(STAG, limit=4)).has_more
    assert listed(counted(state, asked(STAG, "NEWS"))) == {("Sports News", ""): 4, ("news", ""): 3}
    assert listed(counted(state, asked(STAG, "news  sport"))) == {("Sports News", ""): 4}
    assert listed(counted(state, asked(STAG, "育"))) == {("体育", ""): 2}
    named = CountValuesRequest(appkey=APP, field=STAG, values=[ValueCount(value="news"), ValueCount(value="none")])
    assert listed(counted(state, named)) == {("news", ""): 3}


def test_a_numeric_tag_and_a_string_tag_of_the_same_digits_are_two() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [device_record(Device(appkey=APP, number=0, tags=[-7, 7], stags=["7"]))])
    assert listed(counted(state, asked(TAG))) == {("-7", ""): 1, ("7", ""): 1}
    assert listed(counted(state, asked(STAG))) == {("7", ""): 1}
    named = [ValueCount(value=text) for text in ("-7", "8", "x", "")]
    assert listed(counted(state, CountValuesRequest(appkey=APP, field=TAG, values=named))) == {("-7", ""): 1}


def test_a_model_is_one_of_its_brand() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    models = [("x", "one"), ("y", "one"), ("x", "two")]
    fold(
        state,
        [
            device_record(Device(appkey=APP, number=number, attributes=Attributes(brand=brand, model=model)))
            for number, (brand, model) in enumerate(models)
        ],
    )
    assert listed(counted(state, asked(MODEL, "y one"))) == {("one", "y"): 1}
    named = CountValuesRequest(appkey=APP, field=MODEL, values=[ValueCount(value="one", brand="x")])
    assert listed(counted(state, named)) == {("one", "x"): 1}


def test_an_app_without_devices_has_no_values_and_a_field_must_be_named() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    answer = counted(state, asked(STAG))
    assert (list(answer.values), answer.has_more, answer.devices) == ([], False, 0)
    with pytest.raises(InputError, match="there is no field 0"):
        counted(state, CountValuesRequest(appkey=APP))


def test_many_values_are_counted_in_slices_of_bounded_work() -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    fold(state, [_tagged(number, *(f"tag-{number}-{each}" for each in range(1000))) for number in range(10)])
    for _ in range(2):
        work = list(Counting(state, asked(STAG), lambda tag: False)._steps)
        assert sum(work) >= 1000
        assert max(work) <= 1 + 1000
    assert counted(state, asked(STAG, limit=5)).has_more


@given(st.lists(devices, max_size=12), filters)
@same_each_time
def test_an_audience_is_counted_as_it_is_resolved(folded: list[Device], wanted: Filter) -> None:
    state = TargetingState(range(PARTITIONS), ManualClock(NOON_MS))
    for place, device in enumerate(folded):
        if place % 2:
            device.addresses.add(channel=CHANNEL_FCM, address="a", since_ms=1)
    fold(state, [device_record(device) for device in folded])
    size = AudienceSize(state, APP, wanted, range(PARTITIONS))
    while not size.advance(1):
        pass
    members = found(state, wanted)
    latest = {(device.partition, device.number): device for device in folded}
    assert size.counted.devices == len(members)
    assert size.counted.app_devices == sum(not device.removed_ms for device in latest.values())
    addressed = sum(bool(latest[member].addresses) for member in members)
    assert [(each.channel, each.devices) for each in size.counted.channels] == [(CHANNEL_FCM, addressed)][
        : addressed or 0
    ]


async def test_audiences_are_counted_in_the_partitions_that_are_asked_for(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [_tagged(number, "a", partition=number % PARTITIONS) for number in range(3)])
        stub = TargetingServiceStub(channel)
        wanted = Audience(filter=Filter(stags=[StagGroup(stags=["a"])]))
        one = await stub.CountAudience(CountAudienceRequest(appkey=APP, audience=wanted, partitions=[0]))
        assert (one.devices, one.app_devices, list(one.channels)) == (2, 2, [])
        with pytest.raises(UnavailableError, match="does not own partition 2"):
            await stub.CountAudience(CountAudienceRequest(appkey=APP, audience=wanted, partitions=[2]))
        with pytest.raises(InputError):
            await stub.CountAudience(CountAudienceRequest(appkey=APP, audience=Audience(), partitions=[0]))


async def test_tags_that_address_one_person_are_not_listed(harness: TargetingHarness) -> None:
    apps = AppDirectory(harness.log)
    identity = Identity(mode=IDENTITY_MODE_REQUIRE, tags=["user:*", "7"])
    fact = AppFact(app=App(appkey=APP, identity=identity))
    tagged = Device(appkey=APP, token="t", partition=1, number=0, stags=["news", "user:alice"], tags=[6, 7])
    tagged.proven_stags.append("user:alice")
    async with harness.running(apps=apps) as channel, running_services([apps]):
        await harness.write(channel, [device_record(tagged)])
        await harness.log.append([NewRecord(APPS.name, 0, APP.encode(), fact.SerializeToString())])
        await apps.refresh()
        stub = TargetingServiceStub(channel)
        assert listed(await stub.CountValues(asked(STAG))) == {("news", ""): 1}
        assert listed(await stub.CountValues(asked(TAG))) == {("6", ""): 1}
        with pytest.raises(InputError):
            await stub.CountValues(CountValuesRequest(appkey=APP))
    async with harness.running() as again:
        assert len((await TargetingServiceStub(again).CountValues(asked(STAG))).values) == 2


def _tagged(number: int, *stags: str, partition: int = 0) -> NewRecord:
    return device_record(Device(appkey=APP, partition=partition, number=number, stags=stags))
