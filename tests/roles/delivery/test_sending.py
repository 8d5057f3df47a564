"""What reaches devices, once and in which order, through a gateway's stream."""

from pathlib import Path

import pytest

from services.runtime.rpc import transport as rpc
from tests.roles.delivery.conftest import (
    APP,
    CLICKED,
    OTHER_APP,
    RECEIVED,
    SENT,
    SHOWN,
    At,
    House,
    Row,
    idle,
    with_stag,
)

A, B, C = At(0, 0), At(1, 0), At(0, 1)


async def test_a_broadcast_goes_to_connected_devices_as_one_message_and_is_done_when_all_have_it(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B, C)
        gateway.connect((1, A), (2, B), (3, C))
        await idle()
        msgid = await house.send()

        await gateway.gets((1, msgid), (3, msgid), (2, msgid))
        assert await house.facts(msgid) == [("started", 0), ("started", 1)]
        gateway.ack((msgid, A), (msgid, B), (msgid, C))
        await house.recorded(Row(msgid, A, RECEIVED), Row(msgid, B, RECEIVED), Row(msgid, C, RECEIVED))
        assert sorted(await house.outcomes(SENT)) == sorted(Row(msgid, at, SENT) for at in (A, B, C))

        gateway.connect((11, A), (12, B))
        last = await house.send(A, B)
        await gateway.until(lambda: len(gateway.got) == 5)
        assert [got.msgid for got in gateway.got[3:]] == [last, last]


async def test_a_broadcast_fixes_an_empty_audience_too_and_lets_it_go(house: House) -> None:
    async with house.running():
        await house.register(A, stag="news")
        msgid = await house.send(audience=with_stag("news"))
        nobody = await house.send(audience=with_stag("sports"))
        facts = [fact for fact in await house.push_facts() if fact.msgid in (msgid, nobody)]
        assert [(fact.msgid, fact.partition, fact.started.count) for fact in facts] == [
            (msgid, 0, 1),
            (nobody, 0, 0),
            (msgid, 1, 0),
            (nobody, 1, 0),
        ]
        assert all(fact.meta.cause.topic == "push-commands" for fact in facts)


async def test_who_registers_after_a_broadcast_started_never_gets_it(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        missed = await house.send()
        await house.register(C)
        gateway.connect((1, C), (2, A))
        got = await house.send()
        await gateway.until(lambda: len(gateway.got) == 3)
        assert {(g.connection, g.msgid) for g in gateway.got} == {(2, missed), (1, got), (2, got)}


async def test_the_backlog_comes_in_the_order_of_the_log_and_devices_together_share_messages(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B)
        first = await house.send()
        second = await house.send(A)
        third = await house.send(audience=with_stag("none"))
        fourth = await house.send()
        gateway.connect((1, A), (2, B))
        await gateway.gets((1, first), (2, first), (1, second), (1, fourth), (2, fourth))
        (response,) = gateway.responses
        assert len(response.sends) == 3
        assert third not in {got.msgid for got in gateway.got}


async def test_within_one_connection_a_message_is_sent_once_and_again_after_a_reconnect(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        msgid = await house.send()
        gateway.connect((1, A))
        gateway.connect((1, A))
        await gateway.gets((1, msgid))
        gateway.connect((2, A))
        marker = await house.send(A)
        await gateway.gets((1, msgid), (2, msgid), (2, marker))
        assert [(close.connection, close.reason) for close in gateway.closes] == [(1, "replaced")]
        gateway.ack((msgid, A), (marker, A))
        gateway.connect((3, A))
        last = await house.send(A)
        await gateway.gets((1, msgid), (2, msgid), (2, marker), (3, last))


@pytest.mark.parametrize(("ahead_ms", "reason"), [(60_000, "replaced"), (1, "draining")])
async def test_an_older_connection_that_comes_late_loses_and_a_stale_goodbye_changes_nothing(
    house: House, ahead_ms: int, reason: str
) -> None:
    """Where the gateways' clocks may have changed places, the one that loses may come again."""
    newer = 4 + (ahead_ms << 20)
    async with house.running(), house.gateway() as one, house.gateway() as other:
        other.connect((newer, A))
        await idle()
        one.connect((4, A))
        await one.until(lambda: bool(one.closes))
        one.say(disconnected=[4])
        one.say(disconnected=[newer])
        await idle()
        msgid = await house.send(A)
        await other.gets((newer, msgid))
        assert [(close.connection, close.reason) for close in one.closes] == [(4, reason)]
        assert (one.got, other.closes) == ([], [])


async def test_a_device_on_two_gateways_is_on_the_later_one_only(house: House) -> None:
    async with house.running(), house.gateway() as one, house.gateway() as other:
        one.connect((1, A))
        await idle()
        other.connect((2, A))
        await one.until(lambda: bool(one.closes))
        one.say(disconnected=[1])
        await idle()
        msgid = await house.send(A)
        await other.gets((2, msgid))
        assert one.got == []


async def test_a_stream_that_ends_loses_nothing_and_the_same_connections_come_back_on_the_next(house: House) -> None:
    async with house.running():
        await house.register(A)
        async with house.gateway() as gateway:
            gateway.connect((1, A))
            await idle()
            first = await house.send(A)
            await gateway.gets((1, first))
            await gateway.leave()
        second = await house.send(A)
        await house.recorder().flush()
        assert await house.outcomes(SENT) == [Row(first, A, SENT)]
        async with house.gateway() as gateway:
            gateway.connect((1, A))
            await gateway.gets((1, first), (1, second))


async def test_a_new_stream_that_takes_connections_over_is_not_hurt_by_the_old_ones_end(house: House) -> None:
    async with house.running(), house.gateway() as old, house.gateway() as new:
        old.connect((1, A))
        await idle()
        new.connect((1, A))
        await idle()
        await old.leave()
        msgid = await house.send(A)
        await new.gets((1, msgid))
        assert (old.got, old.closes, new.closes) == ([], [], [])


async def test_each_entry_of_a_token_list_has_its_own_id_also_when_a_token_repeats(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await idle()
        first = await house.send(A, B, A, id_count=3)
        await gateway.until(lambda: len(gateway.got) == 3)
        assert {(g.connection, g.msgid) for g in gateway.got} == {(1, first), (2, first + 1), (1, first + 2)}
        gateway.ack((first + 2, A), (first, B), (first + 1, B))
        await house.recorded(Row(first + 2, A, RECEIVED), Row(first + 1, B, RECEIVED))
        gateway.connect((3, A), (4, B))
        await gateway.until(lambda: len(gateway.got) == 4)
        assert (gateway.got[3].connection, gateway.got[3].msgid) == (3, first)


async def test_the_devices_of_an_alias_share_one_id(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A), (3, C))
        await idle()
        msgid = await house.send(A, C, B)
        await gateway.gets((1, msgid), (3, msgid))
        gateway.ack((msgid, A))
        await house.recorded(Row(msgid, A, RECEIVED))
        gateway.connect((4, C), (5, B), (6, A))
        await gateway.until(lambda: len(gateway.got) == 4)
        assert {(g.connection, g.msgid) for g in gateway.got[2:]} == {(4, msgid), (5, msgid)}


async def test_an_acknowledgement_counts_once_and_only_from_whom_the_push_was_for(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        gateway.connect((1, A), (2, B))
        await idle()
        msgid = await house.send()
        await house.register(C)
        await gateway.gets((1, msgid))
        gateway.ack((msgid, A), (msgid, A), (msgid, B), (msgid, C), (msgid + 1, A))
        gateway.ack((msgid, A))
        await house.recorded(Row(msgid, A, RECEIVED))
        gateway.ack((msgid, A))
        other = await house.send(A)
        gateway.ack((other, A))
        await house.recorded(Row(msgid, A, RECEIVED), Row(other, A, RECEIVED))


async def test_what_devices_did_with_a_message_is_recorded_also_after_everyone_has_it(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, C)
        gateway.connect((1, A))
        await idle()
        msgid = await house.send()
        gateway.report(SHOWN, (msgid, A), (msgid, At(0, 9)))
        gateway.report(SHOWN, (msgid, A), appkey=OTHER_APP)
        await house.recorded(Row(msgid, A, SHOWN))
        gateway.ack((msgid, A), (msgid, C))
        await house.recorded(Row(msgid, A, RECEIVED), Row(msgid, C, RECEIVED))
        gateway.report(CLICKED, (msgid, A))
        await house.recorded(Row(msgid, A, CLICKED))


async def test_a_listed_push_believes_reports_of_its_own_entries_only(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        first = await house.send(A, B, id_count=2)
        gateway.ack((first, A))
        await house.recorded(Row(first, A, RECEIVED))
        gateway.report(SHOWN, (first, A), (first + 1, A), (first, B), (first, C), (first + 1, B))
        await house.recorded(Row(first, A, SHOWN), Row(first + 1, B, SHOWN))


async def test_a_gateway_may_report_what_devices_do_and_nothing_else(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        msgid = await house.send(A)
        gateway.report(SENT, (msgid, A))
        gateway.report(99, (msgid, A))
        gateway.ack((msgid, A))
        await house.recorded(Row(msgid, A, RECEIVED))
        assert await house.outcomes() == [Row(msgid, A, RECEIVED)]


async def test_an_app_does_not_see_another_ones_push(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        await house.register(A, appkey=OTHER_APP)
        gateway.connect((1, A))
        gateway.connect((2, A), appkey=OTHER_APP)
        await idle()
        mine = await house.send()
        other = await house.send(appkey=OTHER_APP)
        await gateway.gets((1, mine), (2, other))
        gateway.report(RECEIVED, (mine, A), appkey=OTHER_APP)
        gateway.report(RECEIVED, (other, A), (mine, A), appkey=APP)
        await house.recorded(Row(mine, A, RECEIVED))


async def test_over_a_real_socket(house: House, tmp_path: Path) -> None:
    async with house.running():
        server = rpc.serve([f"unix:{tmp_path}/d.sock"])
        house.role.servicers[0](server)
        await server.start()
        channel = rpc.connect(f"unix:{tmp_path}/d.sock")
        try:
            async with house.gateway(channel) as gateway:
                waiting = await house.send(A)
                gateway.connect((1, A))
                await gateway.gets((1, waiting))
                msgid = await house.send(A)
                await gateway.gets((1, waiting), (1, msgid))
                gateway.ack((waiting, A), (msgid, A))
                await house.recorded(Row(waiting, A, RECEIVED), Row(msgid, A, RECEIVED))
                assert gateway.got[1].content == f"message {msgid}"
            msgid = await house.send(A)
            async with house.gateway(channel) as gateway:
                gateway.connect((1, A))
                await gateway.gets((1, msgid))
        finally:
            await channel.close()
            await server.stop(grace=None)
