"""Tokens and aliases are resolved to devices when the task is sent, by two registry instances."""

from typing import Any, NamedTuple

import numpy as np

from protos.push.v1.push_pb2 import Aliases, Audience, PushCommand, SendPush, Tokens
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from protos.registry.v1.devices_pb2 import Attributes, DeviceCommand, RegisterDevice, RemoveDevice, SetAlias
from protos.registry.v1.registry_pb2 import CreateAppRequest, GetDevicesRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.log_pb2 import Meta, Position
from services.domain.ids import event_id
from services.domain.topics import DEVICE_COMMANDS, device_key
from services.log.port import NewRecord
from services.log.topics import partition_of
from tests.services.scheduling.conftest import PARTITIONS, SchedulingHarness, push
from tests.services.scheduling.test_timer import assert_sent_once


class DeviceNumber(NamedTuple):
    partition: int
    number: int


class AppDevices:
    """The devices of one app, changed by commands as the gateway writes them."""

    def __init__(self, harness: SchedulingHarness, appkey: str) -> None:
        self._harness = harness
        self.appkey = appkey

    async def register(self, *tokens: str, alias: str | None = None) -> None:
        for token in tokens:
            register = RegisterDevice(platform=PLATFORM_ANDROID, attributes=Attributes())
            await self._command(token, register=register)
            if alias:
                await self._command(token, set_alias=SetAlias(alias=alias))

    async def remove(self, token: str) -> None:
        await self._command(token, remove=RemoveDevice(reason="unregistered"))

    async def numbers(self, *tokens: str) -> list[DeviceNumber]:
        found = []
        for token in tokens:
            owner = self._harness.peers.owner("registry", partition_of(device_key(self.appkey, token), PARTITIONS))
            request = GetDevicesRequest(appkey=self.appkey, tokens=[token])
            (device,) = (await RegistryServiceStub(owner).GetDevices(request)).devices
            found.append(DeviceNumber(device.partition, device.number))
        return found

    def push(self, msgid: int, *, tokens: list[str] | None = None, aliases: Aliases | None = None) -> SendPush:
        audience = Audience(tokens=Tokens(tokens=tokens)) if tokens is not None else Audience(aliases=aliases)
        return push(msgid, self.appkey, audience, id_count=len(tokens) if tokens else 1)

    async def _command(self, token: str, **command: Any) -> None:
        key = device_key(self.appkey, token)
        partition = partition_of(key, PARTITIONS)
        meta = Meta(event_id=event_id(), time_ms=self._harness.clock.now_ms(), writer="gateway")
        device_command = DeviceCommand(meta=meta, appkey=self.appkey, token=token, **command)
        new_record = NewRecord(DEVICE_COMMANDS.name, partition, key, device_command.SerializeToString())
        (offset,) = await self._harness.log.append([new_record])
        await self._harness.peers.wait_applied(
            [Position(topic=DEVICE_COMMANDS.name, partition=partition, offset=offset)]
        )


async def new_app(harness: SchedulingHarness) -> AppDevices:
    registry = RegistryServiceStub(harness.peers.all("registry")[0])
    answer = await registry.CreateApp(CreateAppRequest(platform=PLATFORM_ANDROID, name="A", package="org.example.a"))
    return AppDevices(harness, answer.app.appkey)


def targets(command: PushCommand) -> list[tuple[DeviceNumber, int]]:
    devices = command.send.audience.devices
    columns = (
        np.frombuffer(devices.partitions, "<u2"),
        np.frombuffer(devices.numbers, "<u4"),
        np.frombuffer(devices.id_offsets, "<u4"),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(DeviceNumber(partition, number), offset) for partition, number, offset in rows]


async def test_each_token_has_its_own_id_and_unknown_ones_are_left_out(harness: SchedulingHarness) -> None:
    tokens = [f"token-{n}" for n in range(12)]
    async with harness.running(registries=2):
        devices = await new_app(harness)
        await devices.register(*tokens)
        await devices.remove("token-3")
        wanted = ["nobody", *reversed(tokens), "token-5"]
        await harness.create("t", devices.push(100, tokens=wanted), in_s=0)
        await harness.until_sent(1)

        (command,) = await harness.sent_pushes()
        known = [token for token in tokens if token != "token-3"]
        numbers = dict(zip(known, await devices.numbers(*known), strict=True))
        assert {number.partition % 2 for number in numbers.values()} == {0, 1}, "both instances were called"
        assert targets(command) == [(numbers[token], n) for n, token in enumerate(wanted) if token in numbers]
        assert (command.send.msgid, command.send.id_count) == (100, len(wanted))


async def test_a_list_of_more_tokens_than_one_call_accepts_is_resolved(harness: SchedulingHarness) -> None:
    async with harness.running(registries=1):
        devices = await new_app(harness)
        await devices.register("first", "last")
        wanted = ["first", *(f"nobody-{n}" for n in range(2500)), "last"]
        await harness.create("t", devices.push(1, tokens=wanted), in_s=0)
        await harness.until_sent(1)
        (command,) = await harness.sent_pushes()
        first, last = await devices.numbers("first", "last")
        assert targets(command) == [(first, 0), (last, 2501)]


async def test_an_alias_resolves_to_all_its_devices_or_the_latest_active_one(harness: SchedulingHarness) -> None:
    async with harness.running(registries=2):
        devices = await new_app(harness)
        for token, alias in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
            await devices.register(token, alias=alias)
            harness.clock.move(1)
        names = ["ann", "bob", "nobody", "ann"]
        everyone = devices.push(1, aliases=Aliases(aliases=names, all_devices=True))
        await harness.create("all", everyone, devices.push(2, aliases=Aliases(aliases=names)), in_s=0)
        await harness.until_sent(1)

        to_all, to_latest = await harness.sent_pushes()
        a1, a2, b1 = await devices.numbers("a1", "a2", "b1")
        assert sorted(targets(to_all)) == sorted((number, 0) for number in (a1, a2, b1))
        assert sorted(targets(to_latest)) == sorted((number, 0) for number in (a2, b1))


async def test_targets_are_resolved_when_the_task_is_sent(harness: SchedulingHarness) -> None:
    async with harness.running(registries=1):
        devices = await new_app(harness)
        await devices.register("old", alias="ann")
        await harness.create("t", devices.push(1, aliases=Aliases(aliases=["ann"], all_devices=True)))
        await devices.register("new", alias="ann")
        await devices.remove("old")
        harness.clock.move(60)
        await harness.until_sent(1)
        (command,) = await harness.sent_pushes()
        assert targets(command) == [(number, 0) for number in await devices.numbers("new")]


async def test_a_task_without_known_targets_is_sent_with_an_empty_audience(harness: SchedulingHarness) -> None:
    async with harness.running(registries=1):
        devices = await new_app(harness)
        await harness.create(
            "t", devices.push(1, tokens=["x"]), devices.push(2, aliases=Aliases(aliases=["y"])), in_s=0
        )
        await harness.until_sent(1)
        assert [(one.send.msgid, targets(one)) for one in await harness.sent_pushes()] == [(1, []), (2, [])]
        assert await harness.status("t", devices.appkey) == "SENT"


async def test_an_unavailable_registry_delays_only_the_tasks_that_need_it(harness: SchedulingHarness) -> None:
    async with harness.running(registries=2, hidden=True):
        devices = AppDevices(harness, "1000000001")
        await harness.create("needs it", devices.push(1, tokens=["x"]), in_s=0)
        await harness.create("does not", push(2), in_s=0)
        await harness.until_sent(1)
        assert [command.send.msgid for command in await harness.sent_pushes()] == [2]

        harness.show_registry()
        harness.clock.move(1)
        await harness.until_sent(2)
        await assert_sent_once(harness, "needs it", 1)
