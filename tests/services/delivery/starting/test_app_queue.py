"""The queue of an app: held up pushes start in the order of the log, in whatever order they are resolved."""

from pyroaring import BitMap

from protos.push.v1.push_pb2 import Audience, Everyone, SendPush
from services.delivery.state.pushes import PushSource, UnstartedPush
from services.delivery.waiting_pushes import AppQueue, WaitingPush
from testkit.delivery.records import APP, START_MS


def waiting_push(offset: int, *, is_held_up: bool) -> WaitingPush:
    send = SendPush(msgid=1000 + offset, appkey=APP, audience=Audience(everyone=Everyone()))
    waiting = WaitingPush.of(UnstartedPush(send, offset, START_MS, PushSource.FRONT_END, {0, 1}))
    waiting.is_held_up = is_held_up
    return waiting


def taken(queue: AppQueue) -> list[tuple[int, list[int]]]:
    """Return the offset and the partitions of each part that starts next."""
    parts, _ = queue.take(1000, lambda waiting, partition: 1)
    return [(part.waiting.push.offset, sorted(part.audiences)) for part in parts]


def test_held_up_pushes_start_in_the_order_of_the_log_and_pass_no_earlier_push_that_is_not() -> None:
    queue = AppQueue()
    held_up = [waiting_push(offset, is_held_up=True) for offset in (1, 2, 3, 5)]
    in_order = waiting_push(4, is_held_up=False)
    for waiting in (*held_up, in_order):
        queue.add(waiting)
    assert not queue.is_ready
    for waiting in reversed(held_up):
        waiting.audiences[1] = BitMap([7])
        queue.note_resolved(waiting)
    queue.discard(held_up[1])
    assert taken(queue) == [(1, [1]), (3, [1])]
    held_up[0].audiences[0] = BitMap()
    queue.note_resolved(held_up[0])
    in_order.audiences.update({0: BitMap(), 1: BitMap()})
    assert taken(queue) == [(1, [0]), (4, [0, 1]), (5, [1])]
    assert not queue.is_ready
    assert queue.held_up_bytes == held_up[2].size + held_up[3].size
