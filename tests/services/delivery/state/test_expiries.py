"""The queue of pushes by expiry: in order, and without many entries of pushes that are over."""

from services.delivery.state.pushes import PushExpiries


def test_pushes_are_returned_in_the_order_of_their_expiry_unless_they_are_over() -> None:
    known = dict.fromkeys((1, 2, 3))
    expiries = PushExpiries(known)
    for expires_ms, msgid in ((30, 1), (10, 2), (20, 3)):
        expiries.add(expires_ms, msgid)
    del known[3]
    assert expiries.pop_expired(9) == []
    assert expiries.pop_expired(30) == [2, 1]
    assert len(expiries) == 0


def test_the_queue_stays_small_while_pushes_are_over_long_before_they_expire() -> None:
    known: dict[int, None] = {}
    expiries = PushExpiries(known)
    for msgid in range(20_000):
        known[msgid] = None
        expiries.add(1_000_000 + msgid, msgid)
        known.pop(msgid - 10, None)
        assert len(expiries) < 1100
    assert expiries.pop_expired(2_000_000) == list(range(19_990, 20_000))
