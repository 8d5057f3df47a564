"""Revoked device keys: decisions, published records, removal of the devices, and crashes in between."""

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap

from protos.gateway.v1.sessions_pb2 import SESSION_EVENT_KIND_OPENED
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_CODE,
    REGISTRATION_AUTHORITY_TOKEN,
    AddTags,
    Device,
    RegisterDevice,
    RemoveDevice,
    ReserveNumbers,
    RevokeKey,
)
from protos.registry.v1.registry_pb2 import (
    ListInvalidTokensRequest,
    RevokeAppKeysRequest,
    RevokeDeviceKeyRequest,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.topics import APPS, DEVICE_COMMANDS, DEVICES, TOPICS, decode, device_key
from services.errors import NotFoundError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.net.rpc.local import LocalServer
from services.process.clock import ManualClock
from services.registry import revocation_worker
from services.registry.settings import RegistrySettings
from testkit.faults.crashing_log import KilledError
from testkit.faults.held_removals import hold_removals
from testkit.waiting import until
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    PARTITIONS,
    RunningRegistry,
    Start,
    command,
    device_facts,
    register,
    set_alias,
)

APP = App(appkey="1000000001", platform=PLATFORM_ANDROID)
ALICE = Origin(interface="cli", address="alice@ops", request_id="r-1")


async def revoke(registry: RunningRegistry, app: App, token: str) -> None:
    await registry.stub.RevokeDeviceKey(RevokeDeviceKeyRequest(appkey=app.appkey, token=token, origin=ALICE))
    await registry.apps.refresh()


async def revoke_every_key(registry: RunningRegistry, app: App) -> None:
    await registry.stub.RevokeAppKeys(RevokeAppKeysRequest(appkey=app.appkey, origin=ALICE))
    await registry.apps.refresh()


async def known(registry: RunningRegistry, app: App, token: str) -> Device:
    device = await registry.device(app.appkey, token)
    assert device is not None
    return device


def is_refused(registry: RunningRegistry, device: Device) -> bool:
    return registry.apps.is_revoked(device.appkey, device.partition, device.number)


async def until_all_are_removed(registry: RunningRegistry, app: App, tokens: Sequence[str]) -> None:
    async def all_are_removed() -> bool:
        return set(await registry.numbers(app.appkey, tokens)) == {-1}

    await until(all_are_removed)


async def test_a_revoked_device_is_removed_and_its_key_refused(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t"), register(app, "other"), set_alias(app, "t", "anna"))
    device, other = await known(registry, app, "t"), await known(registry, app, "other")
    await revoke(registry, app, "t")
    assert is_refused(registry, device)
    assert not is_refused(registry, other)
    assert await registry.device(app.appkey, "t") is None
    assert await registry.alias(app.appkey, "anna") == []
    (fact,) = [fact for fact in await device_facts(registry.log) if fact.device.token == "t"]
    assert (fact.device.removed_reason, fact.meta.origin) == ("revoked by alice@ops", ALICE)
    end = await registry.log.ends([Partition(APPS.name, 0)])
    await revoke(registry, app, "t")
    assert await registry.log.ends([Partition(APPS.name, 0)]) == end
    assert (await registry.verify()).equal


async def test_a_revoked_device_that_registers_again_starts_anew_under_a_new_number(registry: RunningRegistry) -> None:
    app = await registry.app(PLATFORM_IOS)
    again = command(app, "t", register=RegisterDevice(platform=PLATFORM_IOS))
    await registry.apply(again, set_alias(app, "t", "anna"), command(app, "t", add_tags=AddTags(tags=[1])))
    numbers = [(await known(registry, app, "t")).number]
    for _ in range(3):
        await registry.report(await known(registry, app, "t"), SESSION_EVENT_KIND_OPENED, NOON_MS + 1)
        await revoke(registry, app, "t")
        await registry.apply(command(app, "t", register=RegisterDevice(platform=PLATFORM_IOS)))
        device = await known(registry, app, "t")
        assert not is_refused(registry, device)
        assert list(device.former_numbers) == numbers
        numbers.append(device.number)
    assert len(set(numbers)) == 4
    assert not device.tags
    assert await registry.alias(app.appkey, "anna") == []
    assert (await registry.verify()).equal


async def test_a_device_that_proves_its_token_by_a_code_keeps_its_alias_under_another_number(
    registry: RunningRegistry,
) -> None:
    app = await registry.app(PLATFORM_IOS)
    first = RegisterDevice(platform=PLATFORM_IOS, authority=REGISTRATION_AUTHORITY_TOKEN)
    await registry.apply(command(app, "t", register=first), set_alias(app, "t", "anna"))
    former = await known(registry, app, "t")
    by_code = RegisterDevice(platform=PLATFORM_IOS, authority=REGISTRATION_AUTHORITY_CODE, proven_number=former.number)
    await registry.apply(command(app, "t", register=by_code))
    device = await known(registry, app, "t")
    assert (device.number != former.number, list(device.former_numbers)) == (True, [former.number])
    aliased = [(each.token, each.number) for each in await registry.alias(app.appkey, "anna")]
    assert aliased == [("t", device.number)]
    await registry.apply(command(app, "t", register=by_code), command(app, "t", register=first))
    assert await known(registry, app, "t") == device
    assert (await registry.verify()).equal


async def test_a_revoked_token_is_not_listed_as_rejected_by_apple(registry: RunningRegistry) -> None:
    app = await registry.app(PLATFORM_IOS)
    await registry.apply(command(app, "t", register=RegisterDevice(platform=PLATFORM_IOS)))
    await revoke(registry, app, "t")
    answer = await registry.stub.ListInvalidTokens(ListInvalidTokensRequest(appkey=app.appkey, limit=10))
    assert not answer.tokens


async def test_no_device_gets_a_reserved_number(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t"))
    first = await known(registry, app, "t")
    ask = command(app, "", reserve_numbers=ReserveNumbers(count=3))
    key = app.appkey.encode()
    await registry.log.append([NewRecord(DEVICE_COMMANDS.name, first.partition, key, ask.SerializeToString())])
    others = (f"n{index}" for index in itertools.count())
    same = (token for token in others if partition_of(device_key(app.appkey, token), PARTITIONS) == first.partition)
    await registry.apply(register(app, next(same)), register(app, token := next(same)))
    await registry.apps.refresh()
    reserved = [Device(appkey=app.appkey, partition=first.partition, number=first.number + more) for more in (1, 2, 3)]
    assert [is_refused(registry, device) for device in (first, *reserved)] == [False, True, True, True]
    assert (await known(registry, app, token)).number == first.number + 5
    assert not is_refused(registry, await known(registry, app, token))
    assert (await registry.verify()).equal


async def test_the_key_of_a_removed_device_can_be_revoked_too(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t"))
    device = await known(registry, app, "t")
    await registry.apply(command(app, "t", remove=RemoveDevice(reason="unregistered")))
    await revoke(registry, app, "t")
    assert is_refused(registry, device)
    (fact,) = [fact for fact in await device_facts(registry.log) if fact.HasField("device")]
    assert fact.device.removed_reason == "unregistered"


async def test_unknown_apps_and_devices_are_not_found(registry: RunningRegistry) -> None:
    app = await registry.app()
    with pytest.raises(NotFoundError, match="device"):
        await revoke(registry, app, "unknown")
    with pytest.raises(NotFoundError, match="app"):
        await revoke(registry, APP, "t")
    with pytest.raises(NotFoundError, match="app"):
        await revoke_every_key(registry, APP)


async def test_revoking_all_keys_spares_later_ones(registry: RunningRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revocation_worker, "BATCH", 3)
    app, news = await registry.app(), await registry.app()
    tokens = [f"t{index}" for index in range(40)]
    await registry.apply(*(register(one, token) for token in tokens for one in (app, news)))
    await revoke(registry, app, "t7")
    before = [await known(registry, app, token) for token in tokens if token != "t7"]
    await revoke_every_key(registry, app)
    assert all(is_refused(registry, device) for device in before)
    assert not is_refused(registry, await known(registry, news, "t1"))
    await until_all_are_removed(registry, app, tokens)
    await registry.apply(*(register(app, token) for token in tokens))
    numbers = {(device.partition, device.number) for device in before}
    for token in tokens:
        device = await known(registry, app, token)
        assert not is_refused(registry, device)
        assert (device.partition, device.number) not in numbers
    assert -1 not in await registry.numbers(news.appkey, tokens)
    assert (await registry.verify()).equal


async def test_instances_write_their_own_partitions(start: Start, log: SqliteLog, settings: RegistrySettings) -> None:
    first, second = (msgspec.structs.replace(settings, shard=shard, shards=2) for shard in (0, 1))
    second = msgspec.structs.replace(second, data_dir=f"{settings.data_dir}/second")
    servers = [LocalServer(), LocalServer()]
    async with start(log, first, servers) as zero, start(log, second, servers) as one:
        app = await zero.app()
        tokens = [f"t{index}" for index in range(20)]
        await zero.apply(*(register(app, token) for token in tokens))
        theirs = next(token for token in tokens if partition_of(device_key(app.appkey, token), PARTITIONS) % 2)
        await revoke(zero, app, theirs)
        assert any(zero.apps.revoked(app.appkey, partition).others for partition in (1, 3))
        await revoke_every_key(zero, app)
        assert all(zero.apps.revoked(app.appkey, partition).below for partition in range(PARTITIONS))
        await until_all_are_removed(zero, app, tokens)
        await until_all_are_removed(one, app, tokens)


async def test_published_records_are_complete_and_keyed_by_partition(registry: RunningRegistry) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(6)]
    await registry.apply(*(register(app, token) for token in tokens))
    for token in tokens:
        await revoke(registry, app, token)
    reader = await registry.log.open({Partition(APPS.name, 0): 0})
    facts = {record.key.decode(): decode(record) for record in await reader.read()}
    await reader.close()
    revoked = {key: fact.revocations for key, fact in facts.items() if fact.HasField("revocations")}
    assert all(key == f"{app.appkey}/revoked/{fact.partition}" for key, fact in revoked.items())
    numbers = [len(BitMap.deserialize(fact.numbers)) for fact in revoked.values()]
    assert sum(numbers) == len(tokens)


class PartialAppendLog(SqliteLog):
    """A log that simulates a crash in the append of a revocation's records: only the first one is durable."""

    async def append(self, new_records: Sequence[NewRecord]) -> list[int]:
        if not any(new_record.topic == DEVICES.name and b"/" not in new_record.key for new_record in new_records):
            return await super().append(new_records)
        await super().append(new_records[:1])
        raise KilledError


async def test_an_interrupted_revocation_is_completed_at_the_next_start(
    start: Start, log: SqliteLog, settings: RegistrySettings, clock: ManualClock
) -> None:
    async with start() as registry:
        app = await registry.app()
        await registry.apply(register(app, "t"))
        device = await known(registry, app, "t")
        await registry.stop()
        await registry.write(command(app, "t", revoke_key=RevokeKey()))
    await log.close()
    log_of_crash = PartialAppendLog(Path(settings.data_dir) / "log.sqlite", TOPICS)
    dying = RunningRegistry(settings, log_of_crash, clock)
    await dying.start()
    done, _ = await asyncio.wait(dying.tasks, return_when=asyncio.FIRST_EXCEPTION, timeout=BOUND_S)
    assert [type(task.exception()) for task in done] == [KilledError]
    await dying.stop()
    await log_of_crash.close()

    reopened = SqliteLog(Path(settings.data_dir) / "log.sqlite", TOPICS)
    async with start(reopened) as again:
        await again.apps.refresh()
        assert is_refused(again, device)
        assert await again.device(app.appkey, "t") is None
        assert (await again.verify()).equal
    await reopened.close()


async def test_a_restart_continues_the_removals(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [f"t{index}" for index in range(20)]
    with monkeypatch.context() as patched:
        hold_removals(patched)
        async with start() as registry:
            app = await registry.app()
            await registry.apply(*(register(app, token) for token in tokens))
            await revoke_every_key(registry, app)
            assert -1 not in await registry.numbers(app.appkey, tokens)
            await registry.apply(register(app, "t3"))
            assert not is_refused(registry, await known(registry, app, "t3"))
    async with start() as again:
        await until_all_are_removed(again, app, [token for token in tokens if token != "t3"])
        assert await again.device(app.appkey, "t3") is not None
        assert (await again.verify()).equal
