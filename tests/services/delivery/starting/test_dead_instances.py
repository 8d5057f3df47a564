"""An instance of targeting that does not answer delays pushes in its own partitions alone."""

from protos.push.v1.push_pb2 import SendPush
from services.delivery.resolving import ORDER_WAIT_MS
from services.errors import BusyError
from services.net.rpc.local import LocalServer
from testkit.delivery.faulty_targeting import put_before
from testkit.delivery.records import NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks, until_holds
from tests.services.delivery.starting.test_held_up import stag_push

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)


def is_resolved_at_once(delivery: DeliveryHarness, push: SendPush) -> bool:
    """Say whether the instance that answers has resolved its part of a push that waits."""
    waiting = delivery.starter()._waiting.get(push.msgid)
    return waiting is not None and 0 in waiting.audiences


async def test_a_broadcast_reaches_the_partitions_whose_targeting_answers(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        await delivery.register(A, B)
    dead = LocalServer()
    delivery.further_targeting = [dead]
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        everyone = await delivery.send()
        unicast = await delivery.send(B)
        await gateway.expect((1, everyone), (2, unicast))
        assert await delivery.facts(everyone) == [("started", 0)]
        later = [await delivery.send(), await delivery.send()]
        await gateway.wait_count(4)
        assert {message.msgid for message in gateway.received[2:]} == set(later)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((3, A), (4, B))
        await gateway.wait_count(4)
        assert {(each.connection, each.msgid) for each in gateway.received} == {
            (4, unicast),
            *((3, msgid) for msgid in (everyone, *later)),
        }
        await delivery.cancel(everyone)
        assert await delivery.facts(everyone) == [("started", 0), ("cancelled", 0), ("cancelled", 1)]
    assert (await delivery.verify()).equal


async def test_a_push_that_another_instance_resolved_at_once_starts_there_when_it_is_held_up(
    delivery: DeliveryHarness,
) -> None:
    hung = LocalServer()
    put_before(hung).hanging.add("red")
    delivery.further_targeting = [hung]
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="red")
        gateway.connect((1, A))
        await run_ready_tasks()
        await delivery.command(push := stag_push(delivery, "red"), wait_applied=False)
        await until_holds(lambda: is_resolved_at_once(delivery, push))
        assert await delivery.facts(push.msgid) == []
        await delivery.advance(ORDER_WAIT_MS / 1000)
        later = await delivery.send(A)
        await gateway.expect((1, push.msgid), (1, later))
        assert await delivery.facts(push.msgid) == [("started", 0)]


async def test_a_push_that_is_held_up_passes_no_earlier_one_that_waits_its_turn(delivery: DeliveryHarness) -> None:
    """It is held up at once, because one instance is known not to answer; the other one resolves it before its turn."""
    hung = LocalServer()
    faulty = put_before(hung)
    faulty.hanging.add("slow")
    faulty.faults["busy"] = lambda: BusyError("full")
    delivery.further_targeting = [hung]
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, stag="red")
        gateway.connect((1, A))
        await run_ready_tasks()
        slow, busy, unicast, red = (
            stag_push(delivery, "slow"),
            stag_push(delivery, "busy"),
            delivery.push(A),
            stag_push(delivery, "red"),
        )
        await delivery.command(slow, busy, unicast, wait_applied=False)
        await until_holds(lambda: busy.msgid in delivery.starter()._held_up)
        await delivery.command(red, wait_applied=False)
        await until_holds(lambda: is_resolved_at_once(delivery, red))
        assert await delivery.facts(red.msgid) == []
        await delivery.advance(ORDER_WAIT_MS / 1000)
        await gateway.expect((1, unicast.msgid), (1, red.msgid))
