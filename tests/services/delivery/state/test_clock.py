"""Delivery's clock is set back between a push and its outcomes: the order of the log decides, not the times in it."""

import pytest

from testkit.delivery.records import RECEIVED, NumberedDevice, OutcomeRow
from testkit.delivery.role import DeliveryHarness

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)


@pytest.mark.parametrize("from_nothing", [False, True], ids=["snapshot", "no snapshot"])
async def test_what_was_received_on_a_clock_that_was_set_back_is_not_sent_again(
    delivery: DeliveryHarness, from_nothing: bool
) -> None:
    async with delivery.running():
        await delivery.register(A, B)
    before = delivery.read_snapshot()
    async with delivery.running():
        await delivery.advance(30)
        everyone, listed = await delivery.send(), await delivery.send(A, B)
    delivery.clock.move(-60)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await gateway.expect((1, everyone), (1, listed))
        gateway.acknowledge((everyone, A), (listed, A))
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RECEIVED) for msgid in (everyone, listed)))
    delivery.write_snapshot(None if from_nothing else before)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((2, A), (3, B))
        await gateway.expect((3, everyone), (3, listed))
        marker = await delivery.send(A)
        await gateway.expect((3, everyone), (3, listed), (2, marker))
    assert (await delivery.verify()).equal
