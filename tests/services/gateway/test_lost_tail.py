"""Devices that registered before the log went back: their keys open no number of another device, and they come back."""

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from protos.registry.v1.apps_pb2 import AppFact, Revocations
from protos.registry.v1.devices_pb2 import DeviceCommand, ReserveNumbers
from protos.runtime.v1.instances_pb2 import InstanceAlive, InstanceFact
from services.domain.command_writer import Command, CommandWriter
from services.domain.revocations import revocations_key
from services.domain.topics import APPS, DEVICE_COMMANDS, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.registry.decide import LOST_MARGIN
from services.registry.given_numbers import keep_given
from services.registry.main import open_state
from services.registry.settings import RegistrySettings
from services.registry.store import DEVICES_FILE
from services.replica import replay
from services.replica.instances import InstanceDirectory
from testkit.gateway.role import ANDROID, PARTITIONS, RunningGateway
from testkit.gateway.websocket import DeviceClient

Welcome = dict[str, Any]


async def hello(gateway: RunningGateway, welcome: Welcome | None = None, **fields: Any) -> tuple[DeviceClient, Welcome]:
    """Say hello as a new device, or as the one of an earlier welcome; return the client and the first frame."""
    client = await DeviceClient.connect(gateway.port)
    known = {"token": welcome["token"], "key": welcome["key"]} if welcome else {}
    first = await client.hello(ANDROID, **known, **fields)
    assert first["type"] == "welcome", first
    return client, first


async def number(gateway: RunningGateway, welcome: Welcome) -> tuple[int, int]:
    """Return the partition and the number of a registered device."""
    device = await gateway.device(welcome["token"])
    proven = gateway.keys.device_number(ANDROID, device.token, welcome["key"])
    assert proven == device.number, "the key in the welcome is that of the registered number"
    return device.partition, device.number


async def copied(directory: Path) -> tuple[Welcome, tuple[int, int]]:
    """Fill the directories `live`, and `snapshot`, a copy; return a device that registered after the copy."""
    gateway = RunningGateway(directory / "live")
    await gateway.open()
    await hello(gateway)
    await gateway.close()
    shutil.copytree(directory / "live", directory / "snapshot")
    gateway = RunningGateway(directory / "live")
    await gateway.open()
    _, carol = await hello(gateway)
    place = await number(gateway, carol)
    await gateway.close()
    return carol, place


async def rolled_back(directory: Path) -> tuple[RunningGateway, Welcome, tuple[int, int]]:
    """Return a gateway on a directory that was rolled back by a copy, and a device that registered after the copy."""
    carol, place = await copied(directory)
    gateway = RunningGateway(directory / "snapshot")
    await gateway.open()
    return gateway, carol, place


async def registered_at(gateway: RunningGateway, place: tuple[int, int]) -> Welcome:
    """Register devices until one is given this number; return its welcome."""
    while True:
        _, welcome = await hello(gateway)
        if await number(gateway, welcome) == place:
            return welcome


async def announced(gateway: RunningGateway, place: tuple[int, int]) -> int:
    """Return how many connections of devices with this number delivery was told of, once all before are announced."""
    _, welcome = await hello(gateway)
    last = await number(gateway, welcome)

    def found() -> list[tuple[int, int]]:
        return [(each.partition, each.number) for request in gateway.delivery.requests for each in request.connected]

    await gateway.delivery.until(lambda: last in found())
    return found().count(place)


async def test_the_key_of_a_lost_device_opens_no_number_that_was_given_to_another(tmp_path: Path) -> None:
    gateway, carol, place = await rolled_back(tmp_path)
    dave = await registered_at(gateway, place)
    before = await announced(gateway, place)
    _, again = await hello(gateway, carol, device={"brand": "Acme"})
    assert (again["token"], again["new"]) == (carol["token"], True)
    assert again["key"] != carol["key"]
    own = await number(gateway, again)
    assert own != place
    assert (await gateway.device(carol["token"])).attributes.brand == "Acme"
    assert await announced(gateway, place) == before, "carol's connection is not announced as that of dave's number"
    assert (await hello(gateway, dave))[1] == {**dave, "new": False}
    assert await number(gateway, dave) == place
    assert (await hello(gateway, again))[1] == {**again, "new": False}
    await gateway.close()


async def test_a_device_that_lost_the_welcome_with_its_new_key_gets_it_again(tmp_path: Path) -> None:
    gateway, carol, _ = await rolled_back(tmp_path)
    _, first = await hello(gateway, carol)
    client, second = await hello(gateway, carol, device={"model": "X"})
    assert second == first
    assert (await client.request(type="get_device", id=1))["device"] == {"model": "X"}
    assert (await hello(gateway, second))[1] == {**first, "new": False}
    await gateway.close()


async def test_a_key_beyond_all_numbers_proves_that_the_log_went_back_and_reserves_them(tmp_path: Path) -> None:
    gateway, carol, place = await rolled_back(tmp_path)
    _, again = await hello(gateway, carol)
    assert await number(gateway, again) == (place[0], place[1] + 1 + LOST_MARGIN)
    assert gateway.apps.is_lost(ANDROID, *place)
    assert gateway.apps.is_lost(ANDROID, place[0], place[1] + LOST_MARGIN)
    while True:
        _, other = await hello(gateway)
        if (found := await number(gateway, other))[0] == place[0]:
            break
    assert found[1] == place[1] + 2 + LOST_MARGIN
    await gateway.close()
    later = RunningGateway(tmp_path / "snapshot")
    await later.open()
    assert (await hello(later, again))[1] == {**again, "new": False}
    await later.close()


async def test_numbers_that_a_restore_reserved_register_their_tokens_anew(tmp_path: Path) -> None:
    gateway, carol, place = await rolled_back(tmp_path)
    reserve = DeviceCommand(appkey=ANDROID, reserve_numbers=ReserveNumbers(count=100))
    writer = CommandWriter("cli", gateway.log, gateway.context.peers, gateway.clock, PARTITIONS)
    await writer.append_and_wait([Command(DEVICE_COMMANDS, ANDROID.encode(), reserve, place[0])])
    await gateway.apps.refresh()
    _, again = await hello(gateway, carol)
    assert (again["token"], again["new"]) == (carol["token"], True)
    assert await number(gateway, again) == (place[0], place[1] + 100)
    await gateway.close()


async def test_a_log_that_lost_its_tail_below_the_states_is_refused_and_a_rebuild_keeps_the_numbers(
    tmp_path: Path,
) -> None:
    """As in Kafka, where states are on other disks than the log: they have read what the log has no more."""
    carol, place = await copied(tmp_path)
    live = tmp_path / "live"
    for file in live.glob("log.db*"):
        file.unlink()
    for file in (tmp_path / "snapshot").glob("log.db*"):
        shutil.copy2(file, live)
    gateway = RunningGateway(live)
    with pytest.raises(AssertionError, match=r"the log has gone back.*carillon restore --lost-devices N"):
        await gateway.open()
    await gateway.close()
    settings = RegistrySettings(partitions=PARTITIONS, data_dir=str(live))
    for _ in range(2):  # a rebuild that is repeated keeps the numbers too
        log = SqliteLog(live / "log.db", TOPICS)
        ends = await log.ends(
            Partition(each.name, n) for each in TOPICS.values() for n in range(each.partitions(PARTITIONS))
        )
        source = replay.ReplaySource(log, ends)
        await replay.rebuild(partial(open_state, settings), settings.state_dir("registry"), source, keep_given)
        await log.close()
    again = RunningGateway(live)
    await again.open()
    while True:
        _, dave = await hello(again)
        if (found := await number(again, dave))[0] == place[0]:
            break
    assert found == (place[0], place[1] + 1), "nobody gets carol's number"
    _, registered = await hello(again, carol)
    assert (registered["token"], registered["new"]) == (carol["token"], True)
    assert await number(again, registered) == (place[0], place[1] + 2)
    await again.close()


async def test_a_connected_device_whose_number_is_reserved_is_told_to_reconnect(gateway: RunningGateway) -> None:
    client, welcome = await hello(gateway)
    partition, lost = await number(gateway, welcome)
    numbers = BitMap([lost]).serialize()
    record = Revocations(appkey=ANDROID, partition=partition, numbers=numbers, lost=numbers)
    fact = AppFact(revocations=record)
    await gateway.log.append([NewRecord(APPS.name, 0, revocations_key(record), fact.SerializeToString())])
    assert await client.goodbye() == "draining"


async def test_connected_devices_are_confirmed_again_by_a_new_owner_of_the_registry(tmp_path: Path) -> None:
    """As where the log goes back below a running gateway, and the registry starts again on what is left."""
    instances = InstanceDirectory()
    gateway = RunningGateway(tmp_path, instances=instances)
    await gateway.open()
    client, carol = await hello(gateway)
    other, _ = await hello(gateway)
    place = await number(gateway, carol)
    with closing(sqlite3.connect(tmp_path / "registry" / DEVICES_FILE)) as rows, rows:
        rows.execute("DELETE FROM devices WHERE token = ?", (carol["token"],))
    alive = InstanceAlive(role="registry", address="registry:1", place="p", caught_up=True, epoch=7)
    instances.instances.apply(InstanceFact(instance="another", alive=alive), 0)
    instances.note_change()
    assert await client.goodbye() == "draining"
    assert (await other.request(type="get_device", id=1))["type"] == "ok"
    _, again = await hello(gateway, carol)
    assert (again["token"], again["new"]) == (carol["token"], True)
    assert await number(gateway, again) != place
    await gateway.close()


async def test_while_the_registry_does_not_answer_those_are_welcomed_that_it_has_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = RunningGateway(tmp_path)
    await earlier.open()
    _, absent = await hello(earlier)
    await earlier.close()
    instances = InstanceDirectory()
    gateway = RunningGateway(tmp_path, instances=instances)
    await gateway.open()

    async def refused(welcome: Welcome) -> bool:
        client = await DeviceClient.connect(gateway.port)
        client.send(type="hello", appkey=ANDROID, token=welcome["token"], key=welcome["key"])
        return await client.goodbye() == "draining"

    async def leave(client: DeviceClient) -> None:
        before = len(gateway.delivery.disconnected())
        client.transport.disconnect()
        await gateway.delivery.until(lambda: len(gateway.delivery.disconnected()) > before)

    async def away(*_: object, **__: object) -> list[int]:
        raise UnavailableError("the registry is away")

    client, left = await hello(gateway)
    await leave(client)
    older, connected = await hello(gateway)
    with monkeypatch.context() as registry_is_away:
        registry_is_away.setattr("services.gateway.device_requests.DeviceRequests._numbers", away)
        assert await refused(absent)
        client, again = await hello(gateway, left)
        assert (again["token"], again["new"]) == (left["token"], False)
        _, again = await hello(gateway, connected)
        assert (again["token"], again["new"]) == (connected["token"], False)
        assert await older.goodbye() == "replaced"
        alive = InstanceAlive(role="registry", address="registry:1", place="p", caught_up=True, epoch=7)
        instances.instances.apply(InstanceFact(instance="another", alive=alive), 0)
        instances.note_change()
        await leave(client)
        assert await refused(left), "the other owner may have another log"
        assert await refused(connected)
    client, _ = await hello(gateway, left)
    gateway.clock.move(2)
    await hello(gateway, absent)  # the other owner has confirmed the connected ones meanwhile
    await leave(client)
    with monkeypatch.context() as registry_is_away:
        registry_is_away.setattr("services.gateway.device_requests.DeviceRequests._numbers", away)
        await hello(gateway, left)
    await gateway.close()
