"""The state against a plain model, under random commands and facts; and any order of folding gives the same state."""

import itertools
import struct
from collections.abc import Iterator, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import (
    AppOutcomes,
    DeliveryFact,
    OutcomeKind,
    Outcomes,
    PushCancelled,
    PushFact,
    PushFinished,
    PushStarted,
)
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state import serialization
from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.audience_parts import BitmapAudience
from services.delivery.state.delivery_state import LATE_MS, DeliveryState
from services.delivery.state.final_outcomes import FINAL_OUTCOMES
from services.runtime.log.port import Record
from testkit.delivery_records import START_MS, NumberedDevice, listed_audience
from testkit.examples import examples
from tests.roles.delivery.state.model import Model, PushModel

ANDROID, IOS = "1000000001", "1000000002"
OWNED = (0, 2)
FOREIGN = 1
DEVICES = [NumberedDevice(partition, number) for partition in (*OWNED, FOREIGN) for number in range(3)]
KINDS = [kind for kind in OutcomeKind.values() if kind]


class Folding(RuleBasedStateMachine):
    """Applies each record to the state as it comes and keeps it, to fold all again in other orders."""

    def __init__(self) -> None:
        super().__init__()
        self.state = DeliveryState(OWNED)
        self.model = Model()
        self.records: list[tuple[Record, object]] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.msgids = itertools.count(1000, 10)
        self.now_ms = START_MS
        self.snapshot: tuple[int, list[serialization.Blob], Iterator[serialization.Blob]] | None = None

    def write(self, topic: str, partition: int, message: PushCommand | PushFact | DeliveryFact) -> int:
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        record = Record(topic, partition, offset, b"", message.SerializeToString())
        self.records.append((record, message))
        apply(self.state, record, message)
        return offset

    @rule(
        app=st.sampled_from([ANDROID, IOS]),
        listing=st.lists(st.sampled_from(DEVICES), min_size=1, max_size=6),
        own_ids=st.booleans(),
    )
    def ask_for_a_list(self, app: str, listing: list[NumberedDevice], own_ids: bool) -> None:
        msgid = next(self.msgids)
        ids: dict[NumberedDevice, list[int]] = {}
        for index, at in enumerate(listing):
            entry = msgid + (index if own_ids else 0)
            if at.partition in OWNED and entry not in ids.setdefault(at, []):
                ids[at].append(entry)
        order = self.ask(app, msgid, listed_audience(*listing, own_ids=own_ids), len(listing) if own_ids else 1)
        here = {at.partition for at, entries in ids.items() if entries}
        self.model.pushes[msgid] = PushModel(order, msgid, app, ids, here)

    @rule(app=st.sampled_from([ANDROID, IOS]), matching=st.sets(st.sampled_from(DEVICES)))
    def ask_for_a_broadcast(self, app: str, matching: set[NumberedDevice]) -> None:
        msgid = next(self.msgids)
        order = self.ask(app, msgid, Audience(everyone=Everyone()), 1)
        ids = {at: [msgid] for at in matching if at.partition in OWNED}
        self.model.pushes[msgid] = PushModel(order, msgid, app, ids, set(OWNED))

    def ask(self, app: str, msgid: int, audience: Audience, id_count: int) -> int:
        send = SendPush(
            msgid=msgid,
            id_count=id_count,
            appkey=app,
            platform=PLATFORM_IOS if app == IOS else PLATFORM_ANDROID,
            audience=audience,
            message=Message(content=str(msgid)),
            period_s=60,
            request_json="{}",
        )
        return self.write("push-commands", 0, PushCommand(meta=Meta(time_ms=self.now_ms), send=send))

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        again = [
            message for record, message in self.records if isinstance(message, PushCommand) and message.HasField("send")
        ]
        self.write("push-commands", 0, PushCommand.FromString(data.draw(st.sampled_from(again)).SerializeToString()))

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), app=st.sampled_from([ANDROID, IOS]))
    def ask_to_cancel(self, data: st.DataObject, app: str) -> None:
        push = data.draw(st.sampled_from(list(self.model.pushes.values())))
        self.write("push-commands", 0, PushCommand(cancel=CancelPush(msgid=push.msgid, appkey=app)))
        if push.appkey == app and push.in_flight:
            push.cancelled = True

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), partition=st.sampled_from(OWNED))
    def start(self, data: st.DataObject, partition: int) -> None:
        push = data.draw(st.sampled_from(list(self.model.pushes.values())))
        audience = BitMap(at.number for at in push.targets if at.partition == partition)
        started = PushStarted(audience=audience.serialize(), count=len(audience), expires_ms=START_MS + 60_000)
        if partition in push.partitions:
            self.write("pushes", partition, self.fact(push, partition, started=started))
            push.start(partition)

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), partition=st.sampled_from(OWNED), cancelled=st.booleans())
    def end(self, data: st.DataObject, partition: int, cancelled: bool) -> None:
        push = data.draw(st.sampled_from(list(self.model.pushes.values())))
        if partition not in push.started:
            return
        if cancelled:
            self.write("pushes", partition, self.fact(push, partition, cancelled=PushCancelled()))
        else:
            self.write("pushes", partition, self.fact(push, partition, finished=PushFinished()))
        push.end(partition)

    def fact(self, push: PushModel, partition: int, **kind: PushStarted | PushCancelled | PushFinished) -> PushFact:
        meta = Meta(time_ms=self.now_ms)
        return PushFact(meta=meta, msgid=push.msgid, appkey=push.appkey, partition=partition, **kind)  # type: ignore[arg-type]

    @rule()
    def let_a_day_pass(self) -> None:
        """The log tells it with the next command, here one that changes nothing else."""
        self.now_ms += LATE_MS
        self.write("push-commands", 0, PushCommand(meta=Meta(time_ms=self.now_ms)))
        for push in self.model.pushes.values():
            push.late.clear()

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), partition=st.sampled_from(OWNED), app=st.sampled_from([ANDROID, IOS]))
    def record(self, data: st.DataObject, partition: int, app: str) -> None:
        one = st.tuples(
            st.sampled_from(list(self.model.pushes.values())),
            st.integers(0, 6),
            st.integers(0, 2),
            st.sampled_from(KINDS),
        )
        drawn = data.draw(st.lists(one, min_size=1, max_size=8))
        rows = [
            (push.msgid + index, number, kind, push) for push, index, number, kind in drawn if partition in push.started
        ]
        self.write("deliveries", partition, outcomes(app, [row[:3] for row in rows]))
        for msgid, number, kind, push in rows:
            is_end = kind in FINAL_OUTCOMES or (kind == OutcomeKind.OUTCOME_KIND_SENT and app == IOS)
            if push.appkey == app and is_end:
                push.settle(NumberedDevice(partition, number), msgid)

    @invariant()
    def every_device_has_the_same_to_get(self) -> None:
        for app in (ANDROID, IOS):
            for at in DEVICES:
                found = [msgid for msgid, _ in self.state.pending(DeviceAddress(app, *at))]
                assert found == self.model.pending(app, at)

    @invariant()
    def what_is_over_is_gone(self) -> None:
        active = {push.msgid for push in self.model.pushes.values() if not push.over}
        assert self.state.started.keys() | self.state.requested.keys() == active
        assert self.state.pending_cancels.keys() == {
            m for m in active if self.model.pushes[m].cancelled and self.model.pushes[m].in_flight
        }
        for push in self.model.pushes.values():
            pending = {msgid for at in DEVICES for msgid in (push.pending(at) if not push.cancelled else [])}
            assert all(found and found.msgid == push.msgid for found in map(self.state.push_of, pending))
            if push.over:
                assert self.state.push_of(push.msgid) is None

    @rule()
    def dump_and_load(self) -> None:
        loaded = loaded_from(self.state)
        assert serialization.digest(loaded) == serialization.digest(self.state)
        assert {push.msgid for push in loaded.pop_expired(START_MS + 60_000)} == fully_started(self.state)
        if self.snapshot is None:
            self.state = loaded

    @rule(data=st.data())
    def fold_in_another_order(self, data: st.DataObject) -> None:
        """Commands first; of each partition the audiences before the outcomes; else as it may come."""
        rebuilt = DeliveryState(OWNED)
        lines = [
            [pair for pair in self.records if pair[0].topic == "pushes" and pair[0].partition == partition]
            + [pair for pair in self.records if pair[0].topic == "deliveries" and pair[0].partition == partition]
            for partition in OWNED
        ]
        if data.draw(st.booleans()):
            lines = [
                [pair for pair in self.records if pair[0].topic != "push-commands" and pair[0].partition == partition]
                for partition in OWNED
            ]
        for record, _ in self.records:
            if record.topic == "push-commands":
                apply(rebuilt, record, PushCommand.FromString(record.value))
        while any(lines):
            line = data.draw(st.sampled_from([line for line in lines if line]))
            record, message = line.pop(0)
            apply(rebuilt, record, message)
        assert serialization.digest(rebuilt) == serialization.digest(self.state)

    @rule(taken=st.integers(0, 6))
    def begin_a_snapshot(self, taken: int) -> None:
        blobs = serialization.dump(self.state)
        self.snapshot = len(self.records), list(itertools.islice(blobs, taken)), blobs

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def end_the_snapshot(self) -> None:
        """Its offsets are those of its beginning, while some of its blobs are newer."""
        assert self.snapshot is not None
        start, taken, rest = self.snapshot
        self.snapshot = None
        loaded = DeliveryState(OWNED)
        serialization.load(loaded, [*taken, *rest])
        self.fold_since(start, loaded)
        assert serialization.digest(loaded) == serialization.digest(self.state)

    @rule(data=st.data())
    def fold_the_tail_again(self, data: st.DataObject) -> None:
        """A snapshot's offsets may lie before what its blobs hold."""
        start = data.draw(st.integers(0, len(self.records)))
        loaded = loaded_from(self.state)
        self.fold_since(start, loaded)
        assert serialization.digest(loaded) == serialization.digest(self.state)

    def fold_since(self, start: int, state: DeliveryState) -> None:
        for topic in ("push-commands", "pushes", "deliveries"):
            for record, _ in self.records[start:]:
                if record.topic == topic:
                    apply(state, record, parsed(record))


def apply(state: DeliveryState, record: Record, message: object) -> None:
    state.apply(record, message)


def parsed(record: Record) -> PushCommand | PushFact | DeliveryFact:
    types: dict[str, type[PushCommand | PushFact | DeliveryFact]] = {
        "push-commands": PushCommand,
        "pushes": PushFact,
        "deliveries": DeliveryFact,
    }
    return types[record.topic].FromString(record.value)


def outcomes(app: str, rows: Sequence[tuple[int, int, int]]) -> DeliveryFact:
    count = len(rows)
    columns = AppOutcomes(
        appkey=app,
        msgids=struct.pack(f"<{count}Q", *(row[0] for row in rows)),
        numbers=struct.pack(f"<{count}I", *(row[1] for row in rows)),
        kinds=bytes(row[2] for row in rows),
        times_ms=struct.pack(f"<{count}q", *[START_MS] * count),
        reason_indexes=bytes(count),
    )
    return DeliveryFact(outcomes=Outcomes(apps=[columns]))


def loaded_from(state: DeliveryState) -> DeliveryState:
    loaded = DeliveryState(OWNED)
    serialization.load(loaded, list(serialization.dump(state)))
    return loaded


def fully_started(state: DeliveryState) -> set[int]:
    return {msgid for msgid in state.started if msgid not in state.requested}


def test_equal_bitmaps_are_dumped_alike_however_they_were_made() -> None:
    ranges, singles = BitMap(range(5000)), BitMap()
    ranges.run_optimize()
    for number in range(5000):
        singles.add(number)
    assert BitmapAudience(1, ranges, singles).dump() == BitmapAudience(1, singles, ranges).dump()


Folding.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestFolding = Folding.TestCase
