"""The state against a simple model, under random commands and facts, and folded in other orders."""

import itertools
from collections.abc import Iterator, Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import (
    DeliveryFact,
    OutcomeKind,
    PushCancelled,
    PushFact,
    PushFailed,
    PushFinished,
    PushStarted,
)
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Message, PushCommand, SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS
from protos.runtime.v1.log_pb2 import Meta
from services.delivery.state import pushes, serialization
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.devices import FINAL_OUTCOMES
from services.delivery.state.hand_overs import MAX_CHANNELS
from services.delivery.state.sent_messages import REPORTED_KINDS
from services.domain.recorded_reasons import FixedReason
from services.log.port import Record
from testkit.delivery.records import START_MS, NumberedDevice, listed_audience
from testkit.examples import examples
from tests.services.delivery.state.model import DeliveryModel, PushModel
from tests.services.delivery.state.records import outcomes_fact, parsed

ANDROID, IOS = "1000000001", "1000000002"
OWNED = (0, 2)
FOREIGN = 1
DEVICES = [NumberedDevice(partition, number) for partition in (*OWNED, FOREIGN) for number in range(3)]
KINDS = [kind for kind in OutcomeKind.values() if kind]
CHANNELS = (1, 2, 3)
CLAIMED, RETURNED = OutcomeKind.OUTCOME_KIND_CLAIMED, OutcomeKind.OUTCOME_KIND_RETURNED
TOLD = (*REPORTED_KINDS, OutcomeKind.OUTCOME_KIND_RECEIVED)
DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED
CHANGED = -1
"""Stands for a message that was dropped because the device changed its alias."""

RECALLED = -2
"""Stands for the return of a message that was recalled from the channel."""

SPECIAL = {CHANGED: (DROPPED, FixedReason.ALIAS_CHANGED), RECALLED: (RETURNED, FixedReason.RECALLED)}


class DeliveryStateMachine(RuleBasedStateMachine):
    """Applies each record to the state and the model, and keeps the records to fold them again."""

    def __init__(self) -> None:
        super().__init__()
        self.state = DeliveryState(OWNED)
        self.model = DeliveryModel()
        self.records: list[tuple[Record, object]] = []
        self.sent: set[tuple[NumberedDevice, int]] = set()
        self.reported: set[tuple[NumberedDevice, int, int]] = set()
        self.sent_by_apple: set[tuple[NumberedDevice, int]] = set()
        self.told_of_apple: set[tuple[NumberedDevice, int, int]] = set()
        self.claimed: dict[tuple[NumberedDevice, int], int] = {}
        self.returned: dict[tuple[NumberedDevice, int], set[int]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.msgids = itertools.count(1000, 10)
        self.now_ms = START_MS
        self.snapshot: tuple[int, list[serialization.Blob], Iterator[serialization.Blob]] | None = None

    def write(self, topic: str, partition: int, message: PushCommand | PushFact | DeliveryFact) -> int:
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        record = Record(topic, partition, offset, b"", message.SerializeToString())
        self.records.append((record, message))
        self.state.apply(record, message)
        return offset

    @rule(
        app=st.sampled_from([ANDROID, IOS]),
        devices_listed=st.lists(st.sampled_from(DEVICES), min_size=1, max_size=6),
        own_ids=st.booleans(),
    )
    def request_list(self, app: str, devices_listed: list[NumberedDevice], own_ids: bool) -> None:
        msgid = next(self.msgids)
        ids: dict[NumberedDevice, list[int]] = {}
        for index, at in enumerate(devices_listed):
            entry = msgid + (index if own_ids else 0)
            if at.partition in OWNED and entry not in ids.setdefault(at, []):
                ids[at].append(entry)
        offset = self.write_request(
            app, msgid, listed_audience(*devices_listed, own_ids=own_ids), len(devices_listed) if own_ids else 1
        )
        here = {at.partition for at, entries in ids.items() if entries}
        self.model.pushes[msgid] = PushModel(offset, msgid, app, ids, here, is_acknowledged=app == ANDROID)

    @rule(app=st.sampled_from([ANDROID, IOS]), matching=st.sets(st.sampled_from(DEVICES)))
    def request_broadcast(self, app: str, matching: set[NumberedDevice]) -> None:
        msgid = next(self.msgids)
        offset = self.write_request(app, msgid, Audience(everyone=Everyone()), 1)
        ids = {at: [msgid] for at in matching if at.partition in OWNED}
        self.model.pushes[msgid] = PushModel(offset, msgid, app, ids, set(OWNED), is_acknowledged=False)

    def write_request(self, app: str, msgid: int, audience: Audience, id_count: int) -> int:
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
    def repeat_request(self, data: st.DataObject) -> None:
        requests = [
            message for record, message in self.records if isinstance(message, PushCommand) and message.HasField("send")
        ]
        self.write("push-commands", 0, PushCommand.FromString(data.draw(st.sampled_from(requests)).SerializeToString()))

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), app=st.sampled_from([ANDROID, IOS]))
    def request_cancel(self, data: st.DataObject, app: str) -> None:
        push = data.draw(st.sampled_from(list(self.model.pushes.values())))
        self.write("push-commands", 0, PushCommand(cancel=CancelPush(msgid=push.msgid, appkey=app)))
        if push.appkey == app and push.is_in_progress:
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
        if partition not in push.started | push.withdrawn:
            return
        if cancelled:
            self.write("pushes", partition, self.fact(push, partition, cancelled=PushCancelled()))
        else:
            self.write("pushes", partition, self.fact(push, partition, finished=PushFinished()))
        push.end(partition)

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), partition=st.sampled_from(OWNED), cancelled=st.booleans())
    def withdraw(self, data: st.DataObject, partition: int, cancelled: bool) -> None:
        """Fail or cancel a push where it has not started. A failure where it has started changes nothing."""
        push = data.draw(st.sampled_from(list(self.model.pushes.values())))
        if partition not in push.partitions or (cancelled and partition in push.started):
            return
        if cancelled:
            self.write("pushes", partition, self.fact(push, partition, cancelled=PushCancelled()))
        else:
            self.write("pushes", partition, self.fact(push, partition, failed=PushFailed(reason="bug")))
        push.withdraw(partition)

    def fact(
        self, push: PushModel, partition: int, **kind: PushStarted | PushCancelled | PushFinished | PushFailed
    ) -> PushFact:
        meta = Meta(time_ms=self.now_ms)
        return PushFact(meta=meta, msgid=push.msgid, appkey=push.appkey, partition=partition, **kind)  # type: ignore[arg-type]

    @rule()
    def pass_a_day(self) -> None:
        """Advance the time of the log by a command that changes nothing else."""
        self.now_ms += pushes.LATE_MS
        self.write("push-commands", 0, PushCommand(meta=Meta(time_ms=self.now_ms)))
        for push in self.model.pushes.values():
            push.ended.clear()

    @precondition(lambda self: self.model.pushes)
    @rule(data=st.data(), partition=st.sampled_from(OWNED), app=st.sampled_from([ANDROID, IOS]), carry=st.booleans())
    def record(self, data: st.DataObject, partition: int, app: str, carry: bool) -> None:
        one = st.tuples(
            st.sampled_from(list(self.model.pushes.values())),
            st.integers(0, 6),
            st.integers(0, 2),
            st.sampled_from([*KINDS, *SPECIAL]),
            st.sampled_from(CHANNELS),
        )
        drawn = data.draw(st.lists(one, min_size=1, max_size=8))
        drawn = [one for one in drawn if partition in one[0].started]
        kinds = [kind for *_, kind, _ in drawn]
        reasons = {place: SPECIAL[kind][1] for place, kind in enumerate(kinds) if kind in SPECIAL}
        changed = [place for place, kind in enumerate(kinds) if kind == CHANGED]
        channels = [channel for *_, channel in drawn]
        rows = [
            (push.msgid + index, number, SPECIAL[kind][0] if kind in SPECIAL else kind, push)
            for push, index, number, kind, _ in drawn
        ]
        fact = outcomes_fact(app, [row[:3] for row in rows], reasons, channels, carry_msgids=carry and app == IOS)
        self.write("deliveries", partition, fact)
        if app == ANDROID:
            self.change_channels(partition, rows, channels, kinds)
        for msgid, number, _, push in [rows[place] for place in changed]:
            if push.appkey == app:
                push.change_alias(NumberedDevice(partition, number), msgid)
        rows = [row for place, row in enumerate(rows) if place not in changed]
        for msgid, number, kind, push in rows:
            is_end = kind in FINAL_OUTCOMES or (kind == OutcomeKind.OUTCOME_KIND_SENT and app == IOS)
            device = NumberedDevice(partition, number)
            if push.appkey == app and is_end:
                push.conclude(device, msgid)
            if app == ANDROID and kind in (OutcomeKind.OUTCOME_KIND_SENT, CLAIMED):
                self.sent.add((device, msgid))
            if app == ANDROID and kind == CLAIMED:
                self.reported.add((device, msgid, CLAIMED))
            if app == IOS and kind == OutcomeKind.OUTCOME_KIND_SENT and carry:
                self.sent_by_apple.add((device, msgid))
        for msgid, number, kind, _ in rows:
            device = NumberedDevice(partition, number)
            if app == IOS and kind in TOLD and (device, msgid) in self.sent_by_apple:
                self.told_of_apple.add((device, msgid, kind))
            if app == ANDROID and kind in REPORTED_KINDS and (device, msgid) in self.sent:
                self.reported.add((device, msgid, kind))

    def change_channels(
        self,
        partition: int,
        rows: Sequence[tuple[int, int, int, PushModel]],
        channels: Sequence[int],
        kinds: Sequence[int],
    ) -> None:
        """Claim, return and recall pending messages.

        A channel claims what none has claimed and it has not returned, also what was recalled from it.
        """
        for (msgid, number, _, push), channel, kind in zip(rows, channels, kinds, strict=True):
            device = NumberedDevice(partition, number)
            key = device, msgid
            is_pending = msgid in push.pending_or_late(device) and key not in push.late and push.appkey == ANDROID
            if kind == CLAIMED and is_pending and key not in self.claimed and channel not in self.returned.get(key, ()):
                self.claimed[key] = channel
            elif kind in (RETURNED, RECALLED) and self.claimed.get(key) == channel:
                del self.claimed[key]
                if kind == RETURNED:
                    self.returned.setdefault(key, set()).add(channel)

    @invariant()
    def it_is_known_which_channels_have_which_messages(self) -> None:
        for push in self.model.pushes.values():
            for at in DEVICES:
                for msgid in range(push.msgid, push.msgid + 6):
                    key = at, msgid
                    if msgid not in push.pending_or_late(at) or key in push.late:
                        self.claimed.pop(key, None)
                        self.returned.pop(key, None)
                    part = push.msgid, at.partition, msgid
                    hand_overs = self.state.hand_overs
                    assert (at.number in hand_overs.claimed(*part)) == (key in self.claimed)
                    for channel in CHANNELS:
                        claims = hand_overs.is_claimed(*part, at.number, channel)
                        assert claims == (self.claimed.get(key) == channel)
                        returned = at.number in hand_overs.returned(*part, channel)
                        assert returned == (channel in self.returned.get(key, ()))
                    exhausted = at.number in hand_overs.exhausted(*part)
                    assert exhausted == (len(self.returned.get(key, ())) >= MAX_CHANNELS)

    @invariant()
    def it_is_known_what_devices_were_sent_and_reported(self) -> None:
        messages = self.state.sent_messages
        for partition, msgid in itertools.product(OWNED, range(1000, 1000 + 10 * len(self.model.pushes))):
            sent = {at.number for at, of in self.sent if (at.partition, of) == (partition, msgid)}
            assert messages.sent_to((ANDROID, partition), msgid) == BitMap(sent)
        for at, msgid in itertools.product(DEVICES, range(1000, 1000 + 10 * len(self.model.pushes))):
            assert messages.was_sent(DeviceAddress(ANDROID, *at), msgid) == ((at, msgid) in self.sent)
            for kind in (*REPORTED_KINDS, CLAIMED):
                reported = messages.was_reported(DeviceAddress(ANDROID, *at), msgid, kind)
                assert reported == ((at, msgid, kind) in self.reported)
            apple = DeviceAddress(IOS, *at)
            assert messages.was_sent(apple, msgid) == ((at, msgid) in self.sent_by_apple)
            assert not messages.was_claimed(apple, msgid)
            for kind in TOLD:
                assert messages.was_reported(apple, msgid, kind) == ((at, msgid, kind) in self.told_of_apple)

    @invariant()
    def every_device_has_the_same_pending_messages(self) -> None:
        for app in (ANDROID, IOS):
            for at in DEVICES:
                found = [msgid for msgid, _ in self.state.pending(DeviceAddress(app, *at))]
                assert found == self.model.pending(app, at)

    @invariant()
    def the_same_acknowledgements_count(self) -> None:
        for push in self.model.pushes.values():
            for at in DEVICES:
                part = found.part(at.partition) if (found := self.state.push_of(push.msgid)) else None
                counted = [id for id in push.targets.get(at, ()) if part and part.awaits_acknowledgement(at.number, id)]
                assert sorted(counted) == push.pending_or_late(at)

    @invariant()
    def only_pushes_that_are_not_forgotten_are_stored(self) -> None:
        stored = {push.msgid for push in self.model.pushes.values() if not push.is_forgotten}
        assert self.state.started.keys() | self.state.requested.keys() == stored
        assert self.state.pending_cancels.keys() == {
            m for m in stored if self.model.pushes[m].cancelled and self.model.pushes[m].is_in_progress
        }
        for push in self.model.pushes.values():
            pending = {msgid for at in DEVICES for msgid in (push.pending(at) if not push.cancelled else [])}
            assert all(found and found.msgid == push.msgid for found in map(self.state.push_of, pending))
            if push.is_forgotten:
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
        """Fold commands first and each partition's audiences before its outcomes, partitions in random order."""
        rebuilt = DeliveryState(OWNED)
        queues = [
            [pair for pair in self.records if pair[0].topic == "pushes" and pair[0].partition == partition]
            + [pair for pair in self.records if pair[0].topic == "deliveries" and pair[0].partition == partition]
            for partition in OWNED
        ]
        if data.draw(st.booleans()):
            queues = [
                [pair for pair in self.records if pair[0].topic != "push-commands" and pair[0].partition == partition]
                for partition in OWNED
            ]
        for record, _ in self.records:
            if record.topic == "push-commands":
                rebuilt.apply(record, PushCommand.FromString(record.value))
        while any(queues):
            queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
            record, message = queue.pop(0)
            rebuilt.apply(record, message)
        assert serialization.digest(rebuilt) == serialization.digest(self.state)

    @rule(taken=st.integers(0, 6))
    def begin_snapshot(self, taken: int) -> None:
        blobs = serialization.dump(self.state)
        self.snapshot = len(self.records), list(itertools.islice(blobs, taken)), blobs

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def end_snapshot(self) -> None:
        """Load a snapshot whose offsets are of its beginning and some blobs newer, and fold the records since."""
        assert self.snapshot is not None
        start, taken, rest = self.snapshot
        self.snapshot = None
        loaded = DeliveryState(OWNED)
        serialization.load(loaded, [*taken, *rest])
        self.fold_since(start, loaded)
        assert serialization.digest(loaded) == serialization.digest(self.state)

    @rule(data=st.data())
    def fold_the_last_records_again(self, data: st.DataObject) -> None:
        """Fold records once more that a snapshot holds already; the state stays the same."""
        start = data.draw(st.integers(0, len(self.records)))
        loaded = loaded_from(self.state)
        self.fold_since(start, loaded)
        assert serialization.digest(loaded) == serialization.digest(self.state)

    def fold_since(self, start: int, state: DeliveryState) -> None:
        for topic in ("push-commands", "pushes", "deliveries"):
            for record, _ in self.records[start:]:
                if record.topic == topic:
                    state.apply(record, parsed(record))


def loaded_from(state: DeliveryState) -> DeliveryState:
    loaded = DeliveryState(OWNED)
    serialization.load(loaded, list(serialization.dump(state)))
    return loaded


def fully_started(state: DeliveryState) -> set[int]:
    return {msgid for msgid in state.started if msgid not in state.requested}


DeliveryStateMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDeliveryState = DeliveryStateMachine.TestCase
