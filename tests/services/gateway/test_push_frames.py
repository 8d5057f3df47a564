"""Broadcasts in a row to the same connections: one write for several frames, in order, each frame once."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from protos.delivery.v1.delivery_pb2 import AttachResponse, Close
from protos.push.v1.push_pb2 import Message
from services.gateway.connection import DeviceConnection, SentPushes
from services.gateway.connections import ConnectionTable, DeviceSession
from services.gateway.push_frames import MAX_BYTES, MAX_MESSAGES, SLICE
from services.gateway.push_sender import PushSender
from testkit.gateway.role import RunningGateway
from testkit.waiting import run_ready_tasks
from tests.services.gateway.test_push_sender import devices, to

CLOSED = 0
_DEVICES = 3 * SLICE


class Writes(defaultdict[int, list[tuple[int, ...]]]):
    """The msgids of each write, by connection; a goodbye is a write of CLOSED."""

    def __init__(self) -> None:
        super().__init__(list)

    def sender(self, sent_before: Mapping[int, int] = MappingProxyType({})) -> PushSender:
        """Return a sender with the connections 1 to _DEVICES of one app; `sent_before`: msgids by connection."""
        table: ConnectionTable[DeviceConnection] = ConnectionTable()
        for number in range(1, _DEVICES + 1):
            sent = SentPushes()
            if number in sent_before:
                sent.note(sent_before[number], 0)
            table.add(DeviceSession(number, "app", f"token {number}", 0, number), self._connection(self[number], sent))
        return PushSender(table, lambda: 0, Random(0), lambda appkey: False)

    def msgids(self, connection: int) -> list[int]:
        return [msgid for write in self[connection] for msgid in write]

    @staticmethod
    def _connection(writes: list[tuple[int, ...]], sent: SentPushes) -> DeviceConnection:
        connection = SimpleNamespace(
            session=SimpleNamespace(appkey="app"),
            send_push=lambda frame, msgid, now_ms: None if sent.has(msgid) else writes.append((msgid,)),
            sent=sent,
            send_pushes=lambda frames, msgids, now_ms: writes.append(tuple(msgids)),
            goodbye=lambda reason, *_, **__: writes.append((CLOSED,)),
        )
        return cast(DeviceConnection, connection)


ALL = range(1, _DEVICES + 1)


async def test_broadcasts_in_a_row_go_out_in_one_write() -> None:
    writes = Writes()
    pushes = writes.sender()
    await pushes.handle(AttachResponse(sends=[to(ALL, msgid) for msgid in range(1, 6)]))
    await run_ready_tasks()
    assert all(writes[number] == [(1, 2, 3, 4, 5)] for number in ALL)


async def test_a_broadcast_joins_those_that_are_being_written() -> None:
    writes = Writes()
    pushes = writes.sender()
    await pushes.handle(AttachResponse(sends=[to(ALL, 1)]))
    while not writes[SLICE]:
        await asyncio.sleep(0)
    await pushes.handle(AttachResponse(sends=[to(ALL, 2)]))
    await run_ready_tasks()
    assert [writes[number] for number in (1, SLICE, SLICE + 1, _DEVICES)] == [[(1,), (2,)]] * 2 + [[(1, 2)]] * 2


async def test_a_burst_leaves_out_what_a_connection_was_sent_before() -> None:
    writes = Writes()
    pushes = writes.sender(sent_before={SLICE: 2})
    await pushes.handle(AttachResponse(sends=[to(ALL, msgid) for msgid in (1, 2, 3)]))
    await run_ready_tasks()
    assert [writes[number] for number in (1, SLICE)] == [[(1, 2, 3)], [(1,), (3,)]]


async def test_an_app_keeps_the_order_of_its_messages_and_closes() -> None:
    writes = Writes()
    pushes = writes.sender()
    close = Close(connection=1, reason="unauthorized")
    await pushes.handle(AttachResponse(sends=[to(ALL, 1), to(ALL, 2)], closes=[close]))
    await pushes.handle(AttachResponse(sends=[to(ALL, 3)]))
    await run_ready_tasks()
    assert writes.msgids(1) == [1, 2, CLOSED, 3]
    assert all(writes.msgids(number) == [1, 2, 3] for number in ALL[1:])


async def test_a_write_has_a_bounded_number_of_frames_and_bytes() -> None:
    writes = Writes()
    pushes = writes.sender()
    large = to(ALL, 100)
    large.message.content = "x" * (MAX_BYTES // 2)
    several = [to(ALL, msgid) for msgid in range(1, 2 * MAX_MESSAGES + 1)]
    await pushes.handle(AttachResponse(sends=[*several, large, large]))
    await run_ready_tasks()
    first = tuple(range(1, MAX_MESSAGES + 1))
    second = tuple(range(MAX_MESSAGES + 1, 2 * MAX_MESSAGES + 1))
    assert all(writes[number] == [first, second, (100,), (100,)] for number in ALL)


numbers = st.integers(1, _DEVICES)
steps = st.one_of(
    st.just(ALL),
    st.sampled_from([range(1, 2 * SLICE), range(SLICE, _DEVICES), range(7, 8), range(1, 3)]),
    st.builds(lambda one, other: range(min(one, other), max(one, other) + 1), numbers, numbers),
    numbers.map(lambda number: Close(connection=number, reason="draining")),
    st.none(),
)


@given(st.lists(steps, max_size=25))
async def test_each_connection_gets_its_messages_once_and_in_order(given_steps: list[range | Close | None]) -> None:
    """None is a step of the event loop, in which frames are written between two responses of delivery."""
    writes = Writes()
    pushes = writes.sender()
    expected: defaultdict[int, list[int]] = defaultdict(list)
    for msgid, step in enumerate(given_steps, 1):
        if step is None:
            await asyncio.sleep(0)
        elif isinstance(step, Close):
            await pushes.handle(AttachResponse(closes=[step]))
            expected[step.connection].append(CLOSED)
        else:
            await pushes.handle(AttachResponse(sends=[to(step, msgid)]))
            for number in step:
                expected[number].append(msgid)
    await run_ready_tasks()
    assert {number: writes.msgids(number) for number in ALL} == {number: expected[number] for number in ALL}


async def test_a_burst_arrives_over_a_real_connection(gateway: RunningGateway) -> None:
    clients, connections = await devices(gateway, 2)
    sizes = [10, 125, 126, 20_000, 70_000, 10, 10]
    filler = list(range(10**6, 10**6 + 2 * SLICE))
    for msgid, size in enumerate(sizes, 1):
        gateway.delivery.send(Message(content="x" * size), [*filler, *connections], [msgid])
    for client in clients:
        received = [await client.next() for _ in sizes]
        assert [(frame["msgid"], len(frame["content"])) for frame in received] == list(enumerate(sizes, 1))
        assert (await client.request(type="get_device", id=1))["type"] == "ok"
