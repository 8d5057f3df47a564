"""Messages to connected devices over a gateway's stream: to which devices, how often and in which order."""

from pathlib import Path

import pytest

from services.net.rpc.channel import connect
from services.net.rpc.server import serve
from testkit.delivery.records import (
    APP,
    OTHER_APP,
    RECEIVED,
    SENT,
    NumberedDevice,
    OutcomeRow,
    stag_audience,
)
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)


async def test_a_broadcast_is_sent_to_all_connected_devices_and_ends_when_all_acknowledged(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B, C)
        gateway.connect((1, A), (2, B), (3, C))
        await run_ready_tasks()
        msgid = await delivery.send()

        await gateway.expect((1, msgid), (3, msgid), (2, msgid))
        assert await delivery.facts(msgid) == [("started", 0), ("started", 1)]
        gateway.acknowledge((msgid, A), (msgid, B), (msgid, C))
        await delivery.expect_outcomes(
            OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, B, RECEIVED), OutcomeRow(msgid, C, RECEIVED)
        )
        assert sorted(await delivery.outcomes(SENT)) == sorted(OutcomeRow(msgid, at, SENT) for at in (A, B, C))

        gateway.connect((11, A), (12, B))
        last = await delivery.send(A, B)
        await gateway.wait_until(lambda: len(gateway.received) == 5)
        assert [message.msgid for message in gateway.received[3:]] == [last, last]


async def test_an_empty_audience_is_written_too(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A, stag="news")
        msgid = await delivery.send(audience=stag_audience("news"))
        unmatched = await delivery.send(audience=stag_audience("sports"))
        facts = [fact for fact in await delivery.push_facts() if fact.msgid in (msgid, unmatched)]
        assert [(fact.msgid, fact.partition, fact.started.count) for fact in facts] == [
            (msgid, 0, 1),
            (unmatched, 0, 0),
            (msgid, 1, 0),
            (unmatched, 1, 0),
        ]
        assert all(fact.meta.cause.topic == "push-commands" for fact in facts)


async def test_a_device_registered_after_a_broadcast_started_never_gets_it(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        missed = await delivery.send()
        await delivery.register(C)
        gateway.connect((1, C), (2, A))
        got = await delivery.send()
        await gateway.wait_until(lambda: len(gateway.received) == 3)
        assert {(message.connection, message.msgid) for message in gateway.received} == {
            (2, missed),
            (1, got),
            (2, got),
        }


async def test_backlogs_are_in_the_order_of_the_log_and_share_messages_between_devices(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        first = await delivery.send()
        second = await delivery.send(A)
        third = await delivery.send(audience=stag_audience("none"))
        fourth = await delivery.send()
        gateway.connect((1, A), (2, B))
        await gateway.expect((1, first), (2, first), (1, second), (1, fourth), (2, fourth))
        (response,) = gateway.responses
        assert len(response.sends) == 3
        assert third not in {message.msgid for message in gateway.received}


async def test_a_message_is_sent_once_per_connection_and_again_after_a_reconnect(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        msgid = await delivery.send()
        gateway.connect((1, A))
        gateway.connect((1, A))
        await gateway.expect((1, msgid))
        gateway.connect((2, A))
        marker = await delivery.send(A)
        await gateway.expect((1, msgid), (2, msgid), (2, marker))
        assert [(close.connection, close.reason) for close in gateway.closes] == [(1, "replaced")]
        gateway.acknowledge((msgid, A), (marker, A))
        gateway.connect((3, A))
        last = await delivery.send(A)
        await gateway.expect((1, msgid), (2, msgid), (2, marker), (3, last))


@pytest.mark.parametrize(("ahead_ms", "reason"), [(60_000, "replaced"), (1, "draining")])
async def test_an_older_connection_announced_late_is_closed_and_its_end_changes_nothing(
    delivery: DeliveryHarness, ahead_ms: int, reason: str
) -> None:
    """The closed device may reconnect (draining) where the gateways' clocks may have swapped the order."""
    newer = 4 + (ahead_ms << 20)
    async with delivery.running(), delivery.gateway() as one, delivery.gateway() as other:
        other.connect((newer, A))
        await run_ready_tasks()
        one.connect((4, A))
        await one.wait_until(lambda: bool(one.closes))
        one.request(disconnected=[4])
        one.request(disconnected=[newer])
        await run_ready_tasks()
        msgid = await delivery.send(A)
        await other.expect((newer, msgid))
        assert [(close.connection, close.reason) for close in one.closes] == [(4, reason)]
        assert (one.received, other.closes) == ([], [])


async def test_a_device_connected_to_two_gateways_is_sent_messages_on_the_later_one(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as one, delivery.gateway() as other:
        one.connect((1, A))
        await run_ready_tasks()
        other.connect((2, A))
        await one.wait_until(lambda: bool(one.closes))
        one.request(disconnected=[1])
        await run_ready_tasks()
        msgid = await delivery.send(A)
        await other.expect((2, msgid))
        assert one.received == []


async def test_connections_announced_again_on_a_new_stream_are_sent_their_backlog(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        await delivery.register(A)
        async with delivery.gateway() as gateway:
            gateway.connect((1, A))
            await run_ready_tasks()
            first = await delivery.send(A)
            await gateway.expect((1, first))
            await gateway.end()
        second = await delivery.send(A)
        await delivery.recorder().flush()
        assert await delivery.outcomes(SENT) == [OutcomeRow(first, A, SENT)]
        async with delivery.gateway() as gateway:
            gateway.connect((1, A))
            await gateway.expect((1, first), (1, second))


async def test_the_end_of_a_stream_leaves_connections_that_a_newer_one_announced(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as old, delivery.gateway() as new:
        old.connect((1, A))
        await run_ready_tasks()
        new.connect((1, A))
        await run_ready_tasks()
        await old.end()
        msgid = await delivery.send(A)
        await new.expect((1, msgid))
        assert (old.received, old.closes, new.closes) == ([], [], [])


async def test_each_entry_of_a_token_list_has_its_own_id_also_when_a_token_repeats(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        first = await delivery.send(A, B, A, id_count=3)
        await gateway.wait_until(lambda: len(gateway.received) == 3)
        assert {(message.connection, message.msgid) for message in gateway.received} == {
            (1, first),
            (2, first + 1),
            (1, first + 2),
        }
        gateway.acknowledge((first + 2, A), (first, B), (first + 1, B))
        await delivery.expect_outcomes(OutcomeRow(first + 2, A, RECEIVED), OutcomeRow(first + 1, B, RECEIVED))
        gateway.connect((3, A), (4, B))
        await gateway.wait_until(lambda: len(gateway.received) == 4)
        assert (gateway.received[3].connection, gateway.received[3].msgid) == (3, first)


async def test_the_devices_of_an_alias_share_one_id(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (3, C))
        await run_ready_tasks()
        msgid = await delivery.send(A, C, B)
        await gateway.expect((1, msgid), (3, msgid))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        gateway.connect((4, C), (5, B), (6, A))
        await gateway.wait_until(lambda: len(gateway.received) == 4)
        assert {(message.connection, message.msgid) for message in gateway.received[2:]} == {(4, msgid), (5, msgid)}


async def test_apps_do_not_see_each_others_pushes(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        await delivery.register(A, appkey=OTHER_APP)
        gateway.connect((1, A))
        gateway.connect((2, A), appkey=OTHER_APP)
        await run_ready_tasks()
        mine = await delivery.send()
        other = await delivery.send(appkey=OTHER_APP)
        await gateway.expect((1, mine), (2, other))
        gateway.report(RECEIVED, (mine, A), appkey=OTHER_APP)
        gateway.report(RECEIVED, (other, A), (mine, A), appkey=APP)
        await delivery.expect_outcomes(OutcomeRow(mine, A, RECEIVED))


async def test_attach_works_over_a_real_socket(delivery: DeliveryHarness, tmp_path: Path) -> None:
    async with delivery.running():
        server = serve([f"unix:{tmp_path}/d.sock"])
        delivery.role.servicers[0](server)
        await server.start()
        channel = connect(f"unix:{tmp_path}/d.sock")
        try:
            async with delivery.gateway(channel) as gateway:
                waiting = await delivery.send(A)
                gateway.connect((1, A))
                await gateway.expect((1, waiting))
                msgid = await delivery.send(A)
                await gateway.expect((1, waiting), (1, msgid))
                gateway.acknowledge((waiting, A), (msgid, A))
                await delivery.expect_outcomes(OutcomeRow(waiting, A, RECEIVED), OutcomeRow(msgid, A, RECEIVED))
                assert gateway.received[1].content == f"message {msgid}"
            msgid = await delivery.send(A)
            async with delivery.gateway(channel) as gateway:
                gateway.connect((1, A))
                await gateway.expect((1, msgid))
        finally:
            await channel.close()
            await server.stop(grace=None)
