"""Commands: repeated and unreadable ones, and the causes of facts."""

from protos.push.v1.push_pb2 import CancelPush
from protos.runtime.v1.log_pb2 import Meta
from services.domain.topics import PUSH_COMMANDS, PUSHES, decode
from services.log.port import NewRecord, Partition
from testkit.delivery.records import RECEIVED, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A = NumberedDevice(0, 0)


async def test_a_command_that_is_in_the_log_twice_starts_one_push(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        push, concluded = delivery.push(A), delivery.push(A)
        await delivery.command(push, concluded, push)
        gateway.acknowledge((concluded.msgid, A))
        await delivery.expect_outcomes(OutcomeRow(concluded.msgid, A, RECEIVED))
        await delivery.command(push, concluded)
        marker = await delivery.send(A)
        await gateway.expect((1, push.msgid), (1, concluded.msgid), (1, marker))
    for snapshot in (delivery.read_snapshot(), None):
        delivery.write_snapshot(snapshot)
        async with delivery.running():
            await delivery.command(push, concluded)
            assert set((await delivery.start_counts()).values()) == {1}
    assert (await delivery.verify()).equal


async def test_an_unreadable_command_becomes_a_dead_letter_and_the_next_is_decided(delivery: DeliveryHarness) -> None:
    no_audience = delivery.push(A)
    no_audience.ClearField("audience")
    torn = delivery.push(A)
    torn.audience.devices.numbers = b"123"
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        await delivery.log.append([NewRecord(PUSH_COMMANDS.name, 0, b"", b"\xff\xff\xff")])
        await delivery.command(no_audience, torn)
        msgid = await delivery.send(A)
        await gateway.expect((1, msgid))
        dead_letters = (delivery.directory / "dead-letters" / "delivery.jsonl").read_text().splitlines()
        assert len(dead_letters) == 3
    assert (await delivery.verify()).equal


async def test_facts_name_the_command_that_caused_them(delivery: DeliveryHarness) -> None:
    async with delivery.running():
        (offset,) = await delivery.command(push := delivery.push(A))
        (cancelled_at,) = await delivery.command(CancelPush(msgid=push.msgid, appkey=push.appkey))
        causes = [(fact.meta.writer, fact.meta.cause.offset) for fact in await delivery.push_facts()]
        assert causes == [("delivery", offset), ("delivery", cancelled_at)]
        assert all(fact.meta != Meta() and len(fact.meta.event_id) == 16 for fact in await delivery.push_facts())
        (announcement,) = await delivery.records(Partition(PUSHES.name, 1))
        assert decode(announcement).WhichOneof("fact") is None
