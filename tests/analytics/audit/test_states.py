"""The states of a push's devices compared with a plain recount, for records in any order."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from protos.analytics.v1.analytics_pb2 import (
    Category,
    ListPushDevicesRequest,
    PushStatesRequest,
    StateCount,
    StatisticsKind,
    StatisticsRequest,
)
from protos.delivery.v1.delivery_pb2 import DeliveryFact, OutcomeKind, Outcomes, PushFact
from protos.push.v1.push_pb2 import Audience, Devices, Everyone, Kind
from protos.registry.v1.apps_pb2 import Platform
from services.domain.topics import DELIVERIES, PUSHES
from services.log.port import NewRecord
from testkit.examples import examples
from tests.analytics.records import T0, app_outcomes, send
from tests.analytics.statistics.sync_store import SyncStore

PARTITIONS = (0, 3)
DEVICES = [(partition, number) for partition in PARTITIONS for number in (0, 1, 40_000)]
STEPS = ("SENT", "RECEIVED", "SHOWN", "CLICKED", "DISMISSED", "FAILED", "DROPPED", "EXPIRED", "CANCELLED")
ENDS = ("FAILED", "DROPPED", "CANCELLED", "EXPIRED")
REASONS = ("", "full", "gone")
IDS = 4

Device = tuple[int, int]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncStore]:
    store = SyncStore(tmp_path_factory.mktemp("world"))
    yield store
    store.close()


class Target(NamedTuple):
    """A device, and the offset of its message id in the push."""

    device: Device
    offset: int


class Push(NamedTuple):
    is_ios: bool
    is_listed: bool
    targets: list[Target]


class Outcome(NamedTuple):
    target: Target
    step: str
    reason: str
    after_ms: int


class Ending(NamedTuple):
    partition: int
    fact: str


Fact = Outcome | Ending

devices = st.sampled_from(DEVICES)
times = st.integers(0, 2)
lists = st.lists(st.builds(Target, devices, st.integers(0, IDS - 1)), max_size=8)
broadcasts = st.sets(devices).map(lambda found: [Target(device, 0) for device in sorted(found)])
pushes = st.builds(Push, st.booleans(), st.just(True), lists) | st.builds(
    Push, st.booleans(), st.just(False), broadcasts
)
endings = st.lists(st.sampled_from(("cancelled", "finished", "failed")), max_size=2)
strangers = st.lists(st.builds(Target, devices, st.integers(0, IDS - 1)), max_size=2)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Push, list[list[Fact]]]:
    """Draw batches with up to four records of each target and of other devices, in any order, some of them repeated."""
    push = draw(pushes)
    steps = st.sampled_from(draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4)))
    facts: list[Fact] = [Ending(partition, fact) for partition in PARTITIONS for fact in draw(endings)]
    for target in [*push.targets, *draw(strangers)]:
        of_target = st.builds(Outcome, st.just(target), steps, st.sampled_from(REASONS), times)
        facts += draw(st.lists(of_target, max_size=4))
    again = draw(st.lists(st.sampled_from(facts), max_size=3)) if facts else []
    order = draw(st.permutations([*facts, *again]))
    size = draw(st.integers(1, 8))
    return push, [order[at : at + size] for at in range(0, len(order), size)]


@pytest.mark.long
@given(history=histories())
@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_device_has_one_state(store: SyncStore, history: tuple[Push, list[list[Fact]]]) -> None:
    push, batches = history
    appkey = store.new_app()
    first_id = int(appkey) * 1000
    audience = set(push.targets)
    facts: list[Fact] = []
    store.ingest(_begun(store, appkey, first_id, push))
    for batch in [[], *batches]:
        facts += batch
        store.ingest([_draft(store, appkey, first_id, fact) for fact in batch])
        audit = store.audit(first_id)
        assert audit.audience_count == len(audience)
        assert _counted(audit.states) == _recount(push, audience, facts)
        assert sum(count.devices for count in audit.states) == len(audience)
    for offset in range(1, IDS if push.is_listed else 1):
        of_message = {target for target in audience if target.offset == offset}
        assert _counted(store.audit(first_id + offset).states) == _recount(push, of_message, facts)
    store.ingest([store.device(appkey, *device, T0) for device in DEVICES])
    for (state, reason), targets in _by_state(push, audience, facts).items():
        assert _listed(store, first_id, state, reason) == [
            (first_id + target.offset, f"{target.device[0]}-{target.device[1]}") for target in targets
        ]
    asked = PushStatesRequest(msgid=first_id, category=Category.CATEGORY_REGION)
    by_value = {value.info: _counted(value.states) for value in store.states_by_value(asked).values}
    # No device was known when the push started, so none has a value.
    assert by_value == ({"": _recount(push, audience, facts)} if audience and not push.is_listed else {})
    ended = {fact.fact for fact in facts if isinstance(fact, Ending)}
    if not push.is_listed and "failed" not in ended:
        _agrees_with_statistics(store, appkey, first_id)


def _listed(store: SyncStore, msgid: int, state: str, reason: str) -> list[tuple[int, str]]:
    """Return the message id and token of each device in the state, read in pages of two."""
    asked = ListPushDevicesRequest(msgid=msgid, state=state, reason=reason, limit=2)
    found: list[tuple[int, str]] = []
    while True:
        page = store.devices_in_state(asked)
        assert 0 < len(page.devices) <= asked.limit
        found += [(device.msgid, device.token) for device in page.devices]
        if not page.pos:
            return found
        asked.pos = page.pos


def _by_state(push: Push, audience: set[Target], facts: Sequence[Fact]) -> dict[tuple[str, str], list[Target]]:
    """Return the targets of each state and reason, by message id, then by device."""
    found: dict[tuple[str, str], list[Target]] = {}
    for target in sorted(audience, key=lambda target: (target.offset, target.device)):
        found.setdefault(_state(push, target, facts), []).append(target)
    return found


def _agrees_with_statistics(store: SyncStore, appkey: str, msgid: int) -> None:
    request = StatisticsRequest(appkey=appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=msgid)
    (row,) = store.statistics(request, T0, "UTC").broadcasts
    states: Counter[str] = Counter()
    for count in store.audit(msgid).states:
        states[count.state] += count.devices
    assert row.target == states.total()
    assert row.clicked == states["clicked"]
    assert row.shown == states["clicked"] + states["shown"]
    assert row.received == states["clicked"] + states["shown"] + states["received"]
    assert row.sent >= row.received + states["sent"]
    assert row.failed == states["failed"] + states["dropped"]
    assert (row.expired, row.cancelled) == (states["expired"], states["cancelled"])


def _begun(store: SyncStore, appkey: str, first_id: int, push: Push) -> list[NewRecord]:
    platform = Platform.PLATFORM_IOS if push.is_ios else Platform.PLATFORM_ANDROID
    kind = Kind.KIND_UNICAST if push.is_listed else Kind.KIND_BROADCAST
    audience = Audience(devices=_devices(push.targets)) if push.is_listed else Audience(everyone=Everyone())
    id_count = IDS if push.is_listed else 1
    new_records = [send(first_id, audience=audience, id_count=id_count, kind=kind, platform=platform, appkey=appkey)]
    for partition in PARTITIONS:
        numbers = BitMap(target.device[1] for target in push.targets if target.device[0] == partition)
        fact = PushFact(msgid=first_id, appkey=appkey, partition=partition)
        fact.started.audience = numbers.serialize()
        fact.started.count = len(numbers)
        new_records.append(store.record(PUSHES.name, partition, fact))
    return new_records


def _devices(targets: Sequence[Target]) -> Devices:
    return Devices(
        partitions=np.array([target.device[0] for target in targets], "<u2").tobytes(),
        numbers=np.array([target.device[1] for target in targets], "<u4").tobytes(),
        id_offsets=np.array([target.offset for target in targets], "<u4").tobytes(),
    )


def _draft(store: SyncStore, appkey: str, first_id: int, fact: Fact) -> NewRecord:
    if isinstance(fact, Ending):
        message = PushFact(msgid=first_id, appkey=appkey, partition=fact.partition)
        getattr(message, fact.fact).SetInParent()
        return store.record(PUSHES.name, fact.partition, message)
    partition, number = fact.target.device
    kind = OutcomeKind.Value(f"OUTCOME_KIND_{fact.step}")
    msgid, reason = first_id + fact.target.offset, fact.reason if fact.step in ENDS else ""
    apps = [app_outcomes(msgid, [number], kind, T0 + fact.after_ms, reason, appkey)]
    return store.record(DELIVERIES.name, partition, DeliveryFact(outcomes=Outcomes(apps=apps)))


def _counted(states: Sequence[StateCount]) -> dict[tuple[str, str], int]:
    counts = {(count.state, count.reason): count.devices for count in states}
    assert len(counts) == len(states)
    return counts


def _recount(push: Push, audience: set[Target], facts: Sequence[Fact]) -> dict[tuple[str, str], int]:
    """Count the targets by (state, reason), one by one."""
    return dict(Counter(_state(push, target, facts) for target in audience))


def _state(push: Push, target: Target, facts: Sequence[Fact]) -> tuple[str, str]:
    first_reasons: dict[str, str] = {}
    for fact in facts:
        if isinstance(fact, Outcome) and fact.target == target:
            first_reasons.setdefault(fact.step, fact.reason)
    ends = {fact.fact for fact in facts if isinstance(fact, Ending) and fact.partition == target.device[0]}
    if "CLICKED" in first_reasons:
        return "clicked", ""
    if first_reasons.keys() & {"SHOWN", "DISMISSED"}:
        return "shown", ""
    if "RECEIVED" in first_reasons:
        return "received", ""
    if push.is_ios and "SENT" in first_reasons:
        return "sent", ""
    for step in ENDS:
        if step in first_reasons:
            return step.lower(), first_reasons[step]
    for end, state in (("cancelled", "cancelled"), ("finished", "expired"), ("failed", "failed")):
        if end in ends:
            return state, ""
    return ("sent" if "SENT" in first_reasons else "pending"), ""
