"""The record of sent messages: bounded for each app and partition, and the same in any order of folding."""

from collections.abc import Sequence

import pytest

from services.delivery.state.addresses import DeviceAddress
from services.delivery.state.sent_messages import MAX_COST_BYTES, SentMessages
from testkit.delivery.records import APP, CLICKED, OTHER_APP, SENT, SHOWN
from tests.roles.delivery.state.records import outcomes_fact

DEVICE = DeviceAddress(APP, 0, 1)
MAX_SINGLES = MAX_COST_BYTES // 16


def fold(messages: SentMessages, rows: Sequence[tuple[int, int, int]], app: str = APP, partition: int = 0) -> None:
    for outcomes in outcomes_fact(app, rows).outcomes.apps:
        messages.fold(partition, outcomes)


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


def test_the_oldest_messages_of_an_app_are_forgotten_first_and_those_of_others_stay() -> None:
    messages = SentMessages()
    fold(messages, [(5, 1, SENT)], OTHER_APP)
    fold(messages, [(msgid, msgid % 7, SENT) for msgid in range(10, 10 + MAX_SINGLES)])
    assert messages.was_sent(DEVICE._replace(number=10 % 7), 10)
    fold(messages, [(10 + MAX_SINGLES, 1, SENT)])
    assert messages.was_sent(DEVICE._replace(number=10 % 7), 10) is None
    assert messages.was_sent(DEVICE._replace(number=11 % 7), 11)
    assert messages.was_sent(DEVICE._replace(appkey=OTHER_APP), 5)
    before = list(messages.dump())
    fold(messages, [(10, 1, SENT), (10, 1, SHOWN)])
    assert list(messages.dump()) == before == list(loaded_from(messages).dump())


def test_broadcasts_take_a_bit_for_each_device() -> None:
    messages = SentMessages()
    for msgid in range(1, 101):
        fold(messages, [(msgid, number, SENT) for number in range(0, 70_000, 7)])
    assert messages.was_sent(DEVICE._replace(number=0), 100)
    assert messages.was_sent(DEVICE, 100) is False
    known = [msgid for msgid in range(1, 101) if messages.was_sent(DEVICE._replace(number=0), msgid)]
    assert known == list(range(known[0], 101))
    assert len(known) == MAX_COST_BYTES // (512 + 2 * 8192)


@pytest.mark.parametrize("step", [1, -1])
def test_the_content_does_not_depend_on_the_order_of_messages(step: int) -> None:
    messages, reference = SentMessages(), SentMessages()
    rows = [(msgid, number, SENT) for msgid in range(1, 50) for number in range(msgid % 3 + 1)]
    fold(reference, rows)
    for row in rows[::step]:
        fold(messages, [row])
    assert list(messages.dump()) == list(reference.dump())
