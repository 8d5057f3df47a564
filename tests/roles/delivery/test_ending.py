"""How pushes end: cancelled, expired, or pushed out of a full mailbox; and how they go out at a speed."""

from protos.push.v1.push_pb2 import CancelPush
from services.delivery.android.rate_limiter import CATCH_UP_MS
from services.delivery.decide import MAILBOX_CAP, UNACKNOWLEDGED_CAP
from tests.roles.delivery.conftest import DROPPED, OTHER_APP, RECEIVED, SENT, At, House, Row, idle

A, B, C = At(0, 0), At(1, 0), At(0, 1)
CROWD = [At(number % 2, number // 2) for number in range(40)]


async def test_a_cancelled_push_reaches_nobody_who_has_not_got_it(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B)
        gateway.connect((1, A))
        await idle()
        broadcast = await house.send()
        listed = await house.send(A, B)
        await gateway.gets((1, broadcast), (1, listed))
        await house.cancel(broadcast)
        await house.cancel(listed)
        await house.cancel(listed)
        gateway.connect((2, B), (3, A))
        marker = await house.send(A, B)
        await gateway.gets((1, broadcast), (1, listed), (3, marker), (2, marker))
        assert await house.facts(listed) == [("started", 0), ("cancelled", 0), ("started", 1), ("cancelled", 1)]


async def test_a_push_that_is_cancelled_in_the_same_breath_is_never_sent(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A)
        gateway.connect((1, A))
        await idle()
        cancelled, kept = house.push(), house.push(A)
        await house.command(cancelled, CancelPush(msgid=cancelled.msgid, appkey=cancelled.appkey), kept)
        await gateway.gets((1, kept.msgid))
        assert ("cancelled", 0) in await house.facts(cancelled.msgid)


async def test_another_app_cannot_cancel_a_push_and_an_unknown_one_is_nothing(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        msgid = await house.send(A)
        await house.cancel(msgid, OTHER_APP)
        await house.cancel(123)
        gateway.connect((1, A))
        await gateway.gets((1, msgid))
        assert await house.facts(msgid) == [("started", 0)]


async def test_an_expired_push_ends_and_nobody_gets_it_any_more(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(A, B)
        broadcast = await house.send(period_s=60)
        listed = await house.send(A, period_s=60)
        longer = await house.send(A, period_s=61)
        house.clock.move(60)
        gateway.connect((1, A))
        await gateway.gets((1, longer))
        await house.until_facts("finished", 3)
        assert await house.facts(broadcast) == [("started", 0), ("finished", 0), ("started", 1), ("finished", 1)]
        assert await house.facts(listed) == [("started", 0), ("finished", 0)]
        gateway.connect((2, A), (3, B))
        await gateway.gets((1, longer), (2, longer))
        await house.move(10, steps=10)
        await house.until_facts("finished", 4)
        await house.move(10, steps=10)
        assert len([fact for fact in await house.push_facts() if fact.WhichOneof("fact") == "finished"]) == 4
    assert (await house.verify()).equal


async def test_a_push_that_expires_while_the_process_is_down_ends_at_the_start(house: House) -> None:
    async with house.running():
        msgid = await house.send(A, period_s=60)
    house.clock.move(3600)
    async with house.running(), house.gateway() as gateway:
        await house.until_facts("finished", 1)
        gateway.connect((1, A))
        marker = await house.send(A)
        await gateway.gets((1, marker))
        assert await house.facts(msgid) == [("started", 0), ("finished", 0)]


async def test_a_push_that_expired_before_it_could_start_starts_and_ends_without_being_sent(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        late = house.push(A, period_s=0)
        await house.command(late)
        marker = await house.send(A)
        await gateway.gets((1, marker))
        await house.move(1)
        await house.until_facts("finished", 1)
        assert await house.facts(late.msgid) == [("started", 0), ("finished", 0)]


async def test_a_full_mailbox_gives_up_the_oldest_and_says_so(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        pushes = [house.push(A) for _ in range(MAILBOX_CAP + 2)]
        await house.command(*pushes)
        last = await house.send(A)
        dropped, kept = pushes[:3], pushes[3:]
        await house.recorded(*(Row(push.msgid, A, DROPPED, "mailbox full") for push in dropped))
        gateway.connect((1, A))
        await gateway.drains((1, A), [push.msgid for push in kept] + [last])
        assert len(await house.outcomes(DROPPED)) == 3
    assert (await house.verify()).equal


async def test_a_connected_device_may_have_more_on_its_way(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A))
        await idle()
        pushes = [house.push(A) for _ in range(UNACKNOWLEDGED_CAP)]
        await house.command(*pushes)
        await gateway.gets(*((1, push.msgid) for push in pushes))
        assert await house.outcomes(DROPPED) == []
        await house.send(A)
        await house.recorded(Row(pushes[0].msgid, A, DROPPED, "mailbox full"))


async def test_a_paced_push_goes_out_at_its_speed(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await idle()
        await house.send(qps=10)
        for seconds in range(4):
            await gateway.gets_at_least(1 + 10 * seconds)
            await idle()
            assert len(gateway.got) == 1 + 10 * seconds
            await house.move(1, steps=50)
        await gateway.until(lambda: len(gateway.got) == 40)
        assert len(set(gateway.got)) == 40


async def test_a_pace_that_could_not_be_kept_is_not_made_up_for_in_a_burst(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await idle()
        await house.send(qps=10)
        await gateway.gets_at_least(1)
        await house.move(2)
        await house.move(0)
        assert len(gateway.got) == 1 + 10 * CATCH_UP_MS // 1000 + 1
        await house.move(1, steps=50)
        assert len(gateway.got) == 1 + 10 * CATCH_UP_MS // 1000 + 1 + 10


async def test_who_connects_while_a_paced_push_is_in_progress_gets_in_line_and_is_served_once(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD[:10])))
        await idle()
        msgid = await house.send(qps=1)
        await gateway.until(lambda: len(gateway.got) == 1)
        gateway.connect((200, CROWD[20]), (109, CROWD[9]), (209, CROWD[9]))
        await idle()
        assert len(gateway.got) == 1
        await house.move(9, steps=90)
        await gateway.until(lambda: len(gateway.got) == 10)
        await house.move(60, steps=60)
        assert {got.connection for got in gateway.got} == {*range(100, 109), 200, 209}
        assert len(gateway.got) == 11
        assert {got.msgid for got in gateway.got} == {msgid}


async def test_a_reconnect_storm_does_not_hasten_a_paced_push(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        await house.send(qps=10)
        for n, at in enumerate(CROWD):
            gateway.connect((100 + n, at))
            await idle()
        assert len(gateway.got) == 1
        await house.move(2, steps=100)
        assert len(gateway.got) == 21


async def test_the_speed_is_the_pushs_over_all_partitions_and_gateways(house: House) -> None:
    async with house.running(), house.gateway() as one, house.gateway() as other:
        crowd = [At(number % 2, number // 2) for number in range(400)]
        await house.register(*crowd)
        one.connect(*((1000 + n, at) for n, at in enumerate(crowd[:300])))
        other.connect(*((2000 + n, at) for n, at in enumerate(crowd[300:])))
        await idle()
        await house.send(qps=30)
        for _ in range(3):
            before = len(one.got) + len(other.got)
            await house.move(4, steps=133)
            assert len(one.got) + len(other.got) - before in (119, 120, 121)


async def test_a_slow_broadcast_delays_no_unicast_and_no_other_push(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await idle()
        slow = await house.send(qps=1)
        await gateway.gets_at_least(1)
        unicast = await house.send(CROWD[39])
        fast = await house.send()
        await gateway.gets_at_least(2 + len(CROWD))
        assert [got.msgid for got in gateway.got[:2]] == [slow, unicast]
        assert {got.msgid for got in gateway.got[2:]} == {fast}


async def test_devices_that_are_away_take_nothing_of_a_paced_pushs_speed(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        online = [CROWD[0], CROWD[4], CROWD[8], CROWD[19], CROWD[38]]
        gateway.connect(*((100 + n, at) for n, at in enumerate(online)))
        await idle()
        await house.send(qps=1)
        await gateway.gets_at_least(1)
        gateway.say(disconnected=[101, 102])
        await idle()
        await house.move(2, steps=10)
        await gateway.gets_at_least(3)
        assert sorted(got.connection for got in gateway.got) == [100, 103, 104]


async def test_a_paced_push_stops_when_it_is_cancelled_or_expires(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect(*((100 + n, at) for n, at in enumerate(CROWD)))
        await idle()
        cancelled = await house.send(qps=1)
        expiring = await house.send(qps=1, period_s=5)
        await house.move(3, steps=15)
        await gateway.until(lambda: len(gateway.got) == 8)
        await house.cancel(cancelled)
        await house.move(60, steps=60)
        marker = await house.send(A)
        await gateway.until(lambda: gateway.got[-1].msgid == marker)
        assert len([got for got in gateway.got if got.msgid == cancelled]) == 4
        assert len([got for got in gateway.got if got.msgid == expiring]) == 5


async def test_a_paced_list_goes_out_at_its_speed_each_entry_with_its_id(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await idle()
        first = await house.send(A, B, id_count=2, qps=1)
        await gateway.until(lambda: len(gateway.got) == 1)
        await house.move(1)
        await gateway.gets((1, first), (2, first + 1))
        await house.recorded(Row(first, A, SENT), Row(first + 1, B, SENT))
        gateway.ack((first, A), (first + 1, B))
        await house.recorded(Row(first, A, RECEIVED), Row(first + 1, B, RECEIVED))


async def test_what_a_paced_push_had_not_sent_at_the_stop_is_there_after_the_next_start(house: House) -> None:
    async with house.running(), house.gateway() as gateway:
        await house.register(*CROWD)
        gateway.connect((1, CROWD[0]), (2, CROWD[2]))
        await idle()
        msgid = await house.send(qps=1)
        await gateway.gets((1, msgid))
    async with house.running(), house.gateway() as gateway:
        gateway.connect((3, CROWD[2]))
        await gateway.gets((3, msgid))
