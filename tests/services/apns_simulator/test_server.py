"""Queues of accepted pushes for watchers of device tokens."""

from services.apns_simulator.server import WATCHER_QUEUE_SIZE, ApnsSimulator
from services.process.clock import ManualClock
from services.push_simulator.connection import HttpRequest

ONE, TWO = "ab" * 32, "cd" * 32


def push(simulator: ApnsSimulator, token: str, payload: bytes = b"{}", topic: str = "org.t") -> None:
    headers = {":method": "POST", ":path": f"/3/device/{token}", "apns-topic": topic}
    simulator.reply_to(HttpRequest(list(headers.items()), bytearray(payload)))


def test_a_watcher_gets_the_pushes_accepted_for_its_tokens_while_it_watches() -> None:
    simulator = ApnsSimulator(ManualClock(0))
    push(simulator, ONE, b'"early"')
    with simulator.watching([ONE.upper(), TWO]) as both, simulator.watching([TWO]) as second:
        push(simulator, ONE, b'"1"')
        push(simulator, TWO, b'"2"')
        push(simulator, TWO, b'"refused"', topic="")
        push(simulator, "ef" * 32)
        assert [both.get_nowait().payload for _ in range(both.qsize())] == [b'"1"', b'"2"']
        assert [second.get_nowait().payload for _ in range(second.qsize())] == [b'"2"']
    push(simulator, ONE)
    assert both.empty()


def test_a_full_queue_drops_the_oldest_push() -> None:
    simulator = ApnsSimulator(ManualClock(0))
    with simulator.watching([ONE]) as pushes:
        for number in range(WATCHER_QUEUE_SIZE + 2):
            push(simulator, ONE, str(number).encode())
        found = [int(pushes.get_nowait().payload) for _ in range(pushes.qsize())]
    assert found == list(range(2, WATCHER_QUEUE_SIZE + 2))
