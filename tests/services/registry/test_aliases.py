"""Alias look-ups: the devices of an alias, most recently active first, at most ten."""

import itertools

import msgspec

from protos.gateway.v1.sessions_pb2 import (
    SESSION_EVENT_KIND_APP_OPENED,
    SESSION_EVENT_KIND_LOGGED_IN,
    SESSION_EVENT_KIND_OPENED,
)
from protos.registry.v1.apps_pb2 import (
    IDENTITY_MODE_ACCEPT,
    IDENTITY_MODE_OFF,
    IDENTITY_MODE_REQUIRE,
    App,
    IdentityMode,
)
from protos.registry.v1.devices_pb2 import AliasLost, RemoveDevice
from protos.registry.v1.registry_pb2 import FindAliasesRequest, IdentityChange, IdentityKeys, UpdateAppRequest
from services.domain.topics import DEVICE_COMMANDS, decode, device_key
from services.log.sqlite.log import SqliteLog
from services.log.topics import partition_of
from services.process.metrics import ALIASES_LOST
from services.registry.settings import RegistrySettings
from testkit.proofs import ProofKey
from tests.services.registry.conftest import (
    NOON_MS,
    RunningRegistry,
    Start,
    alias_cleared,
    clear_alias,
    command,
    position_of_fact,
    records,
    register,
    set_alias,
)


async def join(registry: RunningRegistry, app: App, alias: str, *tokens: str, start_ms: int = NOON_MS) -> None:
    """Register the devices and set their alias, one millisecond after the other."""
    moments = itertools.count(start_ms)
    await registry.apply(*(register(app, token, next(moments)) for token in tokens))
    for token in tokens:
        await registry.apply(set_alias(app, token, alias, next(moments)))


async def tokens_of(registry: RunningRegistry, app: App, alias: str) -> list[str]:
    return [device.token for device in await registry.alias(app.appkey, alias)]


async def test_devices_are_ordered_by_latest_activity(registry: RunningRegistry) -> None:
    app = await registry.app()
    await join(registry, app, "alice", "a", "b", "c")
    assert await tokens_of(registry, app, "alice") == ["c", "b", "a"]
    device = await registry.device(app.appkey, "b")
    assert device is not None
    await registry.report(device, SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 1000)
    first, *others = await registry.alias(app.appkey, "alice")
    assert (first.token, first.partition, first.number) == ("b", device.partition, device.number)
    assert first.last_active_ms == NOON_MS + 1000
    assert [other.token for other in others] == ["c", "a"]
    for token in ("c", "a", "b"):
        opened = await registry.device(app.appkey, token)
        assert opened is not None
        await registry.report(opened, SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 2000)
    equal = [(device.partition, device.number) for device in await registry.alias(app.appkey, "alice")]
    assert equal == sorted(equal)


async def test_a_connection_is_no_activity(registry: RunningRegistry) -> None:
    """The phone in the drawer connects again after that in the hand was used."""
    app = await registry.app()
    await join(registry, app, "alice", "drawer", "hand")
    devices = {token: await registry.device(app.appkey, token) for token in ("drawer", "hand")}
    for kind, token, at_ms in (
        (SESSION_EVENT_KIND_APP_OPENED, "drawer", 1000),
        (SESSION_EVENT_KIND_LOGGED_IN, "hand", 2000),
        (SESSION_EVENT_KIND_OPENED, "drawer", 3000),
    ):
        device = devices[token]
        assert device is not None
        await registry.report(device, kind, NOON_MS + at_ms)
    assert await tokens_of(registry, app, "alice") == ["hand", "drawer"]
    assert [device.last_active_ms for device in await registry.alias(app.appkey, "alice")] == [
        NOON_MS + 2000,
        NOON_MS + 1000,
    ]


async def test_an_alias_changes_with_its_devices(registry: RunningRegistry) -> None:
    app = await registry.app()
    await join(registry, app, "alice", "a", "b", "c")
    await registry.apply(set_alias(app, "a", "bob", NOON_MS + 50), clear_alias(app, "b"))
    assert await tokens_of(registry, app, "alice") == ["c"]
    assert await tokens_of(registry, app, "bob") == ["a"]
    await registry.apply(command(app, "c", remove=RemoveDevice()))
    assert await tokens_of(registry, app, "alice") == []
    await registry.apply(register(app, "c", NOON_MS + 60))
    assert await tokens_of(registry, app, "alice") == []


async def test_aliases_are_answered_in_request_order_and_belong_to_their_app(registry: RunningRegistry) -> None:
    weather, news = await registry.app(), await registry.app()
    await join(registry, weather, "alice", "a")
    await join(registry, weather, "陈'\"\\", "b")
    await join(registry, news, "alice", "c")
    request = FindAliasesRequest(appkey=weather.appkey, aliases=["陈'\"\\", "none", "alice", "陈'\"\\"])
    found = (await registry.stub.FindAliases(request)).aliases
    assert [[device.token for device in one.devices] for one in found] == [["b"], [], ["a"], ["b"]]
    assert await tokens_of(registry, news, "alice") == ["c"]


async def test_the_eleventh_device_replaces_the_least_recently_active_one(registry: RunningRegistry) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(10)]
    await join(registry, app, "alice", *tokens)
    oldest = await registry.device(app.appkey, "t0")
    assert oldest is not None
    await registry.report(oldest, SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 500)
    await join(registry, app, "alice", "newcomer", start_ms=NOON_MS + 1000)
    assert await tokens_of(registry, app, "alice") == ["newcomer", "t0", *reversed(tokens[2:])]
    await registry.peers.wait_applied([await alias_cleared(registry.log, "t1")])
    assert await tokens_of(registry, app, "alice") == ["newcomer", "t0", *reversed(tokens[2:])]
    dropped = await registry.device(app.appkey, "t1")
    assert dropped is not None
    assert not dropped.HasField("alias")
    assert (await registry.verify()).equal


async def prove(registry: RunningRegistry, app: App, alias: str, *tokens: str, start_ms: int = NOON_MS) -> None:
    """Register the devices and set their alias with a proof, one millisecond after the other."""
    await registry.apply(*(register(app, token, start_ms) for token in tokens))
    for at_ms, token in enumerate(tokens, start_ms):
        await registry.apply(set_alias(app, token, alias, at_ms, proven=True))


async def test_devices_without_a_proof_neither_lead_nor_evict_those_with_one(registry: RunningRegistry) -> None:
    app = await registry.app()
    await set_mode(registry, app, IDENTITY_MODE_ACCEPT)
    await prove(registry, app, "alice", "victim", "tablet")
    attackers = [f"attacker{index}" for index in range(20)]
    await join(registry, app, "alice", *attackers, start_ms=NOON_MS + 1000)
    opened = await registry.device(app.appkey, "attacker19")
    assert opened is not None
    await registry.report(opened, SESSION_EVENT_KIND_APP_OPENED, NOON_MS + 5000)
    for token in attackers[:12]:
        await registry.peers.wait_applied([await alias_cleared(registry.log, token)])
    found = await registry.alias(app.appkey, "alice")
    assert [device.token for device in found] == ["tablet", "victim", "attacker19", *reversed(attackers[12:19])]
    assert [device.proven for device in found] == [True, True] + [False] * 8
    assert (await registry.verify()).equal


async def test_beside_ten_proven_devices_one_without_a_proof_is_dropped_itself(registry: RunningRegistry) -> None:
    app = await registry.app()
    await set_mode(registry, app, IDENTITY_MODE_ACCEPT)
    proven = [f"t{index}" for index in range(10)]
    await prove(registry, app, "alice", *proven)
    await join(registry, app, "alice", "thief", start_ms=NOON_MS + 1000)
    assert await tokens_of(registry, app, "alice") == list(reversed(proven))
    await registry.peers.wait_applied([await position_of_fact(registry.log, lambda d: d.HasField("alias_lost"))])
    lost = await registry.device(app.appkey, "thief")
    assert lost is not None
    assert (lost.alias_lost.alias, lost.alias_lost.to_token, lost.alias_lost.was_proven) == ("alice", "", False)
    await prove(registry, app, "alice", "newcomer", start_ms=NOON_MS + 2000)
    assert await tokens_of(registry, app, "alice") == ["newcomer", *reversed(proven[1:])]
    await registry.peers.wait_applied([await alias_cleared(registry.log, "t0")])
    replaced = await registry.device(app.appkey, "t0")
    assert replaced is not None
    assert (replaced.alias_lost.to_token, replaced.alias_lost.to_proven, replaced.alias_lost.was_proven) == (
        "newcomer",
        True,
        True,
    )
    assert (await registry.verify()).equal


async def test_where_proofs_are_required_others_are_not_found(registry: RunningRegistry) -> None:
    app = await registry.app()
    await join(registry, app, "alice", "old", "upgraded")
    await prove(registry, app, "alice", "proven", start_ms=NOON_MS + 10)
    assert await tokens_of(registry, app, "alice") == ["proven", "upgraded", "old"]
    await set_mode(registry, app, IDENTITY_MODE_REQUIRE)
    assert await tokens_of(registry, app, "alice") == ["proven"]
    await registry.apply(set_alias(app, "upgraded", "alice", NOON_MS + 20, proven=True))
    assert await tokens_of(registry, app, "alice") == ["proven", "upgraded"]
    await registry.apply(set_alias(app, "upgraded", "alice", NOON_MS + 30))
    assert await tokens_of(registry, app, "alice") == ["proven", "upgraded"]
    await set_mode(registry, app, IDENTITY_MODE_OFF)
    assert await tokens_of(registry, app, "alice") == ["proven", "upgraded", "old"]
    assert (await registry.verify()).equal


async def test_a_device_that_proves_its_alias_before_it_is_cleared_keeps_it(registry: RunningRegistry) -> None:
    app = await registry.app()
    await set_mode(registry, app, IDENTITY_MODE_ACCEPT)
    tokens = [f"t{index}" for index in range(11)]
    await registry.apply(*(register(app, token) for token in tokens))
    # the proof of t0 follows the eleventh device at once, so the command that clears t0 may be before or behind it
    named = [set_alias(app, token, "alice", at_ms) for at_ms, token in enumerate(tokens, NOON_MS)]
    await registry.apply(*named, set_alias(app, "t0", "alice", NOON_MS + 50, proven=True))
    await registry.apply(set_alias(app, "t0", "alice", NOON_MS + 60, proven=True))
    await registry.peers.wait_applied([await alias_cleared(registry.log, "t1")])
    found = await tokens_of(registry, app, "alice")
    assert found[0] == "t0"
    assert len(found) in (9, 10)
    assert (await registry.verify()).equal


async def test_the_eleventh_device_and_loss_without_proofs_are_recorded(registry: RunningRegistry) -> None:
    app = await registry.app()
    lost_before = ALIASES_LOST.labels("unproven")._value.get()
    await join(registry, app, "alice", *(f"t{index}" for index in range(11)))
    await registry.peers.wait_applied([await alias_cleared(registry.log, "t0")])
    lost = await registry.device(app.appkey, "t0")
    assert lost is not None
    assert lost.alias_lost == AliasLost(
        alias="alice", lost_ms=lost.alias_lost.lost_ms, to_token="t10", to_proven=False, was_proven=False
    )
    assert ALIASES_LOST.labels("unproven")._value.get() == lost_before + 1


async def set_mode(registry: RunningRegistry, app: App, mode: "IdentityMode.ValueType") -> None:
    change = IdentityChange(mode=mode, keys=IdentityKeys(pems=[ProofKey().public_pem]))
    await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, identity=change))


async def test_a_new_device_is_added_whatever_its_clock_says(registry: RunningRegistry) -> None:
    app = await registry.app()
    await join(registry, app, "alice", *(f"t{index}" for index in range(10)))
    await join(registry, app, "alice", "late", start_ms=NOON_MS - 5000)
    assert "late" in await tokens_of(registry, app, "alice")
    assert "t0" not in await tokens_of(registry, app, "alice")


async def test_each_surplus_device_is_cleared_by_one_command(registry: RunningRegistry) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(25)]
    await join(registry, app, "alice", *tokens)
    for token in tokens[:15]:
        await registry.peers.wait_applied([await alias_cleared(registry.log, token)])
    assert await tokens_of(registry, app, "alice") == list(reversed(tokens[15:]))
    commands = await records(registry.log, DEVICE_COMMANDS.name)
    assert sum(decode(record).meta.writer == "registry-aliases" for record in commands) == 15
    assert (await registry.verify()).equal


async def test_an_alias_is_answered_by_the_instance_that_owns_it(
    start: Start, log: SqliteLog, settings: RegistrySettings
) -> None:
    halves = [msgspec.structs.replace(settings, shard=shard, shards=2) for shard in range(2)]
    async with start(log, halves[0]) as first, start(log, halves[1]) as second:
        app = await first.app()
        await second.apps.refresh()
        aliases = [f"user{index}" for index in range(20)]
        commands = [register(app, alias) for alias in aliases] + [set_alias(app, alias, alias) for alias in aliases]
        positions = await first.write(*commands)
        for registry in (first, second):
            await registry.peers.wait_applied(positions)
        await first.peers.wait_applied([await position_of_fact(log, lambda d: d.alias == "user19")])
        await second.peers.wait_applied([await position_of_fact(log, lambda d: d.alias == "user19")])
        for alias in aliases:
            owner = partition_of(device_key(app.appkey, alias), 2)
            assert await tokens_of((first, second)[owner], app, alias) == [alias]
            assert await tokens_of((second, first)[owner], app, alias) == []


async def test_a_rebuilt_index_does_not_repeat_earlier_decisions(start: Start, log: SqliteLog) -> None:
    """It applies records whose surplus devices were cleared long ago, and writes no commands for them."""
    async with start() as registry:
        app = await registry.app()
        tokens = [f"t{index}" for index in range(13)]
        await join(registry, app, "alice", *tokens)
        for token in tokens[:3]:
            await registry.peers.wait_applied([await alias_cleared(log, token)])
        before = await records(log, DEVICE_COMMANDS.name)
        directory = registry.settings.state_dir("registry")
    for path in directory.iterdir():
        path.unlink()
    async with start() as registry:
        assert await tokens_of(registry, app, "alice") == list(reversed(tokens[3:]))
        await registry.apply(register(app, "another"))
        assert len(await records(log, DEVICE_COMMANDS.name)) == len(before) + 1
