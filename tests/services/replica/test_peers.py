"""Reading one's own writes: waiting along the chain of roles, each with a servicer."""

import asyncio
from typing import cast

import pytest

from protos.runtime.v1.log_pb2 import Position
from protos.runtime.v1.log_pb2_grpc import add_PositionsServiceServicer_to_server
from services.domain.topics import TOPICS
from services.errors import DeadlineError, PermissionDeniedError
from services.log.port import Partition
from services.net.rpc.channel import Channel
from services.net.rpc.local import LocalServer
from services.net.rpc.server import Server
from services.replica import peers
from services.replica.peers import Peers
from services.replica.positions import AppliedPositions, PositionsServicer

BOUND_S = 60.0
WRITTEN = Position(topic="device-commands", partition=2, offset=10)
COMMANDS, DEVICES = Partition("device-commands", 2), Partition("devices", 2)


def channel(*applied: AppliedPositions) -> Channel:
    """Return a channel to a role instance with these applied positions."""
    server = LocalServer()
    add_PositionsServiceServicer_to_server(PositionsServicer(*applied), cast(Server, server))
    return server.channel()


def refusing() -> Channel:
    """Return a channel to a role instance that refuses every call, as with a certificate of another authority."""

    def refuse() -> None:
        raise PermissionDeniedError("the certificate names no role that may call this")

    server = LocalServer()
    add_PositionsServiceServicer_to_server(PositionsServicer(check=refuse), cast(Server, server))
    return server.channel()


def reading(*topics: str, partitions: tuple[int, ...] = (0, 1, 2, 3)) -> AppliedPositions:
    """Return the positions of a role that has applied nothing yet."""
    applied = AppliedPositions()
    applied.advance({Partition(topic, number): 0 for topic in topics for number in partitions})
    return applied


async def turns(count: int = 50) -> None:
    """Let all ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_caller_waits_along_the_chain_until_the_last_role_has_applied_the_record() -> None:
    registry, aliases, targeting = reading("device-commands", "sessions"), reading("devices"), reading("devices")
    of_roles = {"registry": [channel(registry, aliases)], "targeting": [channel(targeting)], "delivery": []}
    settling = asyncio.create_task(Peers(of_roles, TOPICS).wait_applied([WRITTEN]))
    for role, applied, produced in (
        (registry, {COMMANDS: 10}, {}),
        (registry, {COMMANDS: 11}, {DEVICES: 6}),
        (aliases, {DEVICES: 5}, {}),
        (aliases, {DEVICES: 6}, {}),
        (targeting, {DEVICES: 5}, {}),
    ):
        await turns()
        assert not settling.done()
        role.advance(applied, produced)
    await turns()
    assert not settling.done()
    targeting.advance({DEVICES: 6})
    await asyncio.wait_for(settling, BOUND_S)


async def test_applied_positions_are_not_waited_for() -> None:
    registry = reading("device-commands", "devices")
    registry.advance({COMMANDS: 11, DEVICES: 6}, {DEVICES: 6})
    targeting = reading("devices")
    targeting.advance({DEVICES: 6})
    await Peers({"registry": [channel(registry)], "targeting": [channel(targeting)]}, TOPICS).wait_applied([WRITTEN])
    await Peers({}, TOPICS).wait_applied([])


async def test_a_role_that_is_behind_ends_the_wait_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WAIT_APPLIED_S", 0.05)
    behind = Peers({"registry": [channel(reading("device-commands"))], "targeting": []}, TOPICS)
    with pytest.raises(DeadlineError, match=r"^accepted, but not yet applied everywhere"):
        await behind.wait_applied([WRITTEN])


async def test_an_unavailable_role_is_handled_like_one_that_is_behind() -> None:
    away = Peers({"registry": [LocalServer().channel()], "targeting": []}, TOPICS)
    with pytest.raises(DeadlineError, match=r"^accepted, but not yet applied everywhere"):
        await away.wait_applied([WRITTEN])


async def test_only_the_shard_that_reads_the_partition_is_waited_for() -> None:
    shards = [reading("device-commands", "devices", partitions=(n, n + 2)) for n in (0, 1)]
    sharded = Peers({"registry": [channel(shard) for shard in shards], "targeting": []}, TOPICS)
    settling = asyncio.create_task(sharded.wait_applied([WRITTEN]))
    shards[1].advance({Partition("device-commands", 3): 11})
    await turns()
    assert not settling.done()
    shards[0].advance({COMMANDS: 11})
    await asyncio.wait_for(settling, BOUND_S)


@pytest.mark.parametrize(
    ("topic", "role"),
    [
        ("device-commands", "registry"),
        ("task-commands", "scheduling"),
        ("devices", "targeting"),
        ("sessions", "targeting"),
    ],
)
async def test_a_shard_that_is_away_holds_up_the_records_of_its_own_partitions_alone(topic: str, role: str) -> None:
    """The alias index of every registry reads all devices and sessions, so these have applied the records here."""
    done, away = reading(topic, partitions=(0, 2)), LocalServer().channel()
    done.advance({Partition(topic, 0): 4, Partition(topic, 2): 4})
    of_roles = {"registry": [channel(), channel()], role: [channel(done), away]}
    for partition in (0, 2):
        await Peers(of_roles, TOPICS).wait_applied([Position(topic=topic, partition=partition, offset=3)])
    with pytest.raises(DeadlineError):
        await Peers(of_roles, TOPICS).wait_applied([Position(topic=topic, partition=3, offset=3)])


@pytest.mark.parametrize(
    ("topic", "role"), [("devices", "registry"), ("sessions", "registry"), ("push-commands", "delivery")]
)
async def test_every_shard_is_waited_for_where_each_reads_the_partition(topic: str, role: str) -> None:
    first, second = (reading(topic) for _ in range(2))
    first.advance({Partition(topic, 0): 4})
    of_roles = {"targeting": [channel()], role: [channel(first), channel(second)]}
    settling = asyncio.create_task(Peers(of_roles, TOPICS).wait_applied([Position(topic=topic, partition=0, offset=3)]))
    await turns()
    assert not settling.done()
    second.advance({Partition(topic, 0): 4})
    await asyncio.wait_for(settling, BOUND_S)


async def test_a_role_that_refuses_the_call_is_handled_like_one_that_is_behind() -> None:
    with pytest.raises(DeadlineError, match=r"^accepted, but not yet applied everywhere"):
        await Peers({"registry": [refusing()]}, TOPICS).wait_applied([WRITTEN])


async def test_the_facts_of_every_shard_are_waited_for() -> None:
    """A batch over two shards' partitions: targeting must have applied the facts of each."""
    first, second = (reading("device-commands", partitions=(n, n + 2)) for n in (0, 1))
    first.advance({COMMANDS: 11}, {DEVICES: 3})
    second.advance({Partition("device-commands", 3): 8}, {Partition("devices", 3): 5})
    targeting = reading("devices")
    targeting.advance({DEVICES: 3})
    sharded = Peers({"registry": [channel(first), channel(second)], "targeting": [channel(targeting)]}, TOPICS)
    settling = asyncio.create_task(
        sharded.wait_applied([WRITTEN, Position(topic="device-commands", partition=3, offset=7)])
    )
    await turns()
    assert not settling.done()
    targeting.advance({Partition("devices", 3): 5})
    await asyncio.wait_for(settling, BOUND_S)


async def test_the_owner_of_a_partition_is_its_number_modulo_the_instances() -> None:
    channels = [channel() for _ in range(3)]
    of_roles = Peers({"registry": channels}, TOPICS)
    assert [channels.index(of_roles.owner("registry", partition)) for partition in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert list(of_roles.all("registry")) == channels


async def test_a_wait_sees_an_advance_between_check_and_wait() -> None:
    applied = reading("devices")
    change = applied.change
    applied.advance({DEVICES: 1})
    assert change.is_set()
    assert not applied.change.is_set()
    await asyncio.wait_for(applied.wait([(DEVICES, 0), (Partition("elsewhere", 9), 60)]), BOUND_S)


def test_produced_positions_by_partition_number() -> None:
    applied = AppliedPositions()
    applied.advance({}, {DEVICES: 6, Partition("devices", 3): 2, Partition("tasks", 2): 0})
    assert applied.produced("devices", 2) == 6
    assert applied.produced("devices", 0) == 0
    assert applied.produced_in([2]) == [Position(topic="devices", partition=2, offset=5)]


async def test_roles_are_named_of_which_an_instance_has_not_applied_a_record_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "WAIT_APPLIED_S", 0.01)
    done, behind = reading("device-commands"), reading("device-commands")
    done.advance({COMMANDS: 11})
    dead = LocalServer().channel()
    of_roles = {
        "registry": [channel(done)],
        "targeting": [channel(done), channel(behind)],
        "delivery": [channel(done), dead],
        "gateway": [channel(done), refusing()],
        "analytics": [dead],
    }
    asked = ["registry", "targeting", "delivery", "gateway", "scheduling"]
    assert await Peers(of_roles, TOPICS).roles_behind(asked, WRITTEN) == ["targeting", "delivery", "gateway"]
