"""Targeting on an embedded log, called within the process and over a socket."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from protos.push.v1.push_pb2 import (
    ActivityClause,
    Attribute,
    AttributeClause,
    Audience,
    Comparison,
    Devices,
    Everyone,
    Filter,
    StagGroup,
    TagGroup,
    Tokens,
)
from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    App,
    AppFact,
    Identity,
    Revocations,
)
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.apps import AppDirectory
from services.domain.topics import APPS, DEVICES
from services.errors import InputError, UnavailableError
from services.log.port import NewRecord
from services.net.rpc.channel import Channel, connect
from services.net.rpc.server import serve
from testkit.services import running_services
from tests.services.targeting.conftest import TargetingHarness, local_channel, resolve
from tests.services.targeting.model import APP, NOON_MS, PARTITIONS, device_record, expected, opens_record


def _devices(count: int) -> list[Device]:
    return [
        Device(
            appkey=APP,
            partition=n % PARTITIONS,
            number=n // PARTITIONS,
            tags=[tag for tag in (1, 2, 3) if n % (tag + 1) == 0],
            stags=["even"] if n % 2 == 0 else [],
            attributes=Attributes(region=f"r{n % 5}"),
        )
        for n in range(count)
    ]


_WANTED = Filter(
    tags=[TagGroup(tags=[1, 2]), TagGroup(tags=[3])],
    attributes=[AttributeClause(attribute=Attribute.ATTRIBUTE_REGION, values=["r0", "r1", "r4"])],
)
_ACTIVE = Filter(activity=[ActivityClause(days=7, comparison=Comparison.COMPARISON_GREATER_OR_EQUAL, opens=1)])


async def _count(channel: Channel, audience: Audience, appkey: str = APP) -> int:
    request = ResolveRequest(appkey=appkey, audience=audience, partitions=range(PARTITIONS))
    return sum(part.count for part in (await TargetingServiceStub(channel).Resolve(request)).partitions)


async def test_a_written_device_is_found_once_its_position_is_applied(harness: TargetingHarness) -> None:
    devices = _devices(100)
    async with harness.running() as channel:
        await harness.write(channel, [device_record(device) for device in devices])
        assert await resolve(channel, _WANTED) == expected(devices, [], _WANTED, NOON_MS)
        assert await resolve(channel, _WANTED, [1]) == {
            key for key in expected(devices, [], _WANTED, NOON_MS) if key[0] == 1
        }
        devices[0].removed_ms = 1
        await harness.write(channel, [device_record(devices[0])])
        assert (0, 0) not in await resolve(channel, Filter())


async def test_revoked_devices_are_in_no_audience(harness: TargetingHarness) -> None:
    devices = _devices(100)
    revocations = Revocations(appkey=APP, partition=1, below=5, numbers=BitMap([7]).serialize())
    revoked = NewRecord(DEVICES.name, 1, APP.encode(), DeviceFact(revocations=revocations).SerializeToString())
    async with harness.running() as channel:
        await harness.write(channel, [device_record(device) for device in devices])
        await harness.write(channel, [revoked])
        gone = {(1, number) for number in (0, 1, 2, 3, 4, 7)}
        for wanted in (Filter(), _WANTED, Filter(stags=[StagGroup(stags=["even"])])):
            assert await resolve(channel, wanted) == expected(devices, [], wanted, NOON_MS) - gone


async def test_a_device_is_in_no_audience_under_a_former_number(harness: TargetingHarness) -> None:
    """Compaction may have dropped the record that removed the device under that number."""
    devices = _devices(12)
    async with harness.running() as channel:
        await harness.write(channel, [device_record(device) for device in devices])
        devices[0].number = 50
        devices[0].former_numbers.append(0)
        await harness.write(channel, [device_record(devices[0])])
        assert await resolve(channel, Filter()) == expected(devices, [], Filter(), NOON_MS)


async def test_everyone_is_every_device_of_the_app(harness: TargetingHarness) -> None:
    async with harness.running() as channel:
        await harness.write(channel, [device_record(device) for device in _devices(200)])
        assert await _count(channel, Audience(filter=_WANTED)) == len(await resolve(channel, _WANTED)) > 0
        assert await _count(channel, Audience(everyone=Everyone())) == 200
        assert await _count(channel, Audience(everyone=Everyone()), "9999999999") == 0


async def test_answers_and_errors_are_the_same_over_a_socket(harness: TargetingHarness, tmp_path: Path) -> None:
    role = harness.build()
    server = serve([f"unix:{tmp_path}/t.sock"])
    for add in role.servicers:
        add(server)
    await server.start()
    channel = connect(f"unix:{tmp_path}/t.sock")
    ready = asyncio.Event()
    running = asyncio.create_task(role.services[0].run(ready))
    try:
        await asyncio.wait_for(ready.wait(), 60)
        await harness.write(channel, [device_record(device) for device in _devices(100)])
        assert await resolve(channel, _WANTED) == await resolve(local_channel(role), _WANTED) != set()
        with pytest.raises(InputError, match="everyone or a filter"):
            await _count(channel, Audience(tokens=Tokens(tokens=["t"])))
    finally:
        await channel.close()
        await server.stop(None)
        running.cancel()
        await asyncio.wait([running])


@pytest.mark.parametrize(
    ("audience", "problem"),
    [
        (Audience(), "everyone or a filter"),
        (Audience(devices=Devices()), "everyone or a filter"),
        (Audience(filter=Filter(tags=[TagGroup()])), "filter.tags"),
        (Audience(filter=Filter(not_stags=[StagGroup()])), "filter.not_stags"),
        (Audience(filter=Filter(attributes=[AttributeClause(values=["x"])])), "filter.attributes"),
        (Audience(filter=Filter(activity=[ActivityClause(days=7, opens=1)])), "filter.activity"),
        (
            Audience(filter=Filter(activity=[ActivityClause(days=8, comparison=Comparison.COMPARISON_LESS)])),
            "filter.activity",
        ),
    ],
)
async def test_an_invalid_audience_is_an_input_error(
    harness: TargetingHarness, audience: Audience, problem: str
) -> None:
    async with harness.running() as channel:
        with pytest.raises(InputError, match=problem):
            await TargetingServiceStub(channel).Resolve(ResolveRequest(appkey=APP, audience=audience, partitions=[0]))


async def test_a_partition_of_another_instance_is_unavailable(harness: TargetingHarness) -> None:
    """The request is not at fault: the roles were started with different numbers of shards."""
    async with harness.running() as channel:
        with pytest.raises(UnavailableError, match="does not own partition"):
            await resolve(channel, Filter(), [PARTITIONS])


async def test_queries_fail_before_the_log_is_read_and_after_the_stop(harness: TargetingHarness) -> None:
    role = harness.build()
    with pytest.raises(UnavailableError):
        await resolve(local_channel(role), Filter())
    async with harness.running() as channel:
        assert await resolve(channel, Filter()) == set()
    with pytest.raises(UnavailableError):
        await resolve(channel, Filter())


async def test_windows_are_days_of_24_hours_exact_to_the_hour(harness: TargetingHarness) -> None:
    """An open at noon counts until the hour ends that begins seven times 24 hours later."""
    async with harness.running() as channel:
        device = Device(appkey=APP, partition=0, number=0)
        await harness.write(channel, [device_record(device), opens_record(0, [(0, NOON_MS)])])
        assert await resolve(channel, _ACTIVE) == {(0, 0)}
        harness.clock.move(7 * 86_400 + 3_599)
        assert await resolve(channel, _ACTIVE) == {(0, 0)}
        harness.clock.move(1)
        assert await resolve(channel, _ACTIVE) == set()


async def test_where_proofs_are_required_an_identity_tag_is_one_that_the_device_has_proven(
    harness: TargetingHarness,
) -> None:
    def tagged(number: int, **fields: Any) -> Device:
        return Device(appkey=APP, token=f"t{number}", partition=1, number=number, **fields)

    proven = tagged(0, stags=["news", "user:alice"], proven_stags=["user:alice"], tags=[7], proven_tags=[7])
    posing = tagged(1, stags=["news", "user:alice"], tags=[7])
    apps = AppDirectory(harness.log)
    filters = {
        "stags": Filter(stags=[StagGroup(stags=["user:alice"])]),
        "tags": Filter(tags=[TagGroup(tags=[7])]),
        "not_stags": Filter(not_stags=[StagGroup(stags=["user:alice"])]),
    }
    async with harness.running(apps=apps) as channel, running_services([apps]):
        await harness.write(channel, [device_record(proven), device_record(posing)])
        for mode, found in (
            (IDENTITY_MODE_ACCEPT, {"stags": {0, 1}, "tags": {0, 1}, "not_stags": set()}),
            (IDENTITY_MODE_REQUIRE, {"stags": {0}, "tags": {0}, "not_stags": {1}}),
            (IDENTITY_MODE_OFF, {"stags": {0, 1}, "tags": {0, 1}, "not_stags": set()}),
        ):
            app = App(appkey=APP, identity=Identity(mode=mode, tags=["user:*", "7"]))
            fact = AppFact(app=app)
            await harness.log.append([NewRecord(APPS.name, 0, APP.encode(), fact.SerializeToString())])
            await apps.refresh()
            for name, wanted in filters.items():
                assert {number for _, number in await resolve(channel, wanted)} == found[name], (mode, name)
            news = await resolve(channel, Filter(stags=[StagGroup(stags=["news"])]))
            assert {number for _, number in news} == {0, 1}
        gone = tagged(0, stags=["news"])
        await harness.write(channel, [device_record(gone)])
        assert {number for _, number in await resolve(channel, filters["stags"])} == {1}
