"""The decisions of delivery: given a state, which facts follow and which reports are accepted."""

import pytest
from pyroaring import BitMap

from protos.delivery.v1.delivery_pb2 import OutcomeKind, PushFact
from protos.push.v1.push_pb2 import Audience, CancelPush, Everyone, Message, PushCommand, SendPush
from protos.runtime.v1.log_pb2 import Meta
from services.delivery import decide
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import PUSH_COMMANDS, PUSHES
from services.log.port import Record
from services.process.clock import ManualClock
from testkit.delivery.message_ids import SoleWriterIds
from testkit.delivery.records import APP, OTHER_APP, RECEIVED, START_MS, NumberedDevice, listed_audience
from tests.services.delivery.state.records import outcomes_fact

MSGID = SoleWriterIds(ManualClock(START_MS)).take()
LISTED = [NumberedDevice(0, 1), NumberedDevice(2, 5)]


def requested(audience: Audience, id_count: int = 1) -> DeliveryState:
    state = DeliveryState([0, 2])
    apply_command(state, 7, send=send_push(audience, id_count=id_count))
    return state


def send_push(audience: Audience, msgid: int = MSGID, id_count: int = 1) -> SendPush:
    message = Message(content="text")
    return SendPush(msgid=msgid, id_count=id_count, appkey=APP, audience=audience, message=message, period_s=60)


def apply_command(state: DeliveryState, offset: int, **command: SendPush | CancelPush) -> None:
    message = PushCommand(meta=Meta(time_ms=START_MS), **command)  # type: ignore[arg-type]
    state.apply(Record(PUSH_COMMANDS.name, 0, offset, b"", b""), message)


def apply_facts(state: DeliveryState, facts: list[PushFact]) -> None:
    for fact in facts:
        fact.meta.time_ms = START_MS
        state.apply(Record(PUSHES.name, fact.partition, 0, b"", b""), fact)


def started(audience: Audience, *bitmaps: BitMap, id_count: int = 1) -> DeliveryState:
    state = requested(audience, id_count)
    apply_facts(state, decide.start(state.requested[MSGID], dict(zip([0, 2], bitmaps, strict=True))))
    return state


def test_a_push_starts_in_each_remaining_partition_also_for_an_empty_audience() -> None:
    state = requested(Audience(everyone=Everyone()))
    facts = decide.start(state.requested[MSGID], {0: BitMap([1, 2]), 2: BitMap()})
    assert [(fact.partition, fact.started.count, fact.meta.cause.offset) for fact in facts] == [(0, 2, 7), (2, 0, 7)]
    assert {fact.started.expires_ms for fact in facts} == {START_MS + 60_000}
    apply_facts(state, facts[:1])
    (rest,) = decide.start(state.requested[MSGID], {2: BitMap()})
    assert rest.partition == 2


def test_a_cancel_ends_a_push_in_its_active_partitions_once_it_has_started_in_all() -> None:
    state = requested(Audience(everyone=Everyone()))
    apply_command(state, 9, cancel=CancelPush(msgid=MSGID, appkey=APP))
    start = decide.start(state.requested[MSGID], {0: BitMap([1]), 2: BitMap([3])})
    apply_facts(state, start[:1])
    assert decide.cancel(state) == []
    apply_facts(state, start[1:])
    facts = decide.cancel(state)
    assert [(fact.WhichOneof("fact"), fact.partition, fact.meta.cause.offset) for fact in facts] == [
        ("cancelled", 0, 9),
        ("cancelled", 2, 9),
    ]
    apply_facts(state, facts)
    assert decide.cancel(state) == []


def test_a_cancel_ends_a_push_that_is_held_up_in_all_its_partitions_at_once() -> None:
    state = requested(Audience(everyone=Everyone()))
    apply_command(state, 9, cancel=CancelPush(msgid=MSGID, appkey=APP))
    apply_facts(state, decide.start(state.requested[MSGID], {0: BitMap([1])}))
    facts = decide.cancel(state, {MSGID})
    assert [(fact.WhichOneof("fact"), fact.partition, fact.meta.cause.offset) for fact in facts] == [
        ("cancelled", 0, 9),
        ("cancelled", 2, 9),
    ]
    apply_facts(state, facts)
    assert (state.requested, state.pending_cancels, decide.cancel(state)) == ({}, {}, [])
    apply_facts(state, decide.start(requested(Audience(everyone=Everyone())).requested[MSGID], {2: BitMap([5])}))
    assert state.pending(DeviceAddress(APP, 2, 5)) == []


def test_a_push_fails_where_it_has_not_started_and_goes_on_where_it_has() -> None:
    state = requested(Audience(everyone=Everyone()))
    apply_facts(state, decide.start(state.requested[MSGID], {0: BitMap([1])}))
    facts = decide.fail(state.requested[MSGID], state.requested[MSGID].remaining, "x" * 5000)
    assert [(fact.partition, len(fact.failed.reason), fact.meta.cause.offset) for fact in facts] == [(2, 1000, 7)]
    apply_facts(state, facts)
    assert (list(state.requested), list(state.started[MSGID].active_parts)) == ([], [0])
    assert [push.msgid for push in state.pop_expired(START_MS + 60_000)] == [MSGID]
    apply_command(state, 9, cancel=CancelPush(msgid=MSGID, appkey=APP))
    assert [fact.partition for fact in decide.cancel(state)] == [0]


def test_a_push_that_failed_everywhere_is_forgotten_and_not_requested_again() -> None:
    state = requested(Audience(everyone=Everyone()))
    apply_command(state, 9, cancel=CancelPush(msgid=MSGID, appkey=APP))
    apply_facts(state, decide.fail(state.requested[MSGID], [0, 2], "bug"))
    apply_command(state, 10, send=send_push(Audience(everyone=Everyone())))
    assert (state.requested, dict(state.started), state.pending_cancels) == ({}, {}, {})


def test_an_expired_push_is_finished_where_devices_are_left() -> None:
    state = started(Audience(everyone=Everyone()), BitMap([1]), BitMap())
    assert state.pop_expired(START_MS + 59_999) == []
    (push,) = state.pop_expired(START_MS + 60_000)
    assert [(fact.WhichOneof("fact"), fact.partition) for fact in decide.finish(push)] == [("finished", 0)]


@pytest.mark.parametrize(("is_connected", "cap"), [(False, decide.MAILBOX_CAP), (True, decide.UNACKNOWLEDGED_CAP)])
def test_a_mailbox_drops_its_oldest_pushes_beyond_the_cap(is_connected: bool, cap: int) -> None:
    state, device = DeliveryState([0]), DeviceAddress(APP, 0, 1)
    msgids = range(MSGID, MSGID + cap + 2)
    for offset, msgid in enumerate(msgids):
        apply_command(state, offset, send=send_push(listed_audience(NumberedDevice(0, 1)), msgid))
        apply_facts(state, decide.start(state.requested[msgid], {0: BitMap([1])}))
    assert decide.overflow(state, device, is_connected) == list(msgids[:2])
    assert decide.overflow(state, DeviceAddress(APP, 0, 2), is_connected) == []
    claim = outcomes_fact(APP, [(msgids[0], 1, OutcomeKind.OUTCOME_KIND_CLAIMED)], channels=[3])
    state.apply(Record("deliveries", 0, 0, b"", b""), claim)
    assert decide.overflow(state, device, is_connected) == [msgids[1]]


@pytest.mark.parametrize("sent", [True, None])
def test_an_acknowledgement_is_accepted_once_from_each_device_of_the_audience(sent: bool | None) -> None:
    state = started(listed_audience(*LISTED, own_ids=True), BitMap([1]), BitMap([5]), id_count=2)
    push, device = state.push_of(MSGID), DeviceAddress(APP, 0, 1)
    assert decide.accepts_acknowledgement(push, device, MSGID, sent)
    assert not decide.accepts_acknowledgement(push, device, MSGID + 1, sent)
    assert not decide.accepts_acknowledgement(push, device._replace(number=5), MSGID, sent)
    assert not decide.accepts_acknowledgement(push, device._replace(appkey=OTHER_APP), MSGID, sent)
    assert not decide.accepts_acknowledgement(None, device, MSGID, sent)
    state.apply(Record("deliveries", 0, 0, b"", b""), outcomes_fact(APP, [(MSGID, 1, RECEIVED)]))
    assert not decide.accepts_acknowledgement(push, device, MSGID, sent)


def test_an_acknowledgement_of_a_message_that_was_not_sent_to_the_device_is_not_accepted() -> None:
    state = started(Audience(everyone=Everyone()), BitMap([1]), BitMap())
    assert not decide.accepts_acknowledgement(state.push_of(MSGID), DeviceAddress(APP, 0, 1), MSGID, False)


def test_a_report_is_accepted_for_a_message_that_was_sent() -> None:
    state = started(Audience(everyone=Everyone()), BitMap([1]), BitMap())
    push, device = state.push_of(MSGID), DeviceAddress(APP, 0, 1)
    assert decide.accepts_report(push, device, MSGID, True)
    assert not decide.accepts_report(push, device, MSGID, False)
    assert decide.accepts_report(None, device, MSGID, True)
    assert not decide.accepts_report(None, device, MSGID, False)
    assert not decide.accepts_report(push, device._replace(appkey=OTHER_APP), MSGID, True)


def test_a_report_on_a_message_of_unknown_sending_is_accepted_from_the_known_audience_alone() -> None:
    state = started(Audience(everyone=Everyone()), BitMap([1]), BitMap())
    push, device = state.push_of(MSGID), DeviceAddress(APP, 0, 1)
    assert decide.accepts_report(push, device, MSGID, None)
    assert not decide.accepts_report(push, device._replace(number=2), MSGID, None)
    assert not decide.accepts_report(push, DeviceAddress(APP, 2, 9), MSGID, None)
    assert not decide.accepts_report(None, device, MSGID, None)
