"""Filters over the indexes, compared with the naive model for random devices, updates, removals and opens."""

from hypothesis import given
from hypothesis import strategies as st

from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    BrandModel,
    Comparison,
    Filter,
    ModelClause,
    StagGroup,
    TagGroup,
)
from protos.registry.v1.devices_pb2 import Attributes, Device
from services.domain.topics import decode
from services.log.port import NewRecord, Record
from services.process.clock import ManualClock
from services.targeting.filters import Resolution
from services.targeting.index import SingleValueIndex
from services.targeting.state import TargetingState
from tests.services.targeting.conftest import members
from tests.services.targeting.model import (
    APP,
    DAY_MS,
    HOUR_MS,
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

_devices = st.lists(devices, max_size=60)


def fold(state: TargetingState, new_records: list[NewRecord]) -> None:
    """Apply the records to the state as a follower does."""
    offsets = state.offsets()
    for new_record in new_records:
        offset = offsets.get((new_record.topic, new_record.partition), 0)  # type: ignore[call-overload]
        offsets[new_record.topic, new_record.partition] = offset + 1  # type: ignore[index]
        record = Record(new_record.topic, new_record.partition, offset, new_record.key, new_record.value)
        state.apply(record, decode(record))


def found(state: TargetingState, wanted: Filter) -> set[tuple[int, int]]:
    resolution = Resolution(state, APP, wanted, list(state.partitions))
    while not resolution.advance(1):
        pass
    return members(resolution.response)


def _state(clock: ManualClock | None = None) -> TargetingState:
    return TargetingState(range(PARTITIONS), clock or ManualClock(NOON_MS))


@same_each_time
@given(
    st.lists(st.one_of(devices, devices, opens), max_size=60),
    st.lists(
        st.tuples(filters, st.sampled_from([0, 0, 1, 1_801, 3_599, 3_600, 86_400, 7 * 86_400])), min_size=1, max_size=6
    ),
)
def test_filters_match_as_in_the_naive_model(history: list[Device | Open], queries: list[tuple[Filter, int]]) -> None:
    clock = ManualClock(NOON_MS)
    state = _state(clock)
    fold(state, [_record(what) for what in history])
    known = [what for what in history if isinstance(what, Device)]
    opened = [what for what in history if not isinstance(what, Device)]
    for wanted, later in queries:
        clock.move(later)
        assert found(state, wanted) == expected(known, opened, wanted, clock.now_ms())


def _record(what: Device | Open) -> NewRecord:
    if isinstance(what, Device):
        return device_record(what)
    partition, number, time_ms = what
    return opens_record(partition, [(number, time_ms)])


@same_each_time
@given(_devices, st.lists(opens, max_size=20))
def test_only_the_last_record_of_each_device_matters(known: list[Device], opened: list[Open]) -> None:
    """Compaction may drop any earlier record."""
    last = {(device.partition, device.number): device for device in known}
    all_of_them, compacted = _state(), _state()
    opening = [opens_record(partition, [(number, time_ms)]) for partition, number, time_ms in opened]
    fold(all_of_them, [device_record(device) for device in known] + opening)
    fold(compacted, opening + [device_record(device) for device in reversed(last.values())])
    assert all_of_them.digest() == compacted.digest()


def test_a_removed_device_is_in_no_audience_until_it_registers_again() -> None:
    device = Device(
        appkey=APP, number=1, tags=[1], stags=["s"], attributes=Attributes(region="r", brand="b", model="m")
    )
    wanted = [
        Filter(),
        Filter(tags=[TagGroup(tags=[1])]),
        Filter(not_tags=[TagGroup(tags=[2])]),
        Filter(stags=[StagGroup(stags=["s"])]),
        Filter(attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["r"])]),
        Filter(models=[ModelClause(pairs=[BrandModel(brand="b", model="m")])]),
        Filter(activity=[ActivityClause(days=1, comparison=Comparison.COMPARISON_GREATER, opens=0)]),
        Filter(activity=[ActivityClause(days=1, comparison=Comparison.COMPARISON_LESS, opens=2)]),
    ]
    state = _state()
    fold(state, [opens_record(0, [(1, NOON_MS)])])
    for removed_ms, answer in ((0, {(0, 1)}), (1, set()), (0, {(0, 1)})):
        device.removed_ms = removed_ms
        fold(state, [device_record(device)])
        assert [found(state, wants) for wants in wanted] == [answer] * len(wanted)


def test_a_query_changes_nothing() -> None:
    state = _state()
    fold(state, [device_record(Device(appkey=APP, number=n, tags=[n], stags=["s"])) for n in range(3)])
    before = state.digest()
    for wanted in (
        Filter(not_tags=[TagGroup(tags=[1])]),
        Filter(tags=[TagGroup(tags=[1])], not_stags=[StagGroup(stags=["s"])]),
        Filter(stags=[StagGroup(stags=["s"])], not_tags=[TagGroup(tags=[2])]),
        Filter(activity=[ActivityClause(days=1, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=0)]),
    ):
        assert found(state, wanted) == found(state, wanted)
        assert state.digest() == before


def test_different_states_have_different_digests() -> None:
    device = Device(appkey=APP, number=1, tags=[1], attributes=Attributes(region="r"))
    states = [_state() for _ in range(5)]
    fold(states[1], [device_record(device)])
    fold(states[2], [device_record(Device(appkey=APP, number=1, tags=[2], attributes=Attributes(region="r")))])
    fold(states[3], [device_record(device), opens_record(0, [(1, NOON_MS)])])
    fold(states[4], [device_record(device), opens_record(0, [(1, NOON_MS), (1, NOON_MS)])])
    assert len({state.digest() for state in states}) == 5


def test_replaced_tags_do_not_grow_the_index() -> None:
    state = _state()
    for step in range(3000):
        fold(state, [device_record(Device(appkey=APP, number=step % 5, tags=range(step % 7), stags=[f"s{step}"]))])
    tags = state.partitions[0].apps[APP].tags
    assert len(dict(tags.values.items())) == 6 + 5
    assert tags.nbytes() < 4 * 5 + 2 * (2 * 5 * 9 + 1024 + 10)


def test_more_values_than_two_bytes_can_number_are_indexed() -> None:
    state = _state()
    new_records = [
        device_record(Device(appkey=APP, number=n, stags=[f"s{n}"], attributes=Attributes(channel=f"c{n}")))
        for n in range(66_000)
    ]
    fold(state, new_records)
    fold(state, [device_record(Device(appkey=APP, number=65_999, stags=["other"])), *new_records[:3]])
    index = state.partitions[0].apps[APP]
    assert index.tags.values.find("s65999") is None
    assert index.attributes[Attribute.ATTRIBUTE_CHANNEL].values.find("c65999") is None
    assert [list(index.tags.values.find(f"s{n}") or ()) for n in (0, 65_534, 65_536)] == [[0], [65_534], [65_536]]


def test_ids_of_unused_values_are_reused() -> None:
    index: SingleValueIndex[str] = SingleValueIndex()
    for step in range(70_000):
        index.put(0, f"v{step}")
    assert index.nbytes() == 2
    assert [(value, list(bitmap)) for value, bitmap in index.values.items()] == [("v69999", [0])]


def test_an_open_in_the_future_counts_in_its_hour_whenever_it_is_folded() -> None:
    records = [opens_record(0, [(1, NOON_MS), (2, NOON_MS + 2 * DAY_MS), (1, NOON_MS + 12 * HOUR_MS)])]
    clock = ManualClock(NOON_MS)
    live, rebuilt = _state(clock), _state(ManualClock(NOON_MS + 4 * DAY_MS))
    fold(live, records)
    fold(rebuilt, records)
    assert live.digest() == rebuilt.digest()
    activity = live.partitions[0].apps[APP].activity
    day = live.hour() // 24
    assert sorted(activity.days) == [day, day + 1, day + 2]
    assert list(activity.at_least(1, 30, live.hour())) == [1]
    clock.move(47 * 3600 - 1)
    assert list(activity.at_least(1, 30, live.hour())) == [1]
    clock.move(1)
    assert list(activity.at_least(1, 30, live.hour())) == [1, 2]


def test_a_batch_that_was_sent_again_counts_once() -> None:
    state = _state()
    fold(state, [device_record(Device(appkey=APP, number=1))])
    fold(state, [opens_record(0, [(1, NOON_MS)], b"once"), opens_record(0, [(1, NOON_MS)], b"once")])
    assert len(state.partitions[0].apps[APP].activity.days[state.hour() // 24].slices) == 1


def test_unknown_tags_match_nothing_and_exclude_nothing() -> None:
    state = _state()
    fold(state, [device_record(Device(appkey=APP, number=1, tags=[1]))])
    assert found(state, Filter(tags=[TagGroup(tags=[1, 9])])) == set()
    assert found(state, Filter(tags=[TagGroup(tags=[9]), TagGroup(tags=[1])])) == {(0, 1)}
    assert found(state, Filter(not_tags=[TagGroup(tags=[1, 9])])) == {(0, 1)}
