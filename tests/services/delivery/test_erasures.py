"""Delivery after the erasure of a person: what waits is dropped, and no content stays, live as in a rebuilt state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.devices_pb2 import Device
from services.domain.recorded_reasons import FixedReason
from services.domain.sealed_log import SealedLog
from services.domain.sealing import FEW_DEVICES, Sealer
from testkit.delivery.records import APP, NumberedDevice
from testkit.delivery.role import DeliveryHarness
from testkit.persons import applied_erasures, erasure, key_ring
from testkit.waiting import until, until_holds

CANARY = "canary-e4d1"
DROPPED = OutcomeKind.OUTCOME_KIND_DROPPED


class SealingLog(SealedLog):
    """A log that seals, over one that kills its process on request."""

    def restart(self) -> None:
        self._log.restart()  # type: ignore[attr-defined]


@pytest.fixture
def sealed(delivery: DeliveryHarness, tmp_path: Path) -> SealedLog:
    sealed = SealingLog(delivery.log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    delivery.log = sealed  # type: ignore[assignment]
    return sealed


def device(number: int, partition: int = 0) -> NumberedDevice:
    return NumberedDevice(partition, number)


async def erase(delivery: DeliveryHarness, sealed: SealedLog, *devices: NumberedDevice) -> None:
    found = [
        Device(appkey=APP, token=f"t{each.number}", partition=each.partition, number=each.number) for each in devices
    ]
    await sealed.append([erasure(sealed.sealer, APP, found, time_ms=delivery.clock.now_ms())])


async def dropped(delivery: DeliveryHarness, count: int) -> Sequence[Any]:
    """Wait for this many dropped messages, and return them."""

    async def found() -> Sequence[Any] | None:
        rows = await delivery.outcomes(DROPPED)
        return rows if len(rows) >= count else None

    return await until(found)


async def test_what_waits_for_an_erased_device_is_dropped(delivery: DeliveryHarness, sealed: SealedLog) -> None:
    secret = Message(is_notif=True, content=f"{CANARY} for few")
    many = [device(number, number % 2) for number in range(FEW_DEVICES + 1)]
    async with delivery.running():
        alone = await delivery.send(device(1, 1), message=secret)
        few = await delivery.send(device(1, 1), device(2), message=secret)
        other = await delivery.send(device(2))
        large = await delivery.send(*many)
        await delivery.snapshots().save()
        assert CANARY.encode() in (delivery.read_snapshot() or b"")
        await erase(delivery, sealed, device(1, 1))
        rows = await dropped(delivery, 4)
        assert {(row.msgid, row.device.number) for row in rows} == {(alone, 1), (few, 1), (few, 2), (large, 1)}
        assert {row.reason for row in rows} == {FixedReason.ERASED}

        async def saved() -> bool:
            return CANARY.encode() not in (delivery.read_snapshot() or b"")

        await until(saved)
        await until_holds(lambda: applied_erasures("delivery", "state") == 1)
        state = delivery.store().state
        assert (alone in state.started, few in state.started, other in state.started) == (False, False, True)
        assert state.started[large].send.message.content == f"message {large}"
    assert (await delivery.verify()).equal


async def test_the_next_start_drops_what_a_kill_left(delivery: DeliveryHarness, sealed: SealedLog) -> None:
    secret = Message(is_notif=True, content=f"{CANARY} for few")
    async with delivery.running():
        waiting = await delivery.send(device(1), device(2), message=secret)
    assert CANARY.encode() in (delivery.read_snapshot() or b"")
    unread = delivery.push(device(1), message=secret)
    await delivery.command(unread, wait_applied=False)
    await erase(delivery, sealed, device(1))
    for _ in range(2):
        async with delivery.running():
            rows = await dropped(delivery, 2)
            assert {(row.msgid, row.device.number, row.reason) for row in rows} == {
                (waiting, number, FixedReason.ERASED) for number in (1, 2)
            }
            await delivery.wait_facts("failed", 1)
            (failed,) = [fact for fact in await delivery.push_facts() if fact.WhichOneof("fact") == "failed"]
            assert (failed.msgid, failed.failed.reason) == (unread.msgid, FixedReason.ERASED)
            assert unread.msgid not in delivery.store().state.requested
        assert (await delivery.verify()).equal
        assert CANARY.encode() not in (delivery.read_snapshot() or b"")
