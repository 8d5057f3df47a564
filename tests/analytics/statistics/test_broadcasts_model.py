"""Statistics of broadcasts against a recount in plain Python."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from protos.analytics.v1.analytics_pb2 import (
    BroadcastRow,
    Category,
    ChannelCounts,
    StatisticsKind,
    StatisticsRequest,
)
from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind, Outcomes, PushFact
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import (
    CHANNEL_APNS,
    CHANNEL_FCM,
    CHANNEL_UNSPECIFIED,
    CHANNEL_WEBPUSH,
    Channel,
    Platform,
)
from services.domain.addresses import channel_name
from services.domain.topics import DELIVERIES, PUSHES
from tests.analytics.records import app_outcomes, send
from tests.analytics.statistics.model import DAY_MS, DEVICES, EXAMPLES, INFOS, Device
from tests.analytics.statistics.sync_store import SyncStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("world"))
    yield store
    store.close()


class Push(NamedTuple):
    is_ios: bool
    audience: frozenset[Device]
    endings: dict[int, str]
    outcomes: list[tuple[Device, str]]
    is_simulated: bool


STEPS = (
    "HANDED_OVER",
    "SENT",
    "RECEIVED",
    "SHOWN",
    "CLICKED",
    "DISMISSED",
    "FAILED",
    "DROPPED",
    "EXPIRED",
    "CANCELLED",
)
STARTED_MS = 1_790_000_000_000

pushes = st.builds(
    Push,
    st.booleans(),
    st.frozensets(st.sampled_from(DEVICES)),
    st.dictionaries(st.sampled_from((0, 3)), st.sampled_from(("cancelled", "finished", "both"))),
    st.lists(st.tuples(st.sampled_from(DEVICES), st.sampled_from(STEPS)), max_size=25),
    st.booleans(),
).map(lambda push: push._replace(outcomes=[one for one in push.outcomes if one[1] in _steps(push)]))


PLAIN = (("own", False), ("apns", False))
"""The ways of a push that no push service but Apple's own was handed."""


def _steps(push: Push) -> tuple[str, ...]:
    """Return the possible outcomes: what Apple is sent is not handed over."""
    return STEPS[1:] if push.is_ios else STEPS


def channel_of(device: Device) -> "Channel.ValueType":
    """Return the channel on which the device has an address."""
    return (CHANNEL_FCM, CHANNEL_WEBPUSH)[device[1] % 2]


def _row(first_id: int, n: int, counts: dict[str, Any], info: str | None = None) -> BroadcastRow:
    return BroadcastRow(msgid=first_id + n, sent_ms=STARTED_MS + n, info=info, **counts)


def recount(push: Push, among: frozenset[Device]) -> dict[str, int]:
    """Count the devices of the audience by outcome, one by one."""
    found: dict[str, int] = defaultdict(int)
    for device in push.audience & among:
        steps = {step for of_device, step in push.outcomes if of_device == device}
        clicked = "CLICKED" in steps
        shown = clicked or bool(steps & {"SHOWN", "DISMISSED"})
        received = shown or "RECEIVED" in steps
        sent = received or bool(steps & {"SENT", "HANDED_OVER"})
        done = sent if push.is_ios else received or "HANDED_OVER" in steps
        ending = push.endings.get(device[0])
        end = None
        if not done:
            if steps & {"FAILED", "DROPPED"}:
                end = "failed"
            elif "CANCELLED" in steps:
                end = "cancelled"
            elif "EXPIRED" in steps:
                end = "expired"
            elif ending in ("cancelled", "both"):
                end = "cancelled"
            elif ending == "finished":
                end = "expired"
        reached = {"target": True, "sent": sent, "received": received, "shown": shown, "clicked": clicked}
        for name, is_so in reached.items():
            found[name] += is_so
        if end:
            found[end] += 1
    return found


def by_channel(push: Push, among: frozenset[Device]) -> list[ChannelCounts]:
    """Count the devices of each channel, one by one."""
    counts: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    for device in push.audience & among:
        steps = {step for of_device, step in push.outcomes if of_device == device}
        if push.is_ios:
            way = ("apns", push.is_simulated and "SENT" in steps)
        elif "HANDED_OVER" in steps:
            way = (channel_name(channel_of(device)), push.is_simulated)
        else:
            way = ("own", False)
        reached = recount(push, frozenset([device]))
        counts[way] += Counter({name: reached[name] for name in ("sent", "received", "shown", "clicked")})
    ways = sorted(counts, key=lambda way: (way not in PLAIN, way))
    rows = [ChannelCounts(channel=way[0], simulated=way[1], **counts[way]) for way in ways if counts[way]["sent"]]
    is_divided = any((row.channel, row.simulated) not in PLAIN for row in rows)
    return rows if is_divided else []


@pytest.mark.long
@given(data=st.data())
@EXAMPLES
def test_broadcasts(store: SyncStore, data: st.DataObject) -> None:
    sent = data.draw(st.lists(pushes, max_size=4))
    later = {device: data.draw(st.sampled_from(INFOS)) for device in DEVICES}
    before = {device: data.draw(st.sampled_from(INFOS)) for device in DEVICES}
    appkey = store.new_app()
    first_id = int(appkey) * 1000
    new_records = [store.device(appkey, *d, STARTED_MS - 500, attributes={"carrier": "earlier"}) for d in DEVICES]
    new_records += [
        store.device(appkey, *d, STARTED_MS - 5, attributes={"carrier": info}) for d, info in before.items()
    ]
    store.ingest(new_records)
    new_records = []
    for n, push in enumerate(sent):
        platform = Platform.PLATFORM_IOS if push.is_ios else Platform.PLATFORM_ANDROID
        msgid, at = first_id + n, STARTED_MS + n
        kind = (Kind.KIND_BROADCAST, Kind.KIND_MULTICAST)[n % 2]
        new_records.append(send(msgid, time_ms=at, kind=kind, platform=platform, appkey=appkey))
        for partition in (0, 3):
            numbers = BitMap(number for p, number in push.audience if p == partition)
            fact = PushFact(msgid=msgid, appkey=appkey, partition=partition)
            fact.meta.time_ms = at
            fact.started.audience = numbers.serialize()
            fact.started.count = len(numbers)
            new_records.append(store.record(PUSHES.name, partition, fact))
            for ending in ("cancelled", "finished"):
                if push.endings.get(partition) in (ending, "both"):
                    fact = PushFact(msgid=msgid, appkey=appkey, partition=partition)
                    getattr(fact, ending).SetInParent()
                    new_records.append(store.record(PUSHES.name, partition, fact))
        for m, ((partition, number), step) in enumerate(push.outcomes):
            value = OutcomeKind.Value(f"OUTCOME_KIND_{step}")
            channel = channel_of((partition, number)) if step == "HANDED_OVER" else CHANNEL_UNSPECIFIED
            simulated = [CHANNEL_APNS if push.is_ios else channel] if push.is_simulated else []
            apps = [app_outcomes(msgid, [number], value, at + 1000 + m, "", appkey, channel, simulated)]
            new_records.append(store.record(DELIVERIES.name, partition, DeliveryFact(outcomes=Outcomes(apps=apps))))
    request = StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS)
    now_ms = STARTED_MS + 30 * DAY_MS - 1
    cuts = sorted(data.draw(st.lists(st.integers(0, len(new_records)), max_size=2)))
    for start, end in pairwise([0, *cuts, len(new_records)]):
        store.ingest(new_records[start:end])
        store.statistics(request, now_ms, "UTC")  # stores counts, which the next records may make invalid
    store.ingest(
        [store.device(appkey, *d, STARTED_MS + 500, attributes={"carrier": info}) for d, info in later.items()]
    )

    every = frozenset(DEVICES)
    expected = [
        _row(first_id, n, recount(push, every) | {"channels": by_channel(push, every)}) for n, push in enumerate(sent)
    ]
    assert list(store.statistics(request, now_ms, "UTC").broadcasts) == expected[::-1]
    for n, push in enumerate(sent):
        request.msgid = first_id + n
        request.category = Category.CATEGORY_UNSPECIFIED
        assert list(store.statistics(request, now_ms, "UTC").broadcasts) == [expected[n]]
        request.category, request.info = Category.CATEGORY_CARRIER, "all"
        having = {info: frozenset(d for d in DEVICES if before[d] == info) for info in INFOS}
        by_info = {info: recount(push, those) | {"channels": by_channel(push, those)} for info, those in having.items()}
        rows = {info: _row(first_id, n, counts, info) for info, counts in by_info.items()}
        assert list(store.statistics(request, now_ms, "UTC").broadcasts) == [r for r in rows.values() if r.target]
        request.info = "north"
        assert list(store.statistics(request, now_ms, "UTC").broadcasts) == [rows["north"]]
