"""What delivery remembers of broadcasts and answers about them, until their time to live is over."""

import asyncio

import pytest

from protos.delivery.v1.delivery_pb2 import GetBroadcastRequest
from protos.delivery.v1.delivery_pb2_grpc import DeliveryServiceStub
from protos.push.v1.push_pb2 import Audience, Everyone
from services.delivery.state.broadcasts import Broadcasts
from services.runtime.errors import NotFoundError
from tests.roles.delivery.conftest import APP, BOUND_S, OTHER_APP, RECEIVED, At, House, Row, with_stag

A = At(0, 0)


async def is_cancelled(house: House, msgid: int, appkey: str = APP) -> bool | None:
    """None: not known."""
    stub = DeliveryServiceStub(house.delivery.channel())
    try:
        return bool((await stub.GetBroadcast(GetBroadcastRequest(msgid=msgid, appkey=appkey))).cancelled)
    except NotFoundError:
        return None


async def test_broadcasts_and_multicasts_are_known_to_their_app_until_they_expire(house: House) -> None:
    async with house.running():
        await house.register(A)
        everyone = await house.send(audience=Audience(everyone=Everyone()), period_s=60)
        some = await house.send(audience=with_stag("news"), period_s=61)
        listed = await house.send(A)
        assert [await is_cancelled(house, msgid) for msgid in (everyone, some)] == [False, False]
        assert [await is_cancelled(house, msgid) for msgid in (listed, 12345)] == [None, None]
        assert await is_cancelled(house, everyone, OTHER_APP) is None
        house.clock.move(59.999)
        assert await is_cancelled(house, everyone) is False
        house.clock.move(0.001)
        assert [await is_cancelled(house, msgid) for msgid in (everyone, some)] == [None, False]
        await house.send(A)
        assert house.fold().state.broadcasts.get(everyone) is None


async def test_a_broadcast_that_all_have_received_is_known_and_can_be_cancelled(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        gateway.connect((1, A))
        msgid = await house.send()
        await gateway.gets((1, msgid))
        gateway.ack((msgid, A))
        await house.recorded(Row(msgid, A, RECEIVED))
        async with asyncio.timeout(BOUND_S):
            while msgid in house.fold().state.started:
                await asyncio.sleep(0)
        assert await is_cancelled(house, msgid) is False
        await house.cancel(msgid, OTHER_APP)
        assert await is_cancelled(house, msgid) is False
        await house.cancel(msgid)
        assert await is_cancelled(house, msgid) is True


async def test_a_cancel_that_comes_after_the_end_changes_nothing(house: House) -> None:
    async with house.running():
        msgid = await house.send(period_s=60)
        house.clock.move(60)
        await house.cancel(msgid)
        assert await is_cancelled(house, msgid) is None
        assert "cancelled" not in {kind for kind, _ in await house.facts(msgid)}


@pytest.mark.parametrize("with_snapshot", [True, False])
async def test_the_next_life_knows_what_was_cancelled(house: House, with_snapshot: bool) -> None:
    async with house.running():
        cancelled, kept, expired = await house.send(), await house.send(), await house.send(period_s=60)
        await house.cancel(cancelled)
        house.clock.move(60)
    if not with_snapshot:
        house.put_snapshot(None)
    async with house.running():
        assert [await is_cancelled(house, msgid) for msgid in (cancelled, kept, expired)] == [True, False, None]
    assert (await house.verify()).equal


async def test_a_cancel_is_part_of_what_a_replay_compares(house: House) -> None:
    async with house.running():
        msgid = await house.send()
        digest = house.fold().digest()
        await house.cancel(msgid)
        assert house.fold().digest() != digest


def test_an_id_that_comes_twice_is_forgotten_once() -> None:
    broadcasts = Broadcasts()
    for expires_ms in (10, 20):
        broadcasts.add(1, APP, expires_ms)
    broadcasts.add(2, APP, 15)
    broadcasts.forget(9)
    assert [row[0] for row in broadcasts.dump()] == [1, 2]
    broadcasts.forget(20)
    assert broadcasts.dump() == []


def test_a_copy_forgets_as_the_original_does() -> None:
    original, copy = Broadcasts(), Broadcasts()
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
