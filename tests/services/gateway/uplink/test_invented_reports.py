"""Acknowledgements and reports that a device invents: few are handed on, many end its connection."""

import pytest

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Message
from services.gateway.connections import DeviceSession
from services.gateway.rules import MAX_UNSENT_REPORTS
from services.gateway.uplink import MAX_REPORTS, MAX_UNPROVED_REPORTS, UnreportedQueue
from services.process.metrics import UNSENT_REPORTS_DROPPED
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import DeviceClient

FRAME_IDS = 250


def invented(first: int) -> list[int]:
    return list(range(first, first + FRAME_IDS))


@pytest.mark.parametrize("repeated", [False, True])
async def test_a_device_that_invents_acknowledgements_is_disconnected_and_delivery_gets_a_bounded_number(
    gateway: RunningGateway, repeated: bool
) -> None:
    dropped = UNSENT_REPORTS_DROPPED._value.get()
    client, honest = await DeviceClient.connect(gateway.port), await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    await honest.hello(ANDROID)
    for frame in range(20):
        client.send(type="ack", msgids=invented(10 if repeated else 10 + frame * FRAME_IDS))
    assert await client.goodbye() == "protocol"
    honest.send(type="ack", msgids=[5])
    await gateway.delivery.until(lambda: any(msgid == 5 for _, msgid, _ in gateway.delivery.reports()))
    assert len(gateway.delivery.reports()) == MAX_UNSENT_REPORTS + 1
    assert UNSENT_REPORTS_DROPPED._value.get() > dropped


async def test_reports_on_pushes_that_were_not_sent_are_counted_likewise(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    for msgid in range(1, MAX_UNSENT_REPORTS + 2):
        client.send(type="report", event="clicked", msgid=msgid)
    assert await client.goodbye() == "protocol"


async def test_a_device_may_acknowledge_and_report_whatever_it_was_sent(gateway: RunningGateway) -> None:
    client = await DeviceClient.connect(gateway.port)
    await client.hello(ANDROID)
    (connection,) = await gateway.delivery.until(gateway.delivery.connections)
    for first in range(1, 3 * MAX_UNSENT_REPORTS, FRAME_IDS):
        for msgid in invented(first):
            gateway.delivery.send(Message(content="c"), [connection], [msgid], expires_ms=2**50)
        for msgid in invented(first):
            assert (await client.next())["msgid"] == msgid
        client.send(type="report", event="shown", msgid=first)
        client.send(type="ack", msgids=invented(first))
    assert (await client.request(type="ping"))["type"] == "pong"
    await gateway.delivery.until(lambda: len(gateway.delivery.reports()) == 3 * (MAX_UNSENT_REPORTS + 4))


def test_invented_reports_leave_room_for_the_others_while_delivery_is_away() -> None:
    queue, session = UnreportedQueue(), DeviceSession(1, ANDROID, "token", 1, 0)
    received = OutcomeKind.OUTCOME_KIND_RECEIVED
    while queue.unrecorded < MAX_UNPROVED_REPORTS:
        queue.report(session, [1] * 10_000, received, 0, is_proved=False)
    queue.report(session, [1] * 10_000, received, 0, is_proved=False)
    assert queue.unrecorded == MAX_UNPROVED_REPORTS
    queue.report(session, [2] * (MAX_REPORTS - MAX_UNPROVED_REPORTS), received, 0)
    assert queue.unrecorded == MAX_REPORTS
