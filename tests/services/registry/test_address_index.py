"""Addresses on channels: what commands do to a device, and which device of an app has an address."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given as examples_of
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import (
    CHANNEL_FCM,
    CHANNEL_UNSPECIFIED,
    CHANNEL_VIVO,
    CHANNEL_WEBPUSH,
    PLATFORM_ANDROID,
    PLATFORM_IOS,
    App,
    Channel,
    Revocations,
)
from protos.registry.v1.devices_pb2 import (
    Address,
    AddressLost,
    AddTags,
    BeginSession,
    ClearAddress,
    Device,
    DeviceCommand,
    DeviceFact,
    RemoveDevice,
    SetAddress,
)
from protos.registry.v1.registry_pb2 import (
    FindAddressesRequest,
    GetAddressesRequest,
    ListAddressesRequest,
    ListedAddress,
)
from protos.runtime.v1.log_pb2 import Meta
from services.domain.addresses import address_hash
from services.domain.ids import event_id
from services.domain.recorded_reasons import FixedReason
from services.domain.topics import DEVICE_COMMANDS, DEVICES, device_key
from services.errors import InputError
from services.log.port import NewRecord, Record
from services.log.sqlite.log import SqliteLog
from services.process.metrics import ADDRESSES_LOST
from services.registry.address_index import ADDRESSES_DDL, SWEEP_MS, AddressRules, AddressTable
from services.registry.decide import MAX_DEAD_REASON, FreeNumber, decide, removed
from services.registry.retirement import retired
from services.registry.settings import RegistrySettings
from services.replica.sqlite_store import SqliteStore
from testkit.examples import examples
from testkit.waiting import until
from tests.services.registry.conftest import (
    BOUND_S,
    NOON_MS,
    RunningRegistry,
    Start,
    command,
    position_of_fact,
    records,
    register,
)

APP = App(appkey="1000000001", platform=PLATFORM_ANDROID)
FREE = FreeNumber(partition=3, number=7)
LATER_MS = NOON_MS + 60_000
ENDPOINT = "https://push.example.org/wpush/v2/one"
OTHER = "https://push.example.org/wpush/v2/two"
P256DH, AUTH = b"\x04" + bytes(64), b"s" * 16
HASH = address_hash(CHANNEL_WEBPUSH, ENDPOINT)


def webpush(address: str = ENDPOINT, auth: bytes = AUTH) -> SetAddress:
    return SetAddress(channel=CHANNEL_WEBPUSH, address=address, p256dh=P256DH, auth=auth)


def held(address: str = ENDPOINT, since_ms: int = NOON_MS, auth: bytes = AUTH) -> Address:
    return Address(channel=CHANNEL_WEBPUSH, address=address, p256dh=P256DH, auth=auth, since_ms=since_ms)


def given(*addresses: Address, **fields: Any) -> Device:
    return Device(
        **{
            "appkey": APP.appkey,
            "token": "t",
            "platform": PLATFORM_ANDROID,
            "partition": 3,
            "number": 5,
            "registered_ms": NOON_MS,
            "addresses": addresses,
            **fields,
        }
    )


def when(device: Device, what: Any, app: App = APP) -> Device | None:
    name = {SetAddress: "set_address", ClearAddress: "clear_address", RemoveDevice: "remove"}[type(what)]
    return decide(command(app, "t", at_ms=LATER_MS, **{name: what}), device, app, FREE)


def test_an_address_is_set_replaced_and_cleared() -> None:
    assert when(given(), webpush()) == given(held(since_ms=LATER_MS))
    assert when(given(held()), webpush(OTHER)) == given(held(OTHER, LATER_MS))
    assert when(given(held()), ClearAddress(channel=CHANNEL_WEBPUSH)) == given()
    assert when(given(), ClearAddress(channel=CHANNEL_WEBPUSH)) is None


def test_a_repeated_address_writes_nothing_and_other_keys_replace_it() -> None:
    assert when(given(held()), webpush()) is None
    assert when(given(held()), webpush(auth=b"x" * 16)) == given(held(since_ms=LATER_MS, auth=b"x" * 16))


def test_a_device_has_one_address_on_each_channel() -> None:
    fcm = Address(channel=CHANNEL_FCM, address="fcm-token", since_ms=LATER_MS)
    vivo = Address(channel=CHANNEL_VIVO, address="v", since_ms=NOON_MS)
    with_three = when(given(held(), vivo), SetAddress(channel=CHANNEL_FCM, address="fcm-token"))
    assert with_three == given(held(), fcm, vivo)
    assert when(with_three, ClearAddress(channel=CHANNEL_WEBPUSH)) == given(fcm, vivo)


def test_a_dead_address_is_removed_and_its_end_is_remembered() -> None:
    dead = ClearAddress(channel=CHANNEL_WEBPUSH, only_hash=HASH, known_before_ms=NOON_MS + 1, dead_reason="410: gone")
    loss = AddressLost(channel=CHANNEL_WEBPUSH, hash=HASH, lost_ms=LATER_MS, dead_reason="410: gone")
    gone = given(addresses_lost=[loss])
    assert when(given(held()), dead) == gone
    assert when(gone, dead) is None
    assert when(gone, webpush(OTHER)) == given(held(OTHER, LATER_MS))
    dead.dead_reason = "x" * (MAX_DEAD_REASON + 1)
    cut = when(given(held()), dead)
    assert cut is not None
    assert cut.addresses_lost[0].dead_reason == "x" * MAX_DEAD_REASON


def test_a_late_answer_about_an_older_address_removes_nothing() -> None:
    dead = ClearAddress(channel=CHANNEL_WEBPUSH, only_hash=HASH, dead_reason="410: gone")
    assert when(given(held(OTHER)), dead) is None
    assert when(given(held()), dead) is not None
    # The device has set the same address again since the message was sent.
    dead.known_before_ms = LATER_MS
    assert when(given(held(since_ms=LATER_MS)), dead) is None
    assert when(given(held(since_ms=LATER_MS - 1)), dead) is not None


def test_an_address_that_another_device_sets_is_recorded_as_lost_to_it() -> None:
    taken = ClearAddress(channel=CHANNEL_WEBPUSH, only_hash=HASH, known_before_ms=NOON_MS + 1, to_token="other")
    loss = AddressLost(channel=CHANNEL_WEBPUSH, hash=HASH, lost_ms=LATER_MS, to_token="other")
    assert when(given(held()), taken) == given(addresses_lost=[loss])
    assert when(given(held(), addresses_lost=[]), ClearAddress(channel=CHANNEL_WEBPUSH)) == given()


def test_devices_of_ios_apps_and_unusable_commands_get_no_address() -> None:
    ios = App(appkey=APP.appkey, platform=PLATFORM_IOS)
    assert when(given(platform=PLATFORM_IOS), webpush(), ios) is None
    assert when(given(), SetAddress(channel=CHANNEL_UNSPECIFIED, address="x")) is None
    assert when(given(), SetAddress(channel=CHANNEL_FCM)) is None
    assert decide(command(APP, "t", set_address=webpush()), None, APP, FREE) is None


def test_a_device_that_is_removed_for_good_keeps_no_address() -> None:
    loss = AddressLost(channel=CHANNEL_FCM, hash=HASH, lost_ms=NOON_MS, dead_reason="x")
    unregistered = when(given(held(), addresses_lost=[loss]), RemoveDevice(reason="unregistered"))
    assert unregistered is not None
    assert not unregistered.addresses
    assert not unregistered.addresses_lost
    assert not removed(given(held()), Revocations(revoked_ms=LATER_MS)).addresses
    assert list(retired(given(held()), 0, LATER_MS).addresses) == [held()], "a silent device may come back"


# --- the running registry


def set_address(
    app: App, token: str, address: str, at_ms: int, channel: Channel.ValueType = CHANNEL_FCM
) -> DeviceCommand:
    return command(app, token, at_ms=at_ms, set_address=SetAddress(channel=channel, address=address))


def dead_address(app: App, token: str, address: str, reason: str, at_ms: int) -> DeviceCommand:
    clear = ClearAddress(channel=CHANNEL_FCM, only_hash=address_hash(CHANNEL_FCM, address), dead_reason=reason)
    return command(app, token, at_ms=at_ms, clear_address=clear)


async def addresses_of(
    registry: RunningRegistry, app: App, *tokens: str, channel: Channel.ValueType = CHANNEL_FCM
) -> list[str]:
    """Return the addresses of the devices as senders get them; "" for none."""
    found = []
    for token in tokens:
        device = await registry.device(app.appkey, token)
        assert device is not None
        request = GetAddressesRequest(
            appkey=app.appkey, partition=device.partition, numbers=[device.number], channel=channel
        )
        (address,) = (await registry.stub.GetAddresses(request)).addresses
        found.append(address.address)
    return found


async def test_devices_are_found_by_the_hashes_of_their_addresses(registry: RunningRegistry) -> None:
    app, other = await registry.app(), await registry.app()
    await registry.apply(register(app, "one"), register(app, "two"), register(other, "one"))
    await registry.apply(
        set_address(app, "one", "address-1", NOON_MS),
        set_address(app, "two", "address-2", NOON_MS),
        set_address(other, "one", "address-3", NOON_MS),
    )
    hashes = [address_hash(CHANNEL_FCM, f"address-{number}") for number in (2, 1, 3, 4)]
    request = FindAddressesRequest(appkey=app.appkey, hashes=[*hashes, address_hash(CHANNEL_VIVO, "address-1"), b""])
    assert list((await registry.stub.FindAddresses(request)).tokens) == ["two", "one", "", "", "", ""]
    await registry.apply(set_address(app, "two", "address-1", LATER_MS))
    assert list((await registry.stub.FindAddresses(request)).tokens)[:2] == ["", "two"]
    with pytest.raises(InputError, match="at most 1000"):
        await registry.stub.FindAddresses(FindAddressesRequest(appkey=app.appkey, hashes=[b"x"] * 1001))
    none = await registry.stub.FindAddresses(FindAddressesRequest(appkey=app.appkey))
    assert list(none.tokens) == []


async def listed(registry: RunningRegistry, app: App, **fields: Any) -> list[ListedAddress]:
    request = ListAddressesRequest(appkey=app.appkey, **{"limit": 100, **fields})
    return list((await registry.stub.ListAddresses(request)).addresses)


async def lost(registry: RunningRegistry, token: str) -> AddressLost:
    """Wait until the device has lost an address, and return how."""
    holds = await position_of_fact(registry.log, lambda device: device.token == token and bool(device.addresses_lost))
    await registry.peers.wait_applied([holds])
    found = await registry.device((await any_app(registry)).appkey, token)
    assert found is not None
    return found.addresses_lost[0]


async def any_app(registry: RunningRegistry) -> App:
    return registry.apps.all()[0]


async def test_an_address_moves_to_the_device_that_sets_it_last(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(*(register(app, token) for token in ("old", "new", "third")))
    await registry.apply(set_address(app, "old", "one", NOON_MS), set_address(app, "third", "three", NOON_MS))
    moved = ADDRESSES_LOST.labels("fcm", "moved")._value
    moved_before = moved.get()
    await registry.apply(set_address(app, "new", "one", NOON_MS + 1))
    loss = await lost(registry, "old")
    assert await addresses_of(registry, app, "old", "new", "third") == ["", "one", "three"]
    assert (loss.to_token, loss.dead_reason, loss.hash) == ("new", "", address_hash(CHANNEL_FCM, "one"))
    assert [each.token for each in await listed(registry, app)] == ["new", "third"]
    await registry.apply(set_address(app, "old", "one", NOON_MS + 2))
    assert (await lost(registry, "new")).to_token == "old"
    assert await addresses_of(registry, app, "old", "new") == ["one", ""]
    assert moved.get() == moved_before + 2
    commands = await records(registry.log, DEVICE_COMMANDS.name)
    assert sum(record.value.count(b"registry-aliases") for record in commands) == 2
    assert (await registry.verify()).equal


async def test_an_address_is_of_one_channel_and_one_app(registry: RunningRegistry) -> None:
    app, other = await registry.app(), await registry.app()
    await registry.apply(register(app, "a"), register(app, "b"), register(other, "a"))
    await registry.apply(
        set_address(app, "a", "same", NOON_MS),
        set_address(app, "b", "same", NOON_MS, CHANNEL_VIVO),
        set_address(other, "a", "same", NOON_MS),
    )
    assert await addresses_of(registry, app, "a") == ["same"]
    assert await addresses_of(registry, app, "b", channel=CHANNEL_VIVO) == ["same"]
    assert await addresses_of(registry, other, "a") == ["same"]
    assert [each.token for each in await listed(registry, app, channel=CHANNEL_VIVO)] == ["b"]


async def test_dead_addresses_are_listed_until_another_one_is_set(registry: RunningRegistry) -> None:
    app = await registry.app()
    tokens = [f"t{index}" for index in range(5)]
    await registry.apply(*(register(app, token) for token in tokens))
    await registry.apply(*(set_address(app, token, f"address of {token}", NOON_MS) for token in tokens))
    ends = (
        dead_address(app, token, f"address of {token}", f"gone {token}", NOON_MS + 1 + index // 2)
        for index, token in enumerate(tokens)
    )
    dead = ADDRESSES_LOST.labels("fcm", "dead")._value
    dead_before = dead.get()
    await registry.apply(*ends)
    assert dead.get() == dead_before + 5
    assert await addresses_of(registry, app, *tokens) == [""] * 5
    found = await listed(registry, app, dead=True)
    assert [each.token for each in found] == ["t4", "t2", "t3", "t0", "t1"]
    assert (found[0].dead_reason, found[0].dead_ms, found[0].since_ms) == ("gone t4", NOON_MS + 3, 0)
    for channel in (CHANNEL_UNSPECIFIED, CHANNEL_FCM):
        pages, after = [], None
        while page := await listed(registry, app, dead=True, channel=channel, limit=2, after=after):
            pages += page
            after = page[-1]
        assert pages == found
    await registry.apply(set_address(app, "t2", "a newer one", NOON_MS + 9))
    await registry.apply(command(app, "t3", remove=RemoveDevice()))
    assert [each.token for each in await listed(registry, app, dead=True)] == ["t4", "t0", "t1"]
    assert [each.token for each in await listed(registry, app)] == ["t2"]
    assert not await listed(registry, app, dead=True, channel=CHANNEL_WEBPUSH)
    with pytest.raises(InputError, match="limit"):
        await listed(registry, app, limit=0)
    assert (await registry.verify()).equal


async def test_a_removed_device_has_no_address_and_leaves_it_to_another(registry: RunningRegistry) -> None:
    app = await registry.app()
    await registry.apply(register(app, "a"), register(app, "b"))
    await registry.apply(set_address(app, "a", "one", NOON_MS))
    device = await registry.device(app.appkey, "a")
    assert device is not None
    await registry.apply(command(app, "a", remove=RemoveDevice()))
    request = GetAddressesRequest(
        appkey=app.appkey, partition=device.partition, numbers=[device.number, 999], channel=CHANNEL_FCM
    )
    assert list((await registry.stub.GetAddresses(request)).addresses) == [Address(), Address()]
    await registry.apply(set_address(app, "b", "one", NOON_MS + 1))
    await registry.apply(register(app, "a", NOON_MS + 2))
    assert await addresses_of(registry, app, "a", "b") == ["", "one"]


async def test_an_address_moves_between_instances(start: Start, log: SqliteLog, settings: RegistrySettings) -> None:
    halves = [msgspec.structs.replace(settings, shard=shard, shards=2) for shard in range(2)]
    async with start(log, halves[0]) as first, start(log, halves[1]) as second:
        app = await first.app()
        await second.apps.refresh()
        pairs = [(f"old{index}", f"new{index}", f"address {index}") for index in range(8)]
        commands = [register(app, token) for pair in pairs for token in pair[:2]]
        commands += [set_address(app, old, address, NOON_MS) for old, _, address in pairs]
        commands += [set_address(app, new, address, NOON_MS + 1) for _, new, address in pairs]
        positions = await first.write(*commands)
        for old, _, _ in pairs:
            positions.append(
                await position_of_fact(log, lambda d, old=old: d.token == old and bool(d.addresses_lost))  # type: ignore[misc]
            )
        for registry in (first, second):
            await registry.peers.wait_applied(positions)
        found: set[str] = set()
        for registry in (first, second):
            found.update(each.token for each in await listed(registry, app))
        assert found == {new for _, new, _ in pairs}


# --- random histories of the index


@dataclass
class World:
    """The devices of an app as a log of commands makes them, and the instances that index their addresses.

    `owners`: who set each address last, as long as nothing has ended that. `pending`: commands of the instances that
    the log holds and no one has decided yet.
    """

    instances: list[AddressRules]
    random: Random
    devices: dict[str, Device] = field(default_factory=dict)
    owners: dict[tuple[int, str], str] = field(default_factory=dict)
    pending: list[DeviceCommand] = field(default_factory=list)
    decided: list[DeviceCommand] = field(default_factory=list)
    facts: list[tuple[Record, DeviceFact]] = field(default_factory=list)
    time_ms: int = NOON_MS

    def carry_out(self, what: DeviceCommand) -> None:
        device = self.devices[what.token]
        what.meta.time_ms = self.time_ms = self.time_ms + 1
        after = decide(what, device, APP, FREE)
        if after is None:
            return
        is_of_index = bool(what.clear_address.to_token)  # it never takes an address from the one that set it last
        for address in () if is_of_index else device.addresses:
            key = address.channel, address.address
            if self.owners.get(key) == what.token and address not in after.addresses:
                del self.owners[key]
        if what.HasField("set_address"):
            self.owners[what.set_address.channel, what.set_address.address] = what.token
        self.write(after)

    def write(self, device: Device) -> None:
        self.devices[device.token] = device
        record = Record(DEVICES.name, device.partition, len(self.facts), b"", b"")
        fact = DeviceFact(meta=Meta(time_ms=self.time_ms), device=device)
        self.facts.append((record, fact))
        self._tell(record, fact)

    def _tell(self, record: Record, fact: DeviceFact) -> None:
        for instance in self.instances:
            instance.apply(record, fact)
            self.pending += [fact.message for fact in instance.decide(record, fact)]

    def repeat(self) -> None:
        """Have an instance read the latest record of a device again."""
        if self.facts:
            record, fact = self.random.choice(self.facts)
            if self.devices[fact.device.token] == fact.device:
                self._tell(record, fact)

    def decide_pending(self) -> None:
        """Decide one command of an instance, or a decided one once more, as after a crash."""
        if self.pending:
            self.decided.append(self.pending.pop(self.random.randrange(len(self.pending))))
            self.carry_out(self.decided[-1])
        elif self.decided:
            self.carry_out(self.random.choice(self.decided))


TOKENS = ["t1", "t2", "t3"]
KINDS = ["set"] * 6 + ["decide"] * 4 + ["clear", "dead", "late dead", "tag", "remove", "silent", "repeat", "kill"]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(TOKENS),
        st.sampled_from([CHANNEL_WEBPUSH, CHANNEL_FCM]),
        st.sampled_from(["x", "y"]),
    ),
    min_size=30,
    max_size=80,
)


@contextmanager
def two_instances() -> Iterator[tuple[list[AddressRules], list[SqliteStore]]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stores = [SqliteStore(Path(directory) / f"{shard}.sqlite", ADDRESSES_DDL) for shard in range(2)]
        for store in stores:
            stack.callback(store.close)
        yield [AddressRules(AddressTable(store), shard, 2, lambda: True) for shard, store in enumerate(stores)], stores


def act(world: World, kind: str, token: str, channel: Channel.ValueType, address: str, number: int) -> None:
    named = command(APP, token)
    match kind:
        case "set":
            named.set_address.CopyFrom(SetAddress(channel=channel, address=address, auth=b"%d" % (number % 2)))
        case "clear":
            named.clear_address.CopyFrom(ClearAddress(channel=channel))
        case "dead" | "late dead":
            of = address_hash(channel, address)
            before_ms = world.time_ms + 1 if kind == "dead" else world.time_ms - 5
            named.clear_address.CopyFrom(
                ClearAddress(channel=channel, only_hash=of, known_before_ms=before_ms, dead_reason="gone")
            )
        case "tag":
            named.add_tags.CopyFrom(AddTags(tags=[number]))
        case "remove":
            named.remove.CopyFrom(RemoveDevice())
        case "silent":
            if not world.devices[token].removed_ms:
                world.write(retired(world.devices[token], 0, world.time_ms))
            return
        case "repeat":
            world.repeat()
            return
        case _:
            world.decide_pending()
            return
    if world.devices[token].removed_reason == FixedReason.SILENT:
        world.carry_out(command(APP, token, begin_session=BeginSession()))
    elif world.devices[token].removed_ms:
        world.carry_out(register(APP, token))
    world.carry_out(named)


@run_settings(max_examples=examples(200), deadline=None)
@examples_of(OPERATIONS, st.randoms(use_true_random=False))
def test_an_address_never_stays_at_two_devices(drawn: Sequence[tuple[Any, ...]], random: Random) -> None:
    with two_instances() as (instances, stores), ExitStack() as stack:
        world = World(instances, random)
        for number, token in enumerate(TOKENS):
            world.devices[token] = given(token=token, number=number)
        for number, (kind, token, channel, address) in enumerate(drawn):
            if kind == "kill":
                # The file is lost: the states are built anew from the last records of the devices, in any order.
                world.instances, stores = stack.enter_context(two_instances())
                latest = [pair for pair in world.facts if world.devices[pair[1].device.token] == pair[1].device]
                random.shuffle(latest)
                for record, fact in latest:
                    for instance in world.instances:
                        instance.apply(record, fact)
            else:
                act(world, kind, token, channel, address, number)
            assert kept_of(stores) == latest_of(world.devices)
        while world.pending:
            world.decide_pending()
        registered = {token: device for token, device in world.devices.items() if not device.removed_ms}
        holders: dict[tuple[int, str], list[str]] = {}
        for token, device in registered.items():
            for one in device.addresses:
                holders.setdefault((one.channel, one.address), []).append(token)
        assert all(len(tokens) == 1 for tokens in holders.values()), holders
        owners = {key: token for key, token in world.owners.items() if token in registered}
        assert {key: holders.get(key) for key in owners} == {key: [token] for key, token in owners.items()}
        with two_instances() as (rebuilt, others):
            for record, fact in world.facts:
                for instance in rebuilt:
                    instance.apply(record, fact)
            assert [rows(store) for store in others] == [rows(store) for store in stores]


def latest_of(devices: Mapping[str, Device]) -> dict[bytes, str]:
    """Return the device that set each address last, of those that have it."""
    found: dict[bytes, tuple[int, str]] = {}
    for token, device in devices.items():
        for one in () if device.removed_ms else device.addresses:
            key = address_hash(one.channel, one.address)
            found[key] = max(found.get(key, (0, "")), (one.since_ms, token))
    return {key: token for key, (_, token) in found.items()}


def kept_of(stores: Sequence[SqliteStore]) -> dict[bytes, str]:
    """Return the devices that the indexes leave their addresses."""
    kept = [
        store.rows.execute("SELECT hash, token FROM addresses WHERE surplus_by IS NULL").fetchall() for store in stores
    ]
    assert len({hash_ for rows in kept for hash_, _ in rows}) == sum(map(len, kept))
    return {hash_: token for rows in kept for hash_, token in rows}


def rows(store: SqliteStore) -> list[list[tuple[Any, ...]]]:
    tables = ("addresses", "dead_addresses")
    return [store.rows.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


def test_a_standby_commands_nothing_and_an_owner_what_is_surplus_for_two_sweeps() -> None:
    is_owner = False
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteStore(Path(directory) / "index.sqlite", ADDRESSES_DDL)
        rules = AddressRules(AddressTable(store), 0, 1, lambda: is_owner)

        def fact(token: str, at_ms: int, offset: int) -> Sequence[Any]:
            device = given(held(since_ms=at_ms), token=token)
            record = Record(DEVICES.name, 0, offset, b"", b"")
            made = DeviceFact(meta=Meta(time_ms=at_ms), device=device)
            rules.apply(record, made)
            return rules.decide(record, made)

        assert not fact("a", NOON_MS, 0)
        assert not fact("b", NOON_MS + 1, 1)
        assert not [*rules.sweep(), *rules.sweep()]
        is_owner = True
        assert not fact("b", NOON_MS + 1, 2)
        assert [[each.message.token for each in rules.sweep()] for _ in range(3)] == [[], ["a"], ["a"]]
        assert [each.message.token for each in fact("c", NOON_MS + 2, 3)] == ["b"]
        assert [[each.message.token for each in rules.sweep()] for _ in range(2)] == [["a"], ["a", "b"]]
        store.close()


async def test_a_registry_without_its_state_clears_what_was_left_surplus(
    start: Start, log: SqliteLog, settings: RegistrySettings
) -> None:
    """It decides nothing about the records that the log holds already, of whose last ones nobody has decided."""
    async with start() as registry:
        app = await registry.app()
        await registry.apply(register(app, "old"), register(app, "new"))
        await registry.apply(set_address(app, "old", "one", NOON_MS))
    facts = [DeviceFact.FromString(record.value) for record in await records(log, DEVICES.name)]
    (fact,) = [fact for fact in facts if fact.device.token == "new"]
    fact.meta.event_id = event_id()
    fact.device.addresses.append(Address(channel=CHANNEL_FCM, address="one", since_ms=NOON_MS + 1))
    key = device_key(app.appkey, "new")
    await log.append([NewRecord(DEVICES.name, fact.device.partition, key, fact.SerializeToString())])
    shutil.rmtree(settings.state_dir("registry"))
    async with start() as registry:
        assert await addresses_of(registry, app, "old", "new") == ["", "one"]

        async def has_lost() -> bool:
            registry.clock.move(SWEEP_MS / 1000)
            device = await registry.device(app.appkey, "old")
            return device is not None and bool(device.addresses_lost)

        await until(has_lost, BOUND_S)
        assert (await lost(registry, "old")).to_token == "new"
        assert (await registry.verify()).equal
