"""Acknowledgements and reports of devices: which of them delivery accepts and records."""

from testkit.delivery.records import (
    CLICKED,
    OTHER_APP,
    RECEIVED,
    SENT,
    SHOWN,
    NumberedDevice,
    OutcomeRow,
)
from testkit.delivery.role import DeliveryHarness
from testkit.waiting import run_ready_tasks

A, B, C = NumberedDevice(0, 0), NumberedDevice(1, 0), NumberedDevice(0, 1)


async def test_an_acknowledgement_counts_once_and_only_from_a_device_of_the_audience(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A)
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        msgid = await delivery.send()
        await delivery.register(C)
        await gateway.expect((1, msgid))
        gateway.acknowledge((msgid, A), (msgid, A), (msgid, B), (msgid, C), (msgid + 1, A))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        gateway.acknowledge((msgid, A))
        other = await delivery.send(A)
        gateway.acknowledge((other, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(other, A, RECEIVED))


async def test_reports_are_recorded_also_after_all_devices_acknowledged(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, C)
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send()
        gateway.report(SHOWN, (msgid, A), (msgid, NumberedDevice(0, 9)))
        gateway.report(SHOWN, (msgid, A), appkey=OTHER_APP)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SHOWN))
        gateway.acknowledge((msgid, A), (msgid, C))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, C, RECEIVED))
        gateway.report(CLICKED, (msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLICKED))


async def test_reports_on_a_listed_push_are_accepted_for_its_own_entries_only(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        first = await delivery.send(A, B, id_count=2)
        gateway.acknowledge((first, A))
        await delivery.expect_outcomes(OutcomeRow(first, A, RECEIVED))
        gateway.report(SHOWN, (first, A), (first + 1, A), (first, B), (first, C), (first + 1, B))
        await delivery.expect_outcomes(OutcomeRow(first, A, SHOWN), OutcomeRow(first + 1, B, SHOWN))


async def test_gateways_may_report_only_the_kinds_that_devices_report(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        msgid = await delivery.send(A)
        gateway.report(SENT, (msgid, A))
        gateway.report(99, (msgid, A))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        assert await delivery.outcomes() == [OutcomeRow(msgid, A, RECEIVED)]
