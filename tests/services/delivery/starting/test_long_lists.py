"""A long list beside other apps is sent in turns with rests between them."""

import pytest

from services.delivery import starting
from services.delivery.waiting_pushes import LONG_LIST
from testkit.delivery.records import OTHER_APP, PARTITIONS, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

DEVICES = [NumberedDevice(partition, 0) for partition in range(PARTITIONS)]
EACH = LONG_LIST // PARTITIONS + 20
"""Messages of the list to each device; those of one partition cost more than a turn."""


@pytest.fixture(autouse=True)
def endless_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_REST", 1e12)


async def test_each_push_of_another_app_ends_a_rest(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        other = DEVICES[0]
        await delivery.register(other, appkey=OTHER_APP)
        gateway.connect((0, other), appkey=OTHER_APP)
        gateway.connect(*enumerate(DEVICES, 1))
        await delivery.send(other, appkey=OTHER_APP)
        await gateway.wait_count(1)
        many = DEVICES * EACH
        await delivery.command(delivery.push(*many, id_count=len(many)), wait_applied=False)
        for turn in range(1, PARTITIONS + 1):
            await gateway.wait_count(turn * (EACH + 1))
            await run_ready_tasks()
            assert len(gateway.received) == turn * (EACH + 1)
            await delivery.command(delivery.push(other, appkey=OTHER_APP), wait_applied=False)
        await gateway.wait_count(PARTITIONS * (EACH + 1) + 1)
        await delivery.started()
    assert (await delivery.verify()).equal


async def test_the_list_of_an_app_that_is_alone_is_sent_without_a_rest(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect(*enumerate(DEVICES, 1))
        many = DEVICES * EACH
        await delivery.command(delivery.push(*many, id_count=len(many)))
        await gateway.wait_count(len(many))


async def test_a_short_list_is_sent_without_a_rest(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect(*enumerate(DEVICES, 1))
        await delivery.register(DEVICES[0], appkey=OTHER_APP)
        await delivery.send(DEVICES[0], appkey=OTHER_APP)
        many = (DEVICES * EACH)[:LONG_LIST]
        await delivery.command(delivery.push(*many, id_count=len(many)))
        await gateway.wait_count(len(many))
