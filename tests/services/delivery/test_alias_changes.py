"""A device that changes its alias gets nothing more that was sent to its former one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from protos.delivery.v1.delivery_pb2 import CheckAliasesRequest, CheckedDevice
from protos.delivery.v1.delivery_pb2_grpc import AliasesServiceStub
from protos.registry.v1.registry_pb2 import AliasDevice, AliasDevices, FindAliasesRequest, FindAliasesResponse
from services.delivery.channels.sockets.fanout import BACKLOG_WINDOW
from services.delivery.state import serialization
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import DELIVERIES
from services.errors import UnavailableError
from services.net.rpc.local import LocalServer
from testkit.delivery.gateway import GatewayClient
from testkit.delivery.records import APP, DROPPED, RECEIVED, NumberedDevice, OutcomeRow, aliased_audience
from testkit.delivery.role import DeliveryHarness
from testkit.faults.crashing_log import KilledError
from testkit.services import TIMEOUT_S
from testkit.waiting import run_ready_tasks

A, B = NumberedDevice(0, 0), NumberedDevice(1, 0)
CHANGED = "alias changed"


class ScriptedRegistry:
    """Knows which devices have each alias; counts its calls in `asked`, and answers them while `answers` is set."""

    def __init__(self, **devices: NumberedDevice) -> None:
        self.devices = {alias: [device] for alias, device in devices.items()}
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def find_aliases(self, request: FindAliasesRequest, context: Any) -> FindAliasesResponse:
        self.asked += 1
        found = [
            AliasDevices(devices=[AliasDevice(partition=p, number=n) for p, n in self.devices.get(alias, ())])
            for alias in request.aliases
        ]
        await self.answers.wait()
        return FindAliasesResponse(aliases=found)

    @contextlib.asynccontextmanager
    async def behind(self, delivery: DeliveryHarness) -> AsyncIterator[None]:
        """Run delivery with this registry."""
        server = LocalServer()
        server.add_registered_method_handlers(
            "protos.registry.v1.RegistryService", {"FindAliases": SimpleNamespace(unary_unary=self.find_aliases)}
        )
        async with delivery.running(registry=server.channel()):
            yield


async def to_alias(delivery: DeliveryHarness, *devices: NumberedDevice, alias: str = "alice", **changes: Any) -> int:
    return await delivery.send(audience=aliased_audience(*devices, aliases=[alias]), **changes)


async def check(delivery: DeliveryHarness, *devices: NumberedDevice) -> list[list[int]]:
    """Call CheckAliases as a front end does; return the messages that were dropped for each device."""
    request = CheckAliasesRequest(devices=[CheckedDevice(appkey=APP, partition=p, number=n) for p, n in devices])
    response = await AliasesServiceStub(delivery.server.channel()).CheckAliases(request)
    return [list(each.msgids) for each in response.dropped]


def dropped(msgids: Sequence[int], device: NumberedDevice = A) -> list[OutcomeRow]:
    return [OutcomeRow(msgid, device, DROPPED, CHANGED) for msgid in msgids]


async def expect_on_reconnect(gateway: GatewayClient, delivery: DeliveryHarness, *expected: int) -> None:
    """Connect A and expect these messages and a later one, and no others."""
    before = len(gateway.received)
    gateway.connect((99, A))
    marker = await delivery.send(A)
    await gateway.wait_until(lambda: any(each.msgid == marker for each in gateway.received))
    assert [each.msgid for each in gateway.received[before:]] == [*expected, marker]


async def test_what_waits_for_the_former_alias_is_dropped_and_nothing_else(delivery: DeliveryHarness) -> None:
    registry = ScriptedRegistry(alice=A, bob=B)
    async with registry.behind(delivery), delivery.gateway() as gateway:
        await delivery.register(A, B)
        former = [await to_alias(delivery, A) for _ in range(3)]
        both = await delivery.send(audience=aliased_audience(A, B, aliases=["alice", "bob"]))
        by_token, everyone = await delivery.send(A), await delivery.send()
        foreign = await to_alias(delivery, A, alias="carol")
        assert await check(delivery, A) == [[foreign]]  # it still is alice's
        new = await to_alias(delivery, A, alias="carol")
        registry.devices = {"carol": [A], "bob": [B]}
        assert await check(delivery, A, B) == [[*former, both], []]
        assert await check(delivery, A) == [[]]
        assert sorted(await delivery.outcomes(DROPPED)) == sorted(dropped([foreign, *former, both]))
        await expect_on_reconnect(gateway, delivery, by_token, everyone, new)
        gateway.connect((2, B))
        await gateway.wait_until(lambda: (2, both) in [(each.connection, each.msgid) for each in gateway.received])
    assert (await delivery.verify()).equal


async def test_a_device_for_which_nothing_waits_by_alias_costs_no_look_up_and_no_record(
    delivery: DeliveryHarness,
) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery):
        await delivery.send(A)
        await delivery.send()
        await to_alias(delivery, B)
        ends = await delivery.log.ends(delivery.store().partitions)
        assert await check(delivery, A) == [[]]
        assert registry.asked == 0
        assert await delivery.log.ends(delivery.store().partitions) == ends


async def test_the_rest_of_a_backlog_is_not_sent_and_what_is_on_its_way_counts_when_it_is_acknowledged(
    delivery: DeliveryHarness,
) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery), delivery.gateway() as gateway:
        former = [await to_alias(delivery, A) for _ in range(2 * BACKLOG_WINDOW)]
        gateway.connect((1, A))
        await gateway.wait_count(BACKLOG_WINDOW)
        assert await check(delivery, A) == [former]
        gateway.acknowledge(*((msgid, A) for msgid in former[: BACKLOG_WINDOW - 1]))
        gateway.acknowledge((former[0], A), (former[-1], A))  # a repeated one, and one of a message that never left
        live = await delivery.send(A)
        await gateway.expect(*((1, msgid) for msgid in [*former[:BACKLOG_WINDOW], live]))
        gateway.acknowledge((live, A))
        received = [*former[: BACKLOG_WINDOW - 1], live]
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RECEIVED) for msgid in received))
        await delivery.expect_outcomes(*dropped(former))
    assert (await delivery.verify()).equal
    delivery.write_snapshot(None)
    async with registry.behind(delivery), delivery.gateway() as gateway:
        await expect_on_reconnect(gateway, delivery)
        gateway.acknowledge((former[BACKLOG_WINDOW - 1], A))
        await delivery.expect_outcomes(
            *(OutcomeRow(msgid, A, RECEIVED) for msgid in [*received, former[BACKLOG_WINDOW - 1]])
        )


async def test_what_follows_in_the_backlog_does_not_wait_for_acknowledgements_of_what_was_dropped(
    delivery: DeliveryHarness,
) -> None:
    async with ScriptedRegistry().behind(delivery), delivery.gateway() as gateway:
        former = [await to_alias(delivery, A) for _ in range(BACKLOG_WINDOW)]
        by_token = [await delivery.send(A) for _ in range(3)]
        gateway.connect((1, A))
        await gateway.wait_count(BACKLOG_WINDOW)
        assert await check(delivery, A) == [former]
        await gateway.expect(*((1, msgid) for msgid in [*former, *by_token]))


async def test_a_push_that_comes_for_the_new_alias_while_the_registry_is_asked_is_kept(
    delivery: DeliveryHarness,
) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery), delivery.gateway() as gateway:
        former = await to_alias(delivery, A)
        registry.answers.clear()
        checking = asyncio.create_task(check(delivery, A))
        async with asyncio.timeout(TIMEOUT_S):
            while not registry.asked:
                await asyncio.sleep(0)
        new = await to_alias(delivery, A, alias="carol")
        registry.answers.set()
        assert await checking == [[former]]
        await expect_on_reconnect(gateway, delivery, new)


async def test_a_check_covers_pushes_that_delivery_has_not_read_or_not_started(delivery: DeliveryHarness) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery), delivery.gateway() as gateway:
        pushes = [delivery.push(audience=aliased_audience(A, aliases=["alice"])) for _ in range(5)]
        await delivery.command(*pushes, wait_applied=False)
        assert await check(delivery, A) == [[push.msgid for push in pushes]]
        await expect_on_reconnect(gateway, delivery)


async def test_paused_and_paced_pushes_are_dropped_too(delivery: DeliveryHarness) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        await delivery.pause()
        held = await to_alias(delivery, A)
        paced = await to_alias(delivery, A, qps=1)
        assert await check(delivery, A) == [[held, paced]]
        await delivery.resume()
        marker = await delivery.send(A)
        await delivery.advance(5, steps=5)
        await gateway.expect((1, marker))


async def test_without_an_answer_of_the_registry_the_check_fails_and_can_be_repeated(
    delivery: DeliveryHarness,
) -> None:
    async with delivery.running():
        former = await to_alias(delivery, A)
        with pytest.raises(UnavailableError):
            await check(delivery, A)
    async with ScriptedRegistry().behind(delivery):
        assert await check(delivery, A) == [[former]]


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_check_that_a_kill_has_interrupted_is_repeated_by_the_next_process(
    delivery: DeliveryHarness, kept: int
) -> None:
    """Killed before and after its outcomes are in the log."""
    registry = ScriptedRegistry()
    async with registry.behind(delivery):
        former = [await to_alias(delivery, A) for _ in range(2)]
    with contextlib.suppress(KilledError):
        async with registry.behind(delivery):
            delivery.log.kill_at = lambda new_record: new_record.topic == DELIVERIES.name
            delivery.log.kept_records = kept
            checking = asyncio.create_task(check(delivery, A))
            await asyncio.wait_for(delivery.log.died.wait(), TIMEOUT_S)
            checking.cancel()
    assert len(await delivery.outcomes(DROPPED)) == (len(former) if kept else 0)
    async with registry.behind(delivery), delivery.gateway() as gateway:
        assert await check(delivery, A) == [[] if kept else former]
        assert sorted(await delivery.outcomes(DROPPED)) == dropped(former)
        await expect_on_reconnect(gateway, delivery)
    assert (await delivery.verify()).equal


async def test_a_restored_state_has_what_was_withdrawn(delivery: DeliveryHarness) -> None:
    registry = ScriptedRegistry()
    async with registry.behind(delivery), delivery.gateway() as gateway:
        gateway.connect((1, A))
        await run_ready_tasks()
        sent = await to_alias(delivery, A)
        several = await delivery.send(audience=aliased_audience(A, B, aliases=["alice", "bob"]))
        await gateway.expect((1, sent), (1, several))
        assert await check(delivery, A) == [[sent, several]]
    state = DeliveryState(delivery.store().state.owned)
    serialization.load(state, list(serialization.dump(delivery.store().state)))
    assert serialization.digest(state) == serialization.digest(delivery.store().state)
    async with registry.behind(delivery), delivery.gateway() as gateway:
        gateway.acknowledge((sent, A), (several, A))
        await delivery.expect_outcomes(*(OutcomeRow(msgid, A, RECEIVED) for msgid in (sent, several)))
        await expect_on_reconnect(gateway, delivery)
    assert (await delivery.verify()).equal


async def test_an_expired_push_with_a_withdrawn_device_is_finished(delivery: DeliveryHarness) -> None:
    async with ScriptedRegistry().behind(delivery):
        msgid = await to_alias(delivery, A, period_s=60)
        assert await check(delivery, A) == [[msgid]]
        assert msgid in delivery.store().state.started
        delivery.clock.move(61)
        async with asyncio.timeout(TIMEOUT_S):
            while delivery.store().state.is_in_progress(msgid):
                await asyncio.sleep(0)
        assert await delivery.facts(msgid) == [("started", 0), ("finished", 0)]
    assert (await delivery.verify()).equal
