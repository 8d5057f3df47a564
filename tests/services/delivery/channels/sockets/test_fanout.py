"""Backlogs: sent in order and in windows when a device connects, without the messages that it has acknowledged."""

import pytest

from protos.push.v1.push_pb2 import SendPush
from services.delivery.channels.sockets.fanout import BACKLOG_WINDOW
from services.delivery.channels.sockets.presence import TAKEOVER_MS
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import RECEIVED, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)


async def test_a_backlog_is_sent_in_windows_and_a_new_push_after_it(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((9, B))
        old = [push.msgid for push in await send_to_a(delivery, 2 * BACKLOG_WINDOW)]
        gateway.connect((1, A))
        await gateway.expect(*((1, msgid) for msgid in old[:BACKLOG_WINDOW]))
        new = await delivery.send()
        await gateway.wait_until(
            lambda: (9, new) in [(message.connection, message.msgid) for message in gateway.received]
        )
        gateway.acknowledge(*((msgid, A) for msgid in old[: BACKLOG_WINDOW // 2 - 1]))
        await run_ready_tasks()
        assert msgids_on(gateway, 1) == old[:BACKLOG_WINDOW]
        gateway.acknowledge((old[BACKLOG_WINDOW // 2 - 1], A))
        await gateway.wait_until(lambda: len(msgids_on(gateway, 1)) == BACKLOG_WINDOW + BACKLOG_WINDOW // 2)
        gateway.acknowledge(*((msgid, A) for msgid in msgids_on(gateway, 1)))
        await gateway.wait_until(lambda: len(msgids_on(gateway, 1)) == 2 * BACKLOG_WINDOW + 1)
        assert msgids_on(gateway, 1) == [*old, new]
        live = await delivery.send(A)
        await gateway.wait_until(lambda: msgids_on(gateway, 1) == [*old, new, live])


async def test_acknowledging_a_whole_window_at_once_sends_the_next_window(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        old = [push.msgid for push in await send_to_a(delivery, 3 * BACKLOG_WINDOW)]
        gateway.connect((1, A))
        await gateway.expect_backlog(1, A, old)


@pytest.mark.parametrize("end", ["expired", "cancelled"])
async def test_a_device_whose_backlog_was_dropped_because_it_ended_gets_what_follows(
    delivery: DeliveryHarness, end: str
) -> None:
    """A gateway drops what ends while the app is paused, so the device acknowledges nothing of it."""
    period_s = 60 if end == "expired" else 86_400
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        old = [await delivery.send(period_s=period_s) for _ in range(BACKLOG_WINDOW + 4)]
        gateway.connect((1, A))
        await gateway.wait_count(BACKLOG_WINDOW)
        if end == "cancelled":
            for msgid in old[: BACKLOG_WINDOW // 2]:
                await delivery.cancel(msgid)
        await delivery.advance(61, steps=61)
        live = await delivery.send(A)
        await delivery.advance(1)
        left = [] if end == "expired" else old[BACKLOG_WINDOW:]
        await gateway.expect(*((1, msgid) for msgid in [*old[:BACKLOG_WINDOW], *left, live]))


@pytest.mark.parametrize("end", ["sent", "disconnected"])
async def test_backlogs_that_have_ended_do_not_delay_the_look_for_messages_that_have(
    delivery: DeliveryHarness, end: str
) -> None:
    """Each sweep looks at some of the devices that are being sent their backlogs."""
    others = {number: NumberedDevice(0, number) for number in range(1, 401)}
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, *others.values())
        old = [await delivery.send() for _ in range(BACKLOG_WINDOW + 4)]
        gateway.connect(*((1000 + number, device) for number, device in others.items()))
        await gateway.wait_count(len(others) * BACKLOG_WINDOW)
        if end == "sent":
            gateway.acknowledge(*((msgid, device) for msgid in old[:BACKLOG_WINDOW] for device in others.values()))
            await gateway.wait_count(len(others) * len(old))
        else:
            gateway.request(disconnected=[1000 + number for number in others])
        gateway.connect((1, A))
        await gateway.wait_until(lambda: msgids_on(gateway, 1) == old[:BACKLOG_WINDOW])
        for msgid in old[: BACKLOG_WINDOW // 2]:
            await delivery.cancel(msgid)
        await delivery.advance(1)
        await run_ready_tasks()
        assert msgids_on(gateway, 1) == old


async def test_unacknowledged_messages_are_sent_again_after_a_reconnect_with_the_same_ids(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        old = [push.msgid for push in await send_to_a(delivery, BACKLOG_WINDOW + 4)]
        gateway.connect((1, A))
        await gateway.wait_until(lambda: len(gateway.received) == BACKLOG_WINDOW)
        gateway.acknowledge((old[1], A))
        gateway.request(disconnected=[1])
        gateway.connect((2, A))
        left = [old[0], *old[2:]]
        await gateway.wait_until(lambda: len(msgids_on(gateway, 2)) == BACKLOG_WINDOW)
        assert msgids_on(gateway, 2) == left[:BACKLOG_WINDOW]


async def test_a_message_cancelled_while_in_a_backlog_is_not_sent(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        old = [push.msgid for push in await send_to_a(delivery, BACKLOG_WINDOW + 3)]
        gateway.connect((1, A))
        await gateway.wait_until(lambda: len(gateway.received) == BACKLOG_WINDOW)
        await delivery.cancel(old[BACKLOG_WINDOW])
        gateway.acknowledge(*((msgid, A) for msgid in old[:BACKLOG_WINDOW]))
        await gateway.wait_until(lambda: len(gateway.received) == BACKLOG_WINDOW + 2)
        assert msgids_on(gateway, 1) == [*old[:BACKLOG_WINDOW], *old[BACKLOG_WINDOW + 1 :]]


@pytest.mark.parametrize("command_first", [True, False])
async def test_a_push_that_starts_while_the_device_connects_is_sent_once(
    delivery: DeliveryHarness, command_first: bool
) -> None:
    """In either order: the command before the connection, and the connection before the command."""
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        for connection in range(1, 40):
            push = delivery.push() if connection % 2 else delivery.push(A)
            if command_first:
                await delivery.command(push, wait_applied=False)
            gateway.connect((connection, A))
            await run_ready_tasks(connection)
            if not command_first:
                await delivery.command(push, wait_applied=False)
            await gateway.wait_until(lambda c=connection, m=push.msgid: m in msgids_on(gateway, c))  # type: ignore[misc]
            gateway.acknowledge((push.msgid, A))
            await delivery.recorder().wait_recorded()
            assert msgids_on(gateway, connection) == [push.msgid]


async def test_late_acknowledgements_of_the_older_gateway_prevent_a_resend(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as older, delivery.gateway() as newer:
        old = [push.msgid for push in await send_to_a(delivery, 2)]
        older.connect((1, A))
        await older.expect(*((1, msgid) for msgid in old))
        newer.connect((2, A))
        await older.wait_until(lambda: bool(older.closes))
        new = await delivery.send(A)
        assert newer.received == []
        older.acknowledge((old[0], A))
        older.request(disconnected=[1])
        await newer.expect((2, old[1]), (2, new))
        live = await delivery.send(A)
        await newer.expect((2, old[1]), (2, new), (2, live))


async def test_a_device_that_connects_once_more_still_waits_for_its_older_gateway(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as older, delivery.gateway() as newer:
        old = [push.msgid for push in await send_to_a(delivery, 2)]
        older.connect((1, A))
        await older.expect(*((1, msgid) for msgid in old))
        newer.connect((2, A))
        await older.wait_until(lambda: bool(older.closes))
        newer.request(disconnected=[2])
        newer.connect((3, A))
        new = await delivery.send(A)
        assert newer.received == []
        older.acknowledge((old[0], A))
        older.request(disconnected=[1])
        await newer.expect((3, old[1]), (3, new))


async def test_a_device_waits_for_its_older_gateway_until_that_ends_or_the_deadline(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as hanging, delivery.gateway() as newer:
        msgid = await delivery.send(A)
        hanging.connect((1, A))
        await hanging.expect((1, msgid))
        newer.connect((2, A))
        await hanging.wait_until(lambda: bool(hanging.closes))
        await delivery.advance(TAKEOVER_MS / 1000 - 0.5)
        assert newer.received == []
        await delivery.advance(1)
        await newer.expect((2, msgid))
        async with delivery.gateway() as last:
            last.connect((3, A))
            await last.wait_count(0)
            await newer.wait_until(lambda: bool(newer.closes))
            await newer.end()
            await last.expect((3, msgid))


async def test_a_device_that_changes_gateways_twice_is_sent_its_backlog_on_the_last_one(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as one, delivery.gateway() as two, delivery.gateway() as three:
        msgid = await delivery.send(A)
        one.connect((1, A))
        await one.expect((1, msgid))
        two.connect((2, A))
        await one.wait_until(lambda: bool(one.closes))
        three.connect((3, A))
        await two.wait_until(lambda: bool(two.closes))
        two.request(disconnected=[2])
        await run_ready_tasks()
        assert (two.received, three.received) == ([], [])
        one.request(disconnected=[1])
        await three.expect((3, msgid))
        assert two.received == []


async def test_a_report_is_confirmed_once_it_is_in_the_log(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send(A)
        gateway.acknowledge((msgid, A))
        gateway.request(sequence=41)
        await gateway.wait_until(lambda: any(response.recorded == 41 for response in gateway.responses))
        assert await delivery.outcomes(RECEIVED) == [OutcomeRow(msgid, A, RECEIVED)]
        gateway.acknowledge((msgid, A))
        gateway.request(sequence=42)
        await gateway.wait_until(lambda: any(response.recorded == 42 for response in gateway.responses))
        assert await delivery.outcomes(RECEIVED) == [OutcomeRow(msgid, A, RECEIVED)]


async def test_late_acknowledgements_of_cancelled_and_expired_pushes_count(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((1, A))
        cancelled, expired = await delivery.send(), await delivery.send(A, period_s=60)
        await gateway.expect((1, cancelled), (1, expired))
        await delivery.cancel(cancelled)
        await delivery.advance(61, steps=61)
        await delivery.wait_facts("finished", 1)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.acknowledge((cancelled, A), (expired, A), (expired, B))
        gateway.acknowledge((cancelled, A), (expired, A))
        gateway.request(sequence=1)
        await gateway.wait_until(lambda: any(response.recorded for response in gateway.responses))
        assert sorted(await delivery.outcomes(RECEIVED)) == [
            OutcomeRow(cancelled, A, RECEIVED),
            OutcomeRow(expired, A, RECEIVED),
        ]
    assert (await delivery.verify()).equal


async def send_to_a(delivery: DeliveryHarness, count: int) -> list[SendPush]:
    """Send so many pushes to device A alone."""
    pushes = [delivery.push(A) for _ in range(count)]
    await delivery.command(*pushes)
    return pushes


def msgids_on(gateway: GatewayClient, connection: int) -> list[int]:
    return [message.msgid for message in gateway.received if message.connection == connection]
