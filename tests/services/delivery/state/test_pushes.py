"""Broadcasts that delivery knows and answers GetBroadcast for, until they expire."""

import asyncio

import pytest

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import Audience, Everyone
from services.delivery.state.pushes import UnexpiredBroadcasts
from services.errors import NotFoundError
from testkit.delivery.records import APP, OTHER_APP, RECEIVED, NumberedDevice, OutcomeRow, stag_audience
from testkit.delivery.role import DeliveryHarness
from testkit.services import TIMEOUT_S

A = NumberedDevice(0, 0)


async def is_cancelled(delivery: DeliveryHarness, msgid: int, appkey: str = APP) -> bool | None:
    """Return whether the broadcast is cancelled; None if it is unknown."""
    stub = DeliveryServiceStub(delivery.server.channel())
    try:
        return bool((await stub.GetBroadcast(GetBroadcastRequest(msgid=msgid, appkey=appkey))).cancelled)
    except NotFoundError:
        return None


async def test_broadcasts_and_multicasts_are_known_to_their_app_until_they_expire(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A)
        everyone = await delivery.send(audience=Audience(everyone=Everyone()), period_s=60)
        some = await delivery.send(audience=stag_audience("news"), period_s=61)
        listed = await delivery.send(A)
        assert [await is_cancelled(delivery, msgid) for msgid in (everyone, some)] == [False, False]
        assert [await is_cancelled(delivery, msgid) for msgid in (listed, 12345)] == [None, None]
        assert await is_cancelled(delivery, everyone, OTHER_APP) is None
        delivery.clock.move(59.999)
        assert await is_cancelled(delivery, everyone) is False
        delivery.clock.move(0.001)
        assert [await is_cancelled(delivery, msgid) for msgid in (everyone, some)] == [None, False]
        await delivery.send(A)
        assert delivery.store().state.broadcasts.get(everyone) is None


async def test_a_broadcast_that_all_devices_received_can_still_be_cancelled(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        gateway.connect((1, A))
        msgid = await delivery.send()
        await gateway.expect((1, msgid))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        async with asyncio.timeout(TIMEOUT_S):
            while msgid in delivery.store().state.started:
                await asyncio.sleep(0)
        assert await is_cancelled(delivery, msgid) is False
        await delivery.cancel(msgid, OTHER_APP)
        assert await is_cancelled(delivery, msgid) is False
        await delivery.cancel(msgid)
        assert await is_cancelled(delivery, msgid) is True


async def test_a_cancel_after_the_expiry_changes_nothing(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        msgid = await delivery.send(period_s=60)
        delivery.clock.move(60)
        await delivery.cancel(msgid)
        assert await is_cancelled(delivery, msgid) is None
        assert "cancelled" not in {kind for kind, _ in await delivery.facts(msgid)}


@pytest.mark.parametrize("with_snapshot", [True, False])
async def test_cancelled_broadcasts_are_known_after_a_restart(delivery: DeliveryHarness, with_snapshot: bool) -> None:
    async with delivery.running():
        cancelled, kept, expired = await delivery.send(), await delivery.send(), await delivery.send(period_s=60)
        await delivery.cancel(cancelled)
        delivery.clock.move(60)
    if not with_snapshot:
        delivery.write_snapshot(None)
    async with delivery.running():
        assert [await is_cancelled(delivery, msgid) for msgid in (cancelled, kept, expired)] == [True, False, None]
    assert (await delivery.verify()).equal


async def test_a_cancel_changes_the_digest_that_a_replay_compares(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        msgid = await delivery.send()
        digest = delivery.store().digest()
        await delivery.cancel(msgid)
        assert delivery.store().digest() != digest


def test_a_broadcast_that_was_added_twice_is_forgotten() -> None:
    broadcasts = UnexpiredBroadcasts()
    for expires_ms in (10, 20):
        broadcasts.add(1, APP, expires_ms)
    broadcasts.add(2, APP, 15)
    broadcasts.forget(9)
    assert [row[0] for row in broadcasts.dump()] == [1, 2]
    broadcasts.forget(20)
    assert broadcasts.dump() == []


def test_a_loaded_copy_forgets_as_the_original_does() -> None:
    original, copy = UnexpiredBroadcasts(), UnexpiredBroadcasts()
    for msgid in range(5):
        original.add(msgid, APP, 100 - msgid * 10)
    original.cancel(3, APP)
    original.cancel(2, OTHER_APP)
    copy.load(original.dump())
    for now_ms in (0, 60, 75, 100):
        original.forget(now_ms)
        copy.forget(now_ms)
        assert copy.dump() == original.dump()
        assert {row[0]: row[3] for row in copy.dump()} == {n: n == 3 for n in range(5) if 100 - n * 10 > now_ms}
