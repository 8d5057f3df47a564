"""Tokens and aliases become devices when the task is sent, by what two registry instances know then."""

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
from services.runtime.log.port import NewRecord
from services.runtime.log.topics import partition_of
from tests.roles.scheduling.conftest import PARTITIONS, House, push
from tests.roles.scheduling.test_firing import assert_sent_once


class Place(NamedTuple):
    partition: int
    number: int


class Phones:
    """The devices of one app, changed as the doors do it."""

    def __init__(self, house: House, appkey: str) -> None:
        self._house = house
        self.appkey = appkey

    async def register(self, *tokens: str, alias: str | None = None) -> None:
        for token in tokens:
            register = RegisterDevice(platform=PLATFORM_ANDROID, attributes=Attributes())
            await self._command(token, register=register)
            if alias:
                await self._command(token, set_alias=SetAlias(alias=alias))

    async def remove(self, token: str) -> None:
        await self._command(token, remove=RemoveDevice(reason="unregistered"))

    async def places(self, *tokens: str) -> list[Place]:
        places = []
        for token in tokens:
            owner = self._house.peers.owner("registry", partition_of(device_key(self.appkey, token), PARTITIONS))
            request = GetDevicesRequest(appkey=self.appkey, tokens=[token])
            (device,) = (await RegistryServiceStub(owner).GetDevices(request)).devices
            places.append(Place(device.partition, device.number))
        return places

    def push(self, msgid: int, *, tokens: list[str] | None = None, aliases: Aliases | None = None) -> SendPush:
        audience = Audience(tokens=Tokens(tokens=tokens)) if tokens is not None else Audience(aliases=aliases)
        return push(msgid, self.appkey, audience, id_count=len(tokens) if tokens else 1)

    async def _command(self, token: str, **what: Any) -> None:
        key = device_key(self.appkey, token)
        partition = partition_of(key, PARTITIONS)
        meta = Meta(event_id=event_id(), time_ms=self._house.clock.now_ms(), writer="gateway")
        command = DeviceCommand(meta=meta, appkey=self.appkey, token=token, **what)
        new_record = NewRecord(DEVICE_COMMANDS.name, partition, key, command.SerializeToString())
        (offset,) = await self._house.log.append([new_record])
        await self._house.peers.wait_applied([Position(topic=DEVICE_COMMANDS.name, partition=partition, offset=offset)])


async def new_app(house: House) -> Phones:
    registry = RegistryServiceStub(house.peers.all("registry")[0])
    answer = await registry.CreateApp(CreateAppRequest(platform=PLATFORM_ANDROID, name="A", package="org.example.a"))
    return Phones(house, answer.app.appkey)


def targets(command: PushCommand) -> list[tuple[Place, int]]:
    devices = command.send.audience.devices
    columns = (
        np.frombuffer(devices.partitions, "<u2"),
        np.frombuffer(devices.numbers, "<u4"),
        np.frombuffer(devices.id_offsets, "<u4"),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(Place(partition, number), offset) for partition, number, offset in rows]


async def test_each_token_has_its_own_id_and_unknown_ones_are_left_out(house: House) -> None:
    tokens = [f"token-{n}" for n in range(12)]
    async with house.running(registries=2):
        phones = await new_app(house)
        await phones.register(*tokens)
        await phones.remove("token-3")
        wanted = ["nobody", *reversed(tokens), "token-5"]
        await house.create("t", phones.push(100, tokens=wanted), in_s=0)
        await house.until_sent(1)

        (command,) = await house.sent_pushes()
        known = [token for token in tokens if token != "token-3"]
        places = dict(zip(known, await phones.places(*known), strict=True))
        assert {place.partition % 2 for place in places.values()} == {0, 1}, "both instances were asked"
        assert targets(command) == [(places[token], n) for n, token in enumerate(wanted) if token in places]
        assert (command.send.msgid, command.send.id_count) == (100, len(wanted))


async def test_more_tokens_than_one_call_takes(house: House) -> None:
    async with house.running(registries=1):
        phones = await new_app(house)
        await phones.register("first", "last")
        wanted = ["first", *(f"nobody-{n}" for n in range(2500)), "last"]
        await house.create("t", phones.push(1, tokens=wanted), in_s=0)
        await house.until_sent(1)
        (command,) = await house.sent_pushes()
        first, last = await phones.places("first", "last")
        assert targets(command) == [(first, 0), (last, 2501)]


async def test_an_alias_means_all_its_devices_or_the_one_active_last(house: House) -> None:
    async with house.running(registries=2):
        phones = await new_app(house)
        for token, alias in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
            await phones.register(token, alias=alias)
            house.clock.move(1)
        names = ["ann", "bob", "nobody", "ann"]
        everyone = phones.push(1, aliases=Aliases(aliases=names, all_devices=True))
        await house.create("all", everyone, phones.push(2, aliases=Aliases(aliases=names)), in_s=0)
        await house.until_sent(1)

        to_all, to_latest = await house.sent_pushes()
        a1, a2, b1 = await phones.places("a1", "a2", "b1")
        assert sorted(targets(to_all)) == sorted((place, 0) for place in (a1, a2, b1))
        assert sorted(targets(to_latest)) == sorted((place, 0) for place in (a2, b1))


async def test_targets_are_those_of_the_moment_of_sending(house: House) -> None:
    async with house.running(registries=1):
        phones = await new_app(house)
        await phones.register("old", alias="ann")
        await house.create("t", phones.push(1, aliases=Aliases(aliases=["ann"], all_devices=True)))
        await phones.register("new", alias="ann")
        await phones.remove("old")
        house.clock.move(60)
        await house.until_sent(1)
        (command,) = await house.sent_pushes()
        assert targets(command) == [(place, 0) for place in await phones.places("new")]


async def test_a_task_whose_targets_are_all_unknown_is_sent_to_nobody(house: House) -> None:
    async with house.running(registries=1):
        phones = await new_app(house)
        await house.create("t", phones.push(1, tokens=["x"]), phones.push(2, aliases=Aliases(aliases=["y"])), in_s=0)
        await house.until_sent(1)
        assert [(one.send.msgid, targets(one)) for one in await house.sent_pushes()] == [(1, []), (2, [])]
        assert await house.status("t", phones.appkey) == "SENT"


async def test_a_task_waits_for_a_registry_that_does_not_answer_and_holds_up_no_other(house: House) -> None:
    async with house.running(registries=2, hidden=True):
        phones = Phones(house, "1000000001")
        await house.create("needs it", phones.push(1, tokens=["x"]), in_s=0)
        await house.create("does not", push(2), in_s=0)
        await house.until_sent(1)
        assert [command.send.msgid for command in await house.sent_pushes()] == [2]

        house.show_registry()
        house.clock.move(1)
        await house.until_sent(2)
        await assert_sent_once(house, "needs it", 1)
