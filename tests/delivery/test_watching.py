"""What the stand-in shows those who watch tokens."""

from services.delivery.standin.apple import Request
from services.delivery.standin.service import WATCHED, ApnsStandIn
from services.runtime.clock import ManualClock

ONE, TWO = "ab" * 32, "cd" * 32


def push(standin: ApnsStandIn, token: str, payload: bytes = b"{}", topic: str = "org.t") -> None:
    headers = {":method": "POST", ":path": f"/3/device/{token}", "apns-topic": topic}
    standin.take(Request(list(headers.items()), bytearray(payload)))


def test_watchers_see_what_is_accepted_for_their_tokens_while_they_watch() -> None:
    standin = ApnsStandIn(ManualClock(0))
    push(standin, ONE, b'"early"')
    with standin.watching([ONE.upper(), TWO]) as both, standin.watching([TWO]) as second:
        push(standin, ONE, b'"1"')
        push(standin, TWO, b'"2"')
        push(standin, TWO, b'"refused"', topic="")
        push(standin, "ef" * 32)
        assert [both.get_nowait().payload for _ in range(both.qsize())] == [b'"1"', b'"2"']
        assert [second.get_nowait().payload for _ in range(second.qsize())] == [b'"2"']
    push(standin, ONE)
    assert both.empty()


def test_a_slow_watcher_misses_the_oldest() -> None:
    standin = ApnsStandIn(ManualClock(0))
    with standin.watching([ONE]) as pushes:
        for number in range(WATCHED + 2):
            push(standin, ONE, str(number).encode())
        found = [int(pushes.get_nowait().payload) for _ in range(pushes.qsize())]
    assert found == list(range(2, WATCHED + 2))
