"""Gateway streams: the queue and its batches are bounded."""

from array import array

import pytest

from protos.push.v1.push_pb2 import Message
from services.delivery.android import gateway_stream
from services.delivery.android.gateway_stream import GatewayStream
from services.runtime.errors import BusyError

RPC_LIMIT = 32 * 1024 * 1024


async def test_a_batch_stays_below_the_size_limit_for_many_and_large_messages() -> None:
    stream = GatewayStream()
    for msgid in range(3000):
        stream.send(Message(content="x" * 20_000), 1, array("Q", [1]), array("Q", [msgid]))
    stream.send(Message(content="many"), 1, array("Q", range(3_000_000)), array("Q", [7]))
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
    stream = GatewayStream()
    stream.send(Message(), 1, array("Q", range(50_000)), array("Q", range(100_000, 150_000)))
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
    stream = GatewayStream()
    for msgid in range(100):
        stream.send(Message(content="x" * 1000), 1, array("Q", [1]), array("Q", [msgid]))
    assert len(stream._queue) == 0
    with pytest.raises(BusyError):
        await stream.next_response()


async def test_an_ended_stream_has_no_next_response() -> None:
    stream = GatewayStream()
    stream.close(1, "replaced")
    stream.end()
    assert await stream.next_response() is None
