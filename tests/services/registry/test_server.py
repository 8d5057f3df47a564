"""Devices in a running registry: commands in the log, the facts that follow, and look-ups afterwards."""

import itertools
from collections import defaultdict
from pathlib import Path

from protos.gateway.v1.sessions_pb2 import (
    SESSION_EVENT_KIND_APP_OPENED,
    SESSION_EVENT_KIND_CLOSED,
    SESSION_EVENT_KIND_LOGGED_IN,
    SESSION_EVENT_KIND_LOGGED_OUT,
    SESSION_EVENT_KIND_OPENED,
)
from protos.registry.v1.devices_pb2 import AddTags, RemoveDevice
from protos.registry.v1.registry_pb2 import (
    FindAliasesRequest,
    FindDevicesRequest,
    GetDevicesRequest,
    GetTokensRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.topics import DEVICE_COMMANDS, DEVICES, device_key
from services.log.port import NewRecord
from services.log.topics import partition_of
from services.net.rpc.channel import connect
from services.net.rpc.server import serve
from tests.services.registry.conftest import (
    NOON_MS,
    PARTITIONS,
    RunningRegistry,
    Start,
    command,
    command_record,
    device_facts,
    records,
    register,
    set_alias,
)


async def test_a_registered_device_is_found(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t1", model="X1"))
    device = await registry.device(app.appkey, "t1")
    assert device is not None
    assert device.attributes.model == "X1"
    assert device.partition == partition_of(device_key(app.appkey, "t1"), PARTITIONS)
    assert device.number == 0
    assert await registry.device(app.appkey, "t2") is None


async def test_numbers_are_dense_inside_an_app_and_a_partition(registry: RunningRegistry, start: Start) -> None:
    weather, news = await registry.app(), await registry.app()
    tokens = [f"t{index}" for index in range(40)]
    await registry.apply(*(register(app, token) for token in tokens for app in (weather, news)))
    await registry.apply(*(register(app, f"late{token}") for token in tokens for app in (weather, news)))
    numbers = defaultdict(list)
    for app, token in itertools.product((weather, news), [*tokens, *(f"late{token}" for token in tokens)]):
        device = await registry.device(app.appkey, token)
        assert device is not None
        numbers[app.appkey, device.partition].append(device.number)
    assert len(numbers) == 2 * PARTITIONS
    assert all(sorted(given) == list(range(len(given))) for given in numbers.values())


async def test_a_removed_device_is_not_found_and_registers_again_under_its_number(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(*(register(app, f"t{index}") for index in range(20)))
    before = await registry.device(app.appkey, "t3")
    assert before is not None
    await registry.apply(command(app, "t3", remove=RemoveDevice(reason="Unregistered")))
    assert await registry.device(app.appkey, "t3") is None
    assert await registry.numbers(app.appkey, ["t3"]) == [-1]
    tokens = GetTokensRequest(appkey=app.appkey, partition=before.partition, numbers=[before.number])
    assert (await registry.stub.GetTokens(tokens)).tokens == [""]
    await registry.apply(register(app, "other"), register(app, "t3", NOON_MS + 1))
    after = await registry.device(app.appkey, "t3")
    assert after is not None
    assert (after.partition, after.number) == (before.partition, before.number)
    assert after.registered_ms == NOON_MS + 1
    assert (await registry.stub.GetTokens(tokens)).tokens == ["t3"]


async def test_facts_name_the_command_that_caused_them(registry: RunningRegistry) -> None:
    app = await registry.app()
    first, second = register(app, "t"), command(app, "t", add_tags=AddTags(tags=[1]))
    second.meta.origin.request_id = "r-1"
    (where,) = await registry.write(first)
    await registry.peers.wait_applied([where])
    (after,) = await registry.write(second)
    await registry.peers.wait_applied([after])
    (fact,) = await device_facts(registry.log)
    assert fact.meta.cause == after
    assert (fact.meta.writer, fact.meta.time_ms, fact.meta.origin.request_id) == ("registry", NOON_MS, "r-1")


async def test_a_command_written_twice_counts_once(registry: RunningRegistry) -> None:
    app = await registry.app()
    alice, bob = set_alias(app, "t", "alice"), set_alias(app, "t", "bob", NOON_MS + 1)
    await registry.apply(register(app, "t"), alice, bob, alice)
    device = await registry.device(app.appkey, "t")
    assert device is not None
    assert device.alias == "bob"
    (last,) = [each for each in await records(registry.log, DEVICES.name) if each.key.endswith(b"/t")]
    assert last.offset == 3  # behind the announcement of the owner and two other records


async def test_commands_that_change_nothing_leave_no_fact(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t"))
    await registry.apply(
        register(app, "t"),
        command(app, "t", add_tags=AddTags()),
        command(app, "unknown", add_tags=AddTags(tags=[1])),
        register("1999999999", "t"),
    )
    assert [fact.device.token for fact in await device_facts(registry.log)] == ["t"]


async def test_misplaced_and_undecodable_commands_are_dead_lettered(registry: RunningRegistry) -> None:
    app = await registry.app()
    good = command_record(register(app, "t"))
    await registry.log.append(
        [
            good._replace(partition=(good.partition + 1) % PARTITIONS),
            NewRecord(DEVICE_COMMANDS.name, 0, b"", b"\xff\xff"),
        ]
    )
    await registry.apply(register(app, "u"))
    dead_letters = Path(registry.settings.data_dir) / "dead-letters" / "registry.jsonl"
    await registry.peers.wait_applied(await registry.write(*(register(app, f"u{index}") for index in range(20))))
    assert len(dead_letters.read_text().splitlines()) == 2
    assert await registry.numbers(app.appkey, ["t"]) == [-1]


async def test_lists_are_answered_in_request_order(registry: RunningRegistry) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(50)]
    await registry.apply(*(register(app, token) for token in tokens))
    tokens_requested = ["none", *reversed(tokens), "t7", "none"]
    numbers = await registry.numbers(app.appkey, tokens_requested)
    found = (await registry.stub.GetDevices(GetDevicesRequest(appkey=app.appkey, tokens=tokens_requested))).devices
    assert [device.token for device in found] == [token for token in tokens_requested if token != "none"]
    assert [device.number for device in found] == [number for number in numbers if number >= 0]
    await registry.apply(command(app, "t7", remove=RemoveDevice(reason="unregistered")))
    few = GetDevicesRequest(appkey=app.appkey, tokens=["t7", "t8"])
    assert [device.token for device in (await registry.stub.GetDevices(few)).devices] == ["t8"]
    few.removed_too = True
    assert [bool(device.removed_ms) for device in (await registry.stub.GetDevices(few)).devices] == [True, False]
    await registry.apply(register(app, "t7"))
    assert [index for index, number in enumerate(numbers) if number < 0] == [0, len(tokens_requested) - 1]
    assert await registry.numbers("1999999999", tokens) == [-1] * len(tokens)
    for partition in range(PARTITIONS):
        mine = {device.number: device.token for device in found if device.partition == partition}
        numbers = [*reversed(mine), 4_000_000_000, next(iter(mine))]
        request = GetTokensRequest(appkey=app.appkey, partition=partition, numbers=numbers)
        answered = (await registry.stub.GetTokens(request)).tokens
        assert answered == [mine.get(number, "") for number in numbers]


async def test_look_ups_are_the_same_over_a_socket(registry: RunningRegistry, tmp_path: Path) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(1000)]
    await registry.apply(*(register(app, token) for token in tokens[:500]))
    await registry.apply(set_alias(app, "t1", "alice"))
    server = serve([f"unix:{tmp_path}/registry.sock"])
    for add in registry.role.servicers:
        add(server)
    await server.start()
    channel = connect(f"unix:{tmp_path}/registry.sock")
    far, near = RegistryServiceStub(channel), registry.stub
    try:
        devices = FindDevicesRequest(appkey=app.appkey, tokens=tokens)
        answer = await far.FindDevices(devices)
        assert answer == await near.FindDevices(devices)
        assert [number > 0 for number in answer.numbers_plus_one] == [True] * 500 + [False] * 500
        aliases = FindAliasesRequest(appkey=app.appkey, aliases=["nobody", "alice"])
        assert await far.FindAliases(aliases) == await near.FindAliases(aliases)
        full = GetDevicesRequest(appkey=app.appkey, tokens=tokens)
        assert await far.GetDevices(full) == await near.GetDevices(full)
    finally:
        await channel.close()
        await server.stop(None)


async def test_a_second_start_restores_everything(start: Start) -> None:
    async with start() as first:
        app = await first.app()
        await first.apply(*(register(app, f"t{index}") for index in range(30)), set_alias(app, "t1", "alice"))
        numbers = await first.numbers(app.appkey, [f"t{index}" for index in range(30)])
    async with start() as second:
        assert await second.numbers(app.appkey, [f"t{index}" for index in range(30)]) == numbers
        assert [device.token for device in await second.alias(app.appkey, "alice")] == ["t1"]
        await second.apply(register(app, "t30"))
        assert await second.numbers(app.appkey, ["t30"]) != [-1]
        assert len(await device_facts(second.log)) == 31


async def test_the_latest_activity_counts(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "t"), set_alias(app, "t", "alice", NOON_MS + 1))
    device = await registry.device(app.appkey, "t")
    assert device is not None
    seen = []
    for kind, at_ms in (
        (SESSION_EVENT_KIND_CLOSED, 10),
        (SESSION_EVENT_KIND_OPENED, 20),
        (SESSION_EVENT_KIND_LOGGED_OUT, 30),
        (SESSION_EVENT_KIND_APP_OPENED, 15),
        (SESSION_EVENT_KIND_LOGGED_IN, 40),
        (SESSION_EVENT_KIND_APP_OPENED, 50),
    ):
        await registry.report(device, kind, NOON_MS + at_ms)
        (found,) = await registry.alias(app.appkey, "alice")
        seen.append(found.last_active_ms - NOON_MS)
    assert seen == [1, 1, 1, 15, 40, 50]
