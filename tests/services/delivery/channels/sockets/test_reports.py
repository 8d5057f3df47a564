"""Acknowledgements and reports of devices: which of them delivery accepts and records."""

import asyncio
import contextlib
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import RecordReportsRequest, Reports
from protos.delivery.v1.delivery_pb2_grpc import ReportsServiceStub
from services.delivery.channels.sockets.reports import ReportIntake
from services.delivery.state import sent_messages, serialization
from services.domain.topics import DELIVERIES
from services.errors import CarillonError, InputError
from services.process.metrics import REPORTS_REFUSED
from testkit.delivery.gateway import report_columns
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
from testkit.faults.crashing_log import KilledError
from testkit.services import TIMEOUT_S
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
        gateway.connect((1, A), (2, C))
        await run_ready_tasks()
        msgid = await delivery.send()
        gateway.report(SHOWN, (msgid, A), (msgid, NumberedDevice(0, 9)))
        gateway.report(SHOWN, (msgid, A), appkey=OTHER_APP)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SHOWN))
        gateway.acknowledge((msgid, A), (msgid, C))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED), OutcomeRow(msgid, C, RECEIVED))
        gateway.report(CLICKED, (msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLICKED))


async def test_reports_over_http_are_in_the_log_when_they_are_answered(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, C)
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send()
        await gateway.expect((1, msgid))
        reports = ReportsServiceStub(delivery.server.channel())
        by_kind = [report_columns(kind, [(msgid, A), (msgid, C)]) for kind in (RECEIVED, SHOWN, CLICKED)]
        forged = report_columns(CLICKED, [(msgid, A)], appkey=OTHER_APP)
        for _ in range(2):
            await reports.RecordReports(RecordReportsRequest(reports=[*by_kind, forged]))
            found = [OutcomeRow(msgid, A, kind) for kind in (RECEIVED, SHOWN, CLICKED)]
            assert await delivery.outcomes(RECEIVED, SHOWN, CLICKED) == found
        with pytest.raises(InputError, match="unequal length"):
            await reports.RecordReports(RecordReportsRequest(reports=[Reports(kinds=bytes([RECEIVED]))]))


async def test_reports_on_a_listed_push_are_accepted_for_its_own_entries_only(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        first = await delivery.send(A, B, id_count=2)
        gateway.acknowledge((first, A))
        await delivery.expect_outcomes(OutcomeRow(first, A, RECEIVED))
        gateway.report(SHOWN, (first, A), (first + 1, A), (first, B), (first, C), (first + 1, B))
        await delivery.expect_outcomes(OutcomeRow(first, A, SHOWN), OutcomeRow(first + 1, B, SHOWN))


async def test_invented_message_ids_leave_nothing_behind(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send()
        await gateway.expect((1, msgid))
        gateway.acknowledge((msgid, A))
        gateway.request(sequence=1)
        await gateway.wait_until(lambda: gateway.responses[-1].recorded == 1)
        refused = refused_reports("report"), refused_reports("acknowledgement")
        state = serialization.digest(delivery.store().state)
        written = await delivery.outcomes()
        invented = [delivery.ids.take() for _ in range(100)]
        for kind in (SHOWN, CLICKED, RECEIVED):
            gateway.report(kind, *((each, A) for each in invented))
        gateway.report(SHOWN, (msgid, A), appkey=OTHER_APP)
        gateway.report(SHOWN, (msgid, B), (msgid, C))
        gateway.request(sequence=2)
        await gateway.wait_until(lambda: gateway.responses[-1].recorded == 2)
        assert await delivery.outcomes() == written
        assert serialization.digest(delivery.store().state) == state
        assert (refused_reports("report"), refused_reports("acknowledgement")) == (refused[0] + 203, refused[1] + 100)


async def test_a_message_that_waits_to_be_sent_can_be_neither_acknowledged_nor_reported(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((1, A), (2, B))
        await run_ready_tasks()
        msgid = await delivery.send(qps=1)
        await gateway.wait_count(1)
        is_first = gateway.received[0].connection == 1
        unsent, device = (2, B) if is_first else (1, A)
        gateway.report(SHOWN, (msgid, device))
        gateway.acknowledge((msgid, device))
        gateway.request(sequence=1)
        await gateway.wait_until(lambda: gateway.responses[-1].recorded == 1)
        assert await delivery.outcomes(SHOWN, RECEIVED) == []
        await delivery.advance(2, steps=20)
        await gateway.wait_count(2)
        assert gateway.received[1].connection == unsent
        gateway.acknowledge((msgid, device))
        await delivery.expect_outcomes(OutcomeRow(msgid, device, RECEIVED))


async def test_each_kind_of_report_counts_once(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send(A)
        gateway.report(SHOWN, *[(msgid, A)] * 50)
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SHOWN))
        gateway.report(SHOWN, (msgid, A))
        gateway.report(CLICKED, (msgid, A), (msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SHOWN), OutcomeRow(msgid, A, CLICKED))
        assert await delivery.outcomes(SHOWN, CLICKED) == [
            OutcomeRow(msgid, A, SHOWN),
            OutcomeRow(msgid, A, CLICKED),
        ]


async def test_a_click_counts_once_long_after_the_push_has_ended_also_after_restarts(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, B)
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send(period_s=60)
        await gateway.wait_count(1)
        await delivery.advance(70)
        await delivery.wait_facts("finished", 1)
    delivery.clock.move(30 * 86_400)
    async with delivery.running(), delivery.gateway() as gateway:
        other = await delivery.send(C)
        assert delivery.store().state.push_of(msgid) is None
        gateway.report(CLICKED, (msgid, A), (msgid, B), (other, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLICKED))
    delivery.write_snapshot(None)
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.report(CLICKED, (msgid, A), (msgid, B))
        gateway.report(SHOWN, (msgid, A), (msgid, B))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, CLICKED), OutcomeRow(msgid, A, SHOWN))
    assert (await delivery.verify()).equal


async def test_an_acknowledgement_counts_after_a_kill_that_lost_the_record_of_the_sending(
    delivery: DeliveryHarness,
) -> None:
    with contextlib.suppress(KilledError):
        async with delivery.running(), delivery.gateway() as gateway:
            await delivery.register(A)
            gateway.connect((1, A))
            await run_ready_tasks()
            delivery.log.kill_at = lambda new_record: new_record.topic == DELIVERIES.name
            msgid = await delivery.send()
            await gateway.wait_count(1)
            await asyncio.wait_for(delivery.log.died.wait(), TIMEOUT_S)
    assert await delivery.outcomes() == []
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.acknowledge((msgid, A), (msgid, B))
        gateway.connect((1, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        assert gateway.received == []


async def test_gateways_may_report_only_the_kinds_that_devices_report(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        msgid = await delivery.send(A)
        gateway.report(RECEIVED, (msgid, B))
        gateway.report(SENT, (msgid, B))
        gateway.report(99, (msgid, A))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        assert await delivery.outcomes() == [OutcomeRow(msgid, A, SENT), OutcomeRow(msgid, A, RECEIVED)]


def refused_reports(kind: str) -> float:
    return float(REPORTS_REFUSED.labels(kind)._value.get())


async def test_a_stream_whose_reports_cannot_be_confirmed_any_more_ends(
    delivery: DeliveryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    async with delivery.running():
        monkeypatch.setattr(delivery.recorder(), "wait_recorded", fail)
        with pytest.raises(CarillonError):
            async with delivery.gateway() as gateway:
                gateway.request(sequence=1)
                await asyncio.wait([gateway.task], timeout=TIMEOUT_S)


@pytest.mark.parametrize("column", ["partitions", "numbers", "msgids", "times_ms"])
@pytest.mark.parametrize("rows", [1, 3], ids=["too short", "too long"])
def test_columns_of_unequal_length_are_refused_before_any_row_is_recorded(column: str, rows: int) -> None:
    sizes = {"partitions": 2, "numbers": 4, "msgids": 8, "times_ms": 8}
    reports = Reports(kinds=bytes([RECEIVED] * 2))
    for name, size in sizes.items():
        setattr(reports, name, bytes(size * (rows if name == column else 2)))
    unused: Any = None
    with pytest.raises(InputError, match="unequal length"):
        ReportIntake(unused, unused, unused, lambda: 0).record(reports)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let delivery remember four messages to one device each, or one to several, for each app and partition."""
    monkeypatch.setattr(sent_messages, "BLOCK_COST_BYTES", 16)
    monkeypatch.setattr(sent_messages, "MAX_COST_BYTES", 64)
    monkeypatch.setattr(sent_messages, "_BITMAP_BYTES", 60)


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("listed", [(A,), ()], ids=["unicast", "broadcast"])
async def test_each_report_on_a_push_that_was_timed_long_ago_counts_once(
    delivery: DeliveryHarness, listed: tuple[NumberedDevice, ...]
) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, C)
        gateway.connect((1, A), (2, C))
        await run_ready_tasks()
        timed = delivery.push(*listed)
        await send_to(delivery, A, 6)
        await delivery.command(timed)
        await gateway.wait_until(lambda: timed.msgid in [message.msgid for message in gateway.received])
        gateway.report(SHOWN, (timed.msgid, A))
        await delivery.expect_outcomes(OutcomeRow(timed.msgid, A, SHOWN))
        gateway.report(SHOWN, (timed.msgid, A))
        gateway.acknowledge((timed.msgid, A))
        await delivery.expect_outcomes(OutcomeRow(timed.msgid, A, RECEIVED))
        gateway.report(SHOWN, (timed.msgid, A))
        gateway.report(CLICKED, (timed.msgid, A))
        await delivery.expect_outcomes(OutcomeRow(timed.msgid, A, CLICKED))
        assert len(await delivery.outcomes(SHOWN, CLICKED)) == 2
    assert (await delivery.verify()).equal


@pytest.mark.usefixtures("small_memory")
async def test_a_forgotten_message_may_be_acknowledged_and_not_reported(delivery: DeliveryHarness) -> None:
    async with delivery.running(), delivery.gateway() as gateway:
        await delivery.register(A, C)
        gateway.connect((1, A), (2, C))
        await run_ready_tasks()
        msgid = await delivery.send()
        gateway.report(SHOWN, (msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, SHOWN))
        await send_to(delivery, A, 6)
        gateway.report(SHOWN, (msgid, A))
        gateway.report(CLICKED, (msgid, A))
        gateway.acknowledge((msgid, A))
        await delivery.expect_outcomes(OutcomeRow(msgid, A, RECEIVED))
        assert await delivery.outcomes(SHOWN, CLICKED) == [OutcomeRow(msgid, A, SHOWN)]


async def send_to(delivery: DeliveryHarness, at: NumberedDevice, count: int) -> None:
    """Send messages to the device, and wait until the log has that they were sent."""
    others = {await delivery.send(at) for _ in range(count)}
    async with asyncio.timeout(TIMEOUT_S):
        while not others <= {row.msgid for row in await delivery.outcomes(SENT)}:
            await asyncio.sleep(0.01)
