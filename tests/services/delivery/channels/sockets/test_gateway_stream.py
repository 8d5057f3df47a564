"""Gateway streams: the queue and its batches are bounded."""

from array import array

import pytest

from protos.push.v1.push_pb2 import Message, SendPush
from services.delivery.channels.sockets import gateway_stream
from services.delivery.channels.sockets.gateway_stream import GatewayStream
from services.delivery.state.pushes import StartedPush
from services.errors import BusyError

RPC_LIMIT = 32 * 1024 * 1024
PAUSED = "1000000002"


def is_paused(appkey: str) -> bool:
    return appkey == PAUSED


def started(message: Message, appkey: str = "1000000001", msgid: int = 1) -> StartedPush:
    return StartedPush(SendPush(msgid=msgid, appkey=appkey, message=message), 0, 1)


async def test_a_batch_stays_below_the_size_limit_for_many_and_large_messages() -> None:
    stream = GatewayStream(is_paused)
    for msgid in range(3000):
        stream.send(started(Message(content="x" * 20_000)), array("Q", [1]), array("Q", [msgid]))
    stream.send(started(Message(content="many")), array("Q", range(3_000_000)), array("Q", [7]))
    msgids: list[int] = []
    connections = 0
    while connections < 3_000_000:
        response = await stream.next_response()
        assert response is not None
        assert response.ByteSize() < RPC_LIMIT / 8
        for send in response.sends:
            if send.message.content == "many":
                connections += len(send.connections) // 8
            else:
                msgids += array("Q", send.msgids)
    assert msgids == list(range(3000))


async def test_connections_keep_their_message_ids_when_a_send_is_split() -> None:
    stream = GatewayStream(is_paused)
    stream.send(started(Message()), array("Q", range(50_000)), array("Q", range(100_000, 150_000)))
    pairs: list[tuple[int, int]] = []
    while len(pairs) < 50_000:
        response = await stream.next_response()
        assert response is not None
        for send in response.sends:
            pairs += zip(array("Q", send.connections), array("Q", send.msgids), strict=True)
    assert pairs == list(zip(range(50_000), range(100_000, 150_000), strict=True))


async def test_a_queue_over_its_byte_budget_is_cleared_and_fails_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_stream, "MAX_QUEUED_BYTES", 10_000)
    stream = GatewayStream(is_paused)
    for msgid in range(100):
        stream.send(started(Message(content="x" * 1000)), array("Q", [1]), array("Q", [msgid]))
    assert len(stream._queue) == 0
    with pytest.raises(BusyError):
        await stream.next_response()


async def test_another_apps_message_passes_a_broadcast_to_many_connections_within_a_batch() -> None:
    stream = GatewayStream(is_paused)
    for msgid in range(4):
        stream.send(started(Message(content="noisy"), "noisy", msgid), array("Q", range(100_000)), array("Q", [msgid]))
    await stream.next_response()
    stream.send(started(Message(content="quiet"), "quiet"), array("Q", [1]), array("Q", [99]))
    response = await stream.next_response()
    assert response is not None
    assert [send.message.content for send in response.sends].index("quiet") <= 1
    msgids: list[int] = []
    while len(msgids) < 190:
        response = await stream.next_response()
        assert response is not None
        msgids += [array("Q", send.msgids)[0] for send in response.sends]
    assert msgids == sorted(msgids)


async def test_an_ended_stream_has_no_next_response() -> None:
    stream = GatewayStream(is_paused)
    stream.close(1, "replaced")
    stream.end()
    assert await stream.next_response() is None


async def test_queued_messages_of_a_paused_app_are_kept_until_it_is_resumed_and_sent_first_and_in_order() -> None:
    paused = {"1", "3"}
    stream = GatewayStream(lambda appkey: appkey in paused)
    for msgid, appkey in enumerate(("1", "2", "1", "3", "1", "2")):
        push = started(Message(content="x" * 1000), appkey, msgid)
        stream.send(push, array("Q", [1]), array("Q", [msgid]))
    assert await next_msgids(stream) == [1, 5]
    stream.send(started(Message(), "2", 6), array("Q", [1]), array("Q", [6]))
    paused.discard("1")
    stream.release(lambda push: push.msgid != 2)
    assert await next_msgids(stream) == [0, 4, 6]
    paused.clear()
    stream.release(lambda push: True)
    assert await next_msgids(stream) == [3]
    assert stream._queued_bytes == 0


async def next_msgids(stream: GatewayStream) -> list[int]:
    response = await stream.next_response()
    assert response is not None
    return [msgid for send in response.sends for msgid in array("Q", send.msgids)]
