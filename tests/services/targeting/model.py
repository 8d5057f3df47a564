"""A naive model of filters that scans every device and counts every open, and strategies for random input."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_APP_OPENED, SessionBatch, SessionEvent, SessionFact
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
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import DEVICES, SESSIONS, device_key
from services.log.port import NewRecord
from testkit.examples import examples

APP = "1234567890"
PARTITIONS = 2
DEVICES_OF_ONE_PARTITION = 4
NOON_MS = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

same_each_time = settings(max_examples=examples(200), deadline=None, derandomize=True)
"""Hypothesis settings of this folder: many examples, the same ones in every run."""

Open = tuple[int, int, int]
"""(partition, number, time in ms)"""

_NAMES = {
    Attribute.ATTRIBUTE_REGION: "region",
    Attribute.ATTRIBUTE_CARRIER: "carrier",
    Attribute.ATTRIBUTE_CHANNEL: "channel",
    Attribute.ATTRIBUTE_BRAND: "brand",
    Attribute.ATTRIBUTE_OS_VERSION: "os_version",
    Attribute.ATTRIBUTE_APP_VERSION: "app_version",
}
_COMPARED = {
    Comparison.COMPARISON_GREATER: lambda count, opens: count > opens,
    Comparison.COMPARISON_LESS: lambda count, opens: count < opens,
    Comparison.COMPARISON_GREATER_OR_EQUAL: lambda count, opens: count >= opens,
    Comparison.COMPARISON_LESS_OR_EQUAL: lambda count, opens: count <= opens,
    Comparison.COMPARISON_EQUAL: lambda count, opens: count == opens,
}

_word = st.sampled_from(["", "a", "b", "c"])
_tag = st.integers(-2, 3)
_stag = st.sampled_from(["1", "news", "体育"])


def _sorted_unique(item: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(item, unique=True, max_size=4).map(sorted)


devices = st.builds(
    Device,
    appkey=st.just(APP),
    partition=st.integers(0, PARTITIONS - 1),
    number=st.integers(0, DEVICES_OF_ONE_PARTITION - 1),
    tags=_sorted_unique(_tag),
    stags=_sorted_unique(_stag),
    attributes=st.builds(
        Attributes,
        **dict.fromkeys(("region", "carrier", "channel", "brand", "model", "os_version", "app_version"), _word),
    ),
    removed_ms=st.sampled_from([0, 0, 0, 1]),
)
opens = st.tuples(
    st.integers(0, PARTITIONS - 1),
    st.integers(0, DEVICES_OF_ONE_PARTITION - 1),
    st.builds(
        lambda days, hours, ms: NOON_MS - days * DAY_MS + hours * HOUR_MS + ms,
        st.one_of(st.sampled_from([0, 1, 7, 30, 90]), st.integers(0, 100)),
        st.integers(-3, 6),
        st.sampled_from([-1, 0, 1, HOUR_MS // 2]),
    ),
)
"""Many at the borders of a window that ends at noon or some hours later, some ahead of the clock."""

filters = st.builds(
    Filter,
    tags=st.lists(st.builds(TagGroup, tags=st.lists(_tag, min_size=1, max_size=3)), max_size=2),
    not_tags=st.lists(st.builds(TagGroup, tags=st.lists(_tag, min_size=1, max_size=3)), max_size=1),
    stags=st.lists(st.builds(StagGroup, stags=st.lists(_stag, min_size=1, max_size=2)), max_size=2),
    not_stags=st.lists(st.builds(StagGroup, stags=st.lists(_stag, min_size=1, max_size=2)), max_size=1),
    attributes=st.lists(
        st.builds(
            AttributeClause,
            attribute=st.sampled_from(list(_NAMES)),
            values=st.lists(_word, max_size=3),
            negated=st.booleans(),
        ),
        max_size=2,
    ),
    models=st.lists(
        st.builds(
            ModelClause,
            pairs=st.lists(st.builds(BrandModel, brand=_word, model=_word), max_size=3),
            brands=st.lists(_word, max_size=2),
            negated=st.booleans(),
        ),
        max_size=1,
    ),
    activity=st.lists(
        st.builds(
            ActivityClause,
            days=st.sampled_from([1, 7, 30, 90]),
            comparison=st.sampled_from(list(_COMPARED)),
            opens=st.integers(0, 4),
        ),
        max_size=2,
    ),
)


def device_record(device: Device) -> NewRecord:
    """Return the record of the device in topic `devices`."""
    token = f"{device.partition}-{device.number}"
    fact = DeviceFact(meta=Meta(time_ms=1), device=device)
    fact.device.token = token
    return NewRecord(DEVICES.name, device.partition, device_key(device.appkey, token), fact.SerializeToString())


def opens_record(partition: int, numbers_and_times: Iterable[tuple[int, int]], event_id: bytes = b"") -> NewRecord:
    """Return the record of a batch of app opens in one partition."""
    events = [
        SessionEvent(appkey=APP, number=number, kind=SESSION_EVENT_KIND_APP_OPENED, time_ms=time_ms)
        for number, time_ms in numbers_and_times
    ]
    fact = SessionFact(meta=Meta(event_id=event_id), batch=SessionBatch(events=events))
    return NewRecord(SESSIONS.name, partition, b"", fact.SerializeToString())


def expected(known: Sequence[Device], opened: Sequence[Open], wanted: Filter, now_ms: int) -> set[tuple[int, int]]:
    """Return (partition, number) of the matching devices; later records of a device replace earlier ones."""
    latest = {(device.partition, device.number): device for device in known}
    return {
        key
        for key, device in latest.items()
        if not device.removed_ms
        and _matches(device, wanted)
        and all(
            _COMPARED[clause.comparison](_count(key, opened, clause.days, now_ms), clause.opens)
            for clause in wanted.activity
        )
    }


def _matches(device: Device, wanted: Filter) -> bool:
    tags, stags = set(device.tags), set(device.stags)
    return (
        (not wanted.tags or any(set(group.tags) <= tags for group in wanted.tags))
        and not any(set(group.tags) <= tags for group in wanted.not_tags)
        and (not wanted.stags or any(set(group.stags) <= stags for group in wanted.stags))
        and not any(set(group.stags) <= stags for group in wanted.not_stags)
        and all(_attribute(device, clause) != clause.negated for clause in wanted.attributes)
        and all(_model(device, clause) != clause.negated for clause in wanted.models)
    )


def _attribute(device: Device, clause: AttributeClause) -> bool:
    value = getattr(device.attributes, _NAMES[clause.attribute])
    return value != "" and value in clause.values


def _model(device: Device, clause: ModelClause) -> bool:
    brand, model = device.attributes.brand, device.attributes.model
    is_one_of_pairs = model != "" and any((pair.brand, pair.model) == (brand, model) for pair in clause.pairs)
    return is_one_of_pairs or (brand != "" and brand in clause.brands)


def _count(key: tuple[int, int], opened: Sequence[Open], days: int, now_ms: int) -> int:
    """Count the opens from the beginning of the hour in which the window begins to the end of the next hour."""
    first_ms = (now_ms - days * DAY_MS) // HOUR_MS * HOUR_MS
    end_ms = (now_ms // HOUR_MS + 2) * HOUR_MS
    return sum(1 for *device, ms in opened if tuple(device) == key and first_ms <= ms < end_ms)
