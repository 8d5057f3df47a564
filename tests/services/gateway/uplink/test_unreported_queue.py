"""The queue of what a gateway has to tell delivery: its order, its batches and its bound."""

from structlog.testing import capture_logs

from protos.delivery.v1.delivery_pb2 import AttachRequest, OutcomeKind
from services.domain.device_protocol.commands import report_kind
from services.gateway.connections import DeviceSession
from services.gateway.uplink import MAX_REPORTS, UnreportedQueue
from testkit.gateway.role import ANDROID, NOON_MS

RECEIVED = OutcomeKind.OUTCOME_KIND_RECEIVED


def session(connection: int, number: int = 0) -> DeviceSession:
    return DeviceSession(connection, ANDROID, f"token-{connection}", 1, number)


def test_unrecorded_reports_are_sent_again_first() -> None:
    queue = UnreportedQueue()
    for msgid in (1, 2, 3):
        queue.report(session(1), [msgid], RECEIVED, NOON_MS)
        assert queue.take() is not None
    queue.recorded(1)
    queue.report(session(1), [4], RECEIVED, NOON_MS)
    queue.restart([session(7)])
    batches = taken(queue)
    assert [(batch.sequence, batch.reports[0].msgids[0]) for batch in batches] == [(2, 2), (3, 3), (4, 4)]
    assert [len(batch.connected) for batch in batches] == [0, 0, 1]
    queue.restart([])
    queue.recorded(3)
    queue.restart([])
    assert [batch.sequence for batch in taken(queue)] == [4]
    queue.recorded(4)
    assert queue.unrecorded == 0
    queue.restart([])
    assert taken(queue) == []


def test_connections_that_were_open_before_the_stream_say_so() -> None:
    queue = UnreportedQueue()
    queue.restart([session(1), session(2), session(3)])
    queue.connected(session(4))
    queue.disconnected(session(3))
    (request,) = taken(queue)
    assert [(each.connection, each.open_before) for each in request.connected] == [(1, True), (2, True), (4, False)]


def test_reports_go_before_disconnects_and_connects() -> None:
    queue = UnreportedQueue()
    queue.disconnected(session(1))
    queue.connected(session(2))
    queue.report(session(1), list(range(1, 15_001)), RECEIVED, NOON_MS)
    queue.report(session(1), [20_000], RECEIVED, NOON_MS)
    first, second = taken(queue)
    assert (len(first.connected), len(first.disconnected), len(first.reports[0].kinds)) == (0, 0, 15_000)
    assert (len(second.connected), len(second.disconnected), len(second.reports[0].kinds)) == (1, 1, 1)


def taken(queue: UnreportedQueue) -> list[AttachRequest]:
    batches = []
    while (batch := queue.take()) is not None:
        batches.append(batch)
    return batches


def test_a_connection_that_closed_before_it_was_announced_is_not_reported() -> None:
    queue = UnreportedQueue()
    queue.connected(session(1))
    queue.disconnected(session(1))
    assert queue.take() is None
    queue.connected(session(2))
    assert queue.take() is not None
    queue.disconnected(session(2))
    batch = queue.take()
    assert batch is not None
    assert list(batch.disconnected) == [2]


def test_batches_are_bounded_and_keep_the_order() -> None:
    queue = UnreportedQueue()
    for connection in range(1, 7001):
        queue.connected(session(connection, connection))
    for first in range(1, 25_001, 1000):
        queue.report(session(1), list(range(first, first + 1000)), RECEIVED, NOON_MS)
    batches = taken(queue)
    assert [len(batch.connected) for batch in batches] == [0, 0, 5000, 2000]
    assert not batches.pop().sequence
    assert [len(batch.reports[0].kinds) for batch in batches] == [10_000, 10_000, 5_000]
    msgids = b"".join(batch.reports[0].msgids for batch in batches)
    assert [int.from_bytes(msgids[at : at + 8], "little") for at in range(0, len(msgids), 8)] == list(range(1, 25_001))
    assert queue.unrecorded == 25_000


def test_unrecorded_reports_are_bounded_and_those_that_are_dropped_are_counted_in_the_log() -> None:
    queue = UnreportedQueue()
    with capture_logs() as logs:
        for _ in range(MAX_REPORTS // 100_000 + 3):
            queue.report(session(1), [7] * 100_000, report_kind("shown"), NOON_MS)
        assert queue.unrecorded == MAX_REPORTS
        batch = queue.take()
        assert batch is not None
        queue.recorded(batch.sequence)
    assert [line.get("count") for line in logs] == [None, 300_000]
