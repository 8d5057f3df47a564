"""Devices that come back: their backlog in order, a window at a time, and nothing again that they acknowledged."""

import pytest

from protos.push.v1.push_pb2 import SendPush
from services.delivery.android.fanout import BACKLOG_WINDOW
from services.delivery.android.presence import TAKEOVER_MS
from tests.roles.delivery.conftest import RECEIVED, At, Gateway, House, Row, idle

A, B = At(0, 0), At(1, 0)


async def test_a_backlog_comes_in_windows_and_what_is_new_waits_for_its_place(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B)
        gateway.connect((9, B))
        old = [push.msgid for push in await asked(house, 2 * BACKLOG_WINDOW)]
        gateway.connect((1, A))
        await gateway.gets(*((1, msgid) for msgid in old[:BACKLOG_WINDOW]))
        new = await house.send()
        await gateway.until(lambda: (9, new) in [(got.connection, got.msgid) for got in gateway.got])
        gateway.ack(*((msgid, A) for msgid in old[: BACKLOG_WINDOW // 2 - 1]))
        await idle()
        assert of(gateway, 1) == old[:BACKLOG_WINDOW]
        gateway.ack((old[BACKLOG_WINDOW // 2 - 1], A))
        await gateway.until(lambda: len(of(gateway, 1)) == BACKLOG_WINDOW + BACKLOG_WINDOW // 2)
        gateway.ack(*((msgid, A) for msgid in of(gateway, 1)))
        await gateway.until(lambda: len(of(gateway, 1)) == 2 * BACKLOG_WINDOW + 1)
        assert of(gateway, 1) == [*old, new]
        live = await house.send(A)
        await gateway.until(lambda: of(gateway, 1) == [*old, new, live])


async def test_a_whole_window_acknowledged_at_once_brings_the_next(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        old = [push.msgid for push in await asked(house, 3 * BACKLOG_WINDOW)]
        gateway.connect((1, A))
        await gateway.drains((1, A), old)


async def test_a_window_left_unacknowledged_comes_again_with_the_next_connection_and_the_same_ids(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        old = [push.msgid for push in await asked(house, BACKLOG_WINDOW + 4)]
        gateway.connect((1, A))
        await gateway.until(lambda: len(gateway.got) == BACKLOG_WINDOW)
        gateway.ack((old[1], A))
        gateway.say(disconnected=[1])
        gateway.connect((2, A))
        left = [old[0], *old[2:]]
        await gateway.until(lambda: len(of(gateway, 2)) == BACKLOG_WINDOW)
        assert of(gateway, 2) == left[:BACKLOG_WINDOW]


async def test_a_message_cancelled_in_the_middle_of_a_backlog_is_left_out(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        old = [push.msgid for push in await asked(house, BACKLOG_WINDOW + 3)]
        gateway.connect((1, A))
        await gateway.until(lambda: len(gateway.got) == BACKLOG_WINDOW)
        await house.cancel(old[BACKLOG_WINDOW])
        gateway.ack(*((msgid, A) for msgid in old[:BACKLOG_WINDOW]))
        await gateway.until(lambda: len(gateway.got) == BACKLOG_WINDOW + 2)
        assert of(gateway, 1) == [*old[:BACKLOG_WINDOW], *old[BACKLOG_WINDOW + 1 :]]


@pytest.mark.parametrize("stored_first", [True, False])
async def test_a_message_stored_just_as_the_device_comes_back_is_sent_once(house: House, stored_first: bool) -> None:
    """Whichever comes first, neither sees the other half done."""
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        for connection in range(1, 40):
            push = house.push() if connection % 2 else house.push(A)
            if stored_first:
                await house.command(push, settle=False)
            gateway.connect((connection, A))
            await idle(connection)
            if not stored_first:
                await house.command(push, settle=False)
            await gateway.until(lambda c=connection, m=push.msgid: m in of(gateway, c))  # type: ignore[misc]
            gateway.ack((push.msgid, A))
            await house.recorder().wait_recorded()
            assert of(gateway, connection) == [push.msgid]


async def test_acknowledgements_that_the_older_gateway_still_has_stop_the_resend(house: House) -> None:
    async with house.running(), house.gateway() as older, house.gateway() as newer:
        old = [push.msgid for push in await asked(house, 2)]
        older.connect((1, A))
        await older.gets(*((1, msgid) for msgid in old))
        newer.connect((2, A))
        await older.until(lambda: bool(older.closes))
        new = await house.send(A)
        assert newer.got == []
        older.ack((old[0], A))
        older.say(disconnected=[1])
        await newer.gets((2, old[1]), (2, new))
        live = await house.send(A)
        await newer.gets((2, old[1]), (2, new), (2, live))


async def test_an_older_gateway_that_dies_or_hangs_holds_nobody_up(house: House) -> None:
    async with house.running(), house.gateway() as hangs, house.gateway() as newer:
        msgid = await house.send(A)
        hangs.connect((1, A))
        await hangs.gets((1, msgid))
        newer.connect((2, A))
        await hangs.until(lambda: bool(hangs.closes))
        await house.move(TAKEOVER_MS / 1000 - 0.5)
        assert newer.got == []
        await house.move(1)
        await newer.gets((2, msgid))
        async with house.gateway() as dies:
            dies.connect((3, A))
            await dies.gets_at_least(0)
            await newer.until(lambda: bool(newer.closes))
            await newer.leave()
            await dies.gets((3, msgid))


async def test_who_moves_on_while_it_waits_is_served_on_the_last_gateway_alone(house: House) -> None:
    async with house.running(), house.gateway() as one, house.gateway() as two, house.gateway() as three:
        msgid = await house.send(A)
        one.connect((1, A))
        await one.gets((1, msgid))
        two.connect((2, A))
        await one.until(lambda: bool(one.closes))
        three.connect((3, A))
        await two.until(lambda: bool(two.closes))
        two.say(disconnected=[2])
        await idle()
        assert (two.got, three.got) == ([], [])
        one.say(disconnected=[1])
        await three.gets((3, msgid))
        assert two.got == []


async def test_a_report_is_confirmed_once_the_log_has_it(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        msgid = await house.send(A)
        gateway.ack((msgid, A))
        gateway.say(sequence=41)
        await gateway.until(lambda: any(response.recorded == 41 for response in gateway.responses))
        assert await house.outcomes(RECEIVED) == [Row(msgid, A, RECEIVED)]
        gateway.ack((msgid, A))
        gateway.say(sequence=42)
        await gateway.until(lambda: any(response.recorded == 42 for response in gateway.responses))
        assert await house.outcomes(RECEIVED) == [Row(msgid, A, RECEIVED)]


async def test_who_has_a_message_may_say_so_after_it_was_cancelled_or_expired(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B)
        gateway.connect((1, A))
        cancelled, expired = await house.send(), await house.send(A, period_s=60)
        await gateway.gets((1, cancelled), (1, expired))
        await house.cancel(cancelled)
        await house.move(61, steps=61)
        await house.until_facts("finished", 1)
    async with house.running(), house.gateway() as gateway:
        gateway.ack((cancelled, A), (expired, A), (expired, B))
        gateway.ack((cancelled, A), (expired, A))
        gateway.say(sequence=1)
        await gateway.until(lambda: any(response.recorded for response in gateway.responses))
        assert sorted(await house.outcomes(RECEIVED)) == [Row(cancelled, A, RECEIVED), Row(expired, A, RECEIVED)]
    assert (await house.verify()).equal


async def asked(house: House, count: int) -> list[SendPush]:
    """So many pushes to A alone."""
    pushes = [house.push(A) for _ in range(count)]
    await house.command(*pushes)
    return pushes


def of(gateway: Gateway, connection: int) -> list[int]:
    return [got.msgid for got in gateway.got if got.connection == connection]
