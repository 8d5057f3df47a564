"""The record of sent messages: bounded for each app and partition, in the order in which they were sent."""

import itertools
from collections.abc import Sequence

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.sent_messages import BLOCK_COST_BYTES, MAX_COST_BYTES, SentMessages
from testkit.delivery.records import APP, CLICKED, OTHER_APP, RECEIVED, SENT, SHOWN
from tests.services.delivery.state.records import outcomes_fact

DEVICE = DeviceAddress(APP, 0, 1)
MAX_SINGLES = MAX_COST_BYTES // 16
CLAIMED = OutcomeKind.OUTCOME_KIND_CLAIMED
BLOCK_SINGLES = BLOCK_COST_BYTES // 16
OFFSETS = itertools.count()


def fold(
    messages: SentMessages, rows: Sequence[tuple[int, int, int]], app: str = APP, offset: int | None = None
) -> None:
    """Fold a record of partition 0, by default the next one."""
    for outcomes in outcomes_fact(app, rows).outcomes.apps:
        messages.fold(0, next(OFFSETS) if offset is None else offset, outcomes)


def loaded_from(messages: SentMessages) -> SentMessages:
    loaded = SentMessages()
    for row in messages.dump():
        loaded.load(row)
    return loaded


def test_a_message_is_known_for_the_devices_that_were_sent_it_alone() -> None:
    messages = SentMessages()
    fold(messages, [(7, 1, SENT), (8, 2, SENT), (8, 3, SENT)])
    for known in (messages, loaded_from(messages)):
        assert known.was_sent(DEVICE, 7)
        assert known.was_sent(DEVICE._replace(number=3), 8)
        for device in (DEVICE._replace(number=2), DEVICE._replace(partition=1), DEVICE._replace(appkey=OTHER_APP)):
            assert known.was_sent(device, 7) is False
        assert known.was_sent(DEVICE, 8) is False


def test_reports_stay_known_when_further_devices_are_sent_the_message() -> None:
    messages = SentMessages()
    fold(messages, [(7, 1, SENT), (7, 1, SHOWN), (7, 2, SHOWN)])
    assert messages.was_reported(DEVICE, 7, SHOWN)
    fold(messages, [(7, 2, SENT), (7, 2, CLICKED)])
    for known in (messages, loaded_from(messages)):
        assert known.was_reported(DEVICE, 7, SHOWN)
        assert not known.was_reported(DEVICE, 7, CLICKED)
        assert not known.was_reported(DEVICE._replace(number=2), 7, SHOWN)
        assert known.was_reported(DEVICE._replace(number=2), 7, CLICKED)


def test_an_acknowledgement_is_kept_where_a_channel_has_claimed_the_message() -> None:
    """There it may come after the push is forgotten, and a repeated one must not count."""
    messages = SentMessages()
    fold(messages, [(5, 1, SENT), (5, 1, RECEIVED)])
    fold(messages, [(7, 1, CLAIMED), (8, 1, CLAIMED), (8, 2, CLAIMED), (9, 1, SENT)])
    fold(messages, [(7, 1, RECEIVED), (8, 2, RECEIVED), (9, 1, RECEIVED)])
    fold(messages, [(7, 2, SENT)])
    other = DEVICE._replace(number=2)
    for known in (messages, loaded_from(messages)):
        assert [known.was_claimed(DEVICE, msgid) for msgid in (5, 7, 8, 9)] == [False, True, True, False]
        assert [known.was_reported(DEVICE, msgid, RECEIVED) for msgid in (5, 7, 8, 9)] == [False, True, False, False]
        assert known.was_reported(other, 8, RECEIVED)
        assert not known.was_claimed(other, 7)
        assert all(known.was_sent(DEVICE, msgid) for msgid in (5, 7, 8, 9))


def test_of_messages_whose_sending_is_final_those_with_their_ids_and_what_is_told_of_them_are_kept() -> None:
    messages = SentMessages()

    def fold_final(rows: Sequence[tuple[int, int, int]], *, carry_msgids: bool) -> None:
        for outcomes in outcomes_fact(APP, rows, carry_msgids=carry_msgids).outcomes.apps:
            messages.fold(0, next(OFFSETS), outcomes, is_sent_final=True)

    fold_final([(5, 1, SENT), (5, 1, SHOWN)], carry_msgids=False)
    assert list(messages.dump()) == []
    fold_final([(7, 1, SENT), (8, 1, SENT), (8, 2, SENT), (8, 1, RECEIVED)], carry_msgids=True)
    fold_final([(7, 1, RECEIVED), (7, 2, SHOWN), (8, 2, CLICKED), (9, 1, SENT), (9, 1, RECEIVED)], carry_msgids=False)
    other = DEVICE._replace(number=2)
    for known in (messages, loaded_from(messages)):
        assert [known.was_sent(DEVICE, msgid) for msgid in (5, 7, 8, 9)] == [False, True, True, False]
        assert [known.was_reported(DEVICE, msgid, RECEIVED) for msgid in (5, 7, 8, 9)] == [False, True, True, False]
        assert [known.was_reported(other, 7, SHOWN), known.was_reported(other, 8, CLICKED)] == [False, True]
        assert not known.was_claimed(DEVICE, 7)


def test_the_messages_of_an_app_sent_first_are_forgotten_first_and_those_of_others_stay() -> None:
    messages = SentMessages()
    fold(messages, [(5, 1, SENT)], OTHER_APP)
    fold(messages, [(msgid, 1, SENT) for msgid in range(10, 10 + MAX_SINGLES)])
    assert messages.was_sent(DEVICE, 10)
    fold(messages, [(10 + MAX_SINGLES, 1, SENT)])
    first_known = 10 + BLOCK_SINGLES
    for known in (messages, loaded_from(messages)):
        assert [known.was_sent(DEVICE, msgid) for msgid in (10, first_known - 1)] == [None, None]
        assert [known.was_sent(DEVICE, msgid) for msgid in (first_known, 10 + MAX_SINGLES)] == [True, True]
        assert known.was_sent(DEVICE, 11 + MAX_SINGLES) is False
        assert known.was_sent(DEVICE._replace(appkey=OTHER_APP), 5)
    before = list(messages.dump())
    assert before == list(loaded_from(messages).dump())


def test_a_message_whose_id_is_older_than_all_that_is_known_is_remembered_when_it_is_sent() -> None:
    messages = SentMessages()
    fold(messages, [(msgid, 1, SENT) for msgid in range(1000, 1001 + MAX_SINGLES)])
    fold(messages, [(7, 1, SENT), (8, 1, SENT), (8, 2, SENT), (7, 1, SHOWN), (8, 2, SHOWN)])
    fold(messages, [(msgid, 1, SENT) for msgid in range(200_000, 200_000 + MAX_SINGLES - 2 * BLOCK_SINGLES)])
    second = DEVICE._replace(number=2)
    for known in (messages, loaded_from(messages)):
        assert [known.was_sent(DEVICE, 7), known.was_sent(second, 7), known.was_sent(second, 8)] == [True, None, True]
        assert [known.was_reported(DEVICE, 7, SHOWN), known.was_reported(DEVICE, 7, CLICKED)] == [True, False]
        assert [known.was_reported(DEVICE, 8, SHOWN), known.was_reported(second, 8, SHOWN)] == [False, True]
    fold(messages, [(msgid, 1, SENT) for msgid in range(300_000, 300_000 + 2 * BLOCK_SINGLES)])
    assert messages.was_sent(DEVICE, 7) is None


def test_a_forgotten_message_is_known_anew_where_further_devices_are_sent_it() -> None:
    messages = SentMessages()
    fold(messages, [(7, 1, SENT), (7, 2, SENT)])
    fold(messages, [(msgid, 1, SENT) for msgid in range(1000, 1000 + MAX_SINGLES)])
    assert messages.was_sent(DEVICE, 7) is None
    fold(messages, [(7, 3, SENT)])
    assert messages.was_sent(DEVICE._replace(number=3), 7)
    assert messages.was_sent(DEVICE, 7) is None, "the device was sent it, which is forgotten"


def test_records_that_a_snapshot_holds_already_change_nothing() -> None:
    """A snapshot is taken while records are folded, so these are folded once more after a restart."""
    messages = SentMessages()
    fold(messages, [(7, 1, SENT)], offset=0)
    late: list[tuple[int, list[tuple[int, int, int]]]] = [
        (1, [(7, 2, SENT), (7, 1, SHOWN)]),
        (2, [(msgid, 1, SENT) for msgid in range(1000, 1000 + MAX_SINGLES)]),
        (5, [(7, 3, SENT)]),
    ]
    for offset, rows in late:
        fold(messages, rows, offset=offset)
    restored = loaded_from(messages)
    for offset, rows in late:
        fold(restored, rows, offset=offset)
    assert list(restored.dump()) == list(messages.dump())
    assert restored.was_sent(DEVICE._replace(number=2), 7) is None


def test_broadcasts_take_a_bit_for_each_device() -> None:
    messages = SentMessages()
    for msgid in range(1, 101):
        fold(messages, [(msgid, number, SENT) for number in range(0, 70_000, 7)])
    assert messages.was_sent(DEVICE._replace(number=0), 100)
    assert messages.was_sent(DEVICE, 100) is False
    known = [msgid for msgid in range(1, 101) if messages.was_sent(DEVICE._replace(number=0), msgid)]
    assert known == list(range(known[0], 101))
    assert MAX_COST_BYTES * 3 // 4 <= len(known) * (512 + 2 * 8192) <= MAX_COST_BYTES
