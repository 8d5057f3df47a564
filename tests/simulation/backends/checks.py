"""What must hold in the end: nothing answered is lost, each push started once, every replay equal, nobody stuck."""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import Position
from services.domain.topics import PUSH_COMMANDS, PUSHES, TASK_COMMANDS, TASKS, decode
from services.runtime.log.port import Partition
from tests.simulation.backends.driver import Ledger
from tests.simulation.kernel.hosts import Installation, RoleHost
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.kernel.log.client import SimulatedLog

_POLL_S = 1.0
_ENDS = frozenset({"sent", "cancelled", "expired", "failed"})


async def until_settled(
    installation: Installation, hosts: Sequence[RoleHost], ledger: Ledger, seconds: float
) -> list[str]:
    """Wait until all roles are ready and have done what the log asks for; say what is missing after so many seconds."""
    loop = installation.world.loop
    deadline_s = loop.time() + seconds
    missing: list[str] = ["nothing was checked"]
    while missing and loop.time() < deadline_s:
        await asyncio.sleep(_POLL_S)
        missing = [f"{host.name} is not ready" for host in hosts if not host.is_ready]
        missing = missing or await _not_applied(installation)
        missing = missing or [*_not_started(installation.broker), *_tasks_not_sent(installation.broker, ledger)]
    return [f"stuck after {seconds:g} s without faults: {each}" for each in missing]


def answered_and_lost(installation: Installation, ledger: Ledger) -> list[str]:
    """Return the pushes and tasks that were answered and are not in the log, and pushes that started twice."""
    broker = installation.broker
    pushes = {command.send.msgid for command in _messages(broker, PUSH_COMMANDS.name) if command.HasField("send")}
    tasks = {command.task_key for command in _messages(broker, TASK_COMMANDS.name)}
    starts: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for fact in _messages(broker, PUSHES.name):
        if fact.WhichOneof("fact") == "started":
            starts[fact.msgid, fact.partition].add(fact.meta.event_id)
    return [
        *(f"push {msgid} was answered and is not in the log" for msgid in ledger.pushes.keys() - pushes),
        *(f"task {key} was answered and is not in the log" for key in ledger.tasks.keys() - tasks),
        *(
            f"push {push} started {len(ids)} times in {number}"
            for (push, number), ids in starts.items()
            if len(ids) > 1
        ),
    ]


async def replays_unequal(installation: Installation, hosts: Sequence[RoleHost]) -> list[str]:
    """Return the instances whose state differs from one rebuilt from the log."""
    log = SimulatedLog(installation.broker)
    findings = []
    for host in hosts:
        compared = await host.verify(log)
        installation.world.trace.event("replay", of=host.name, live=compared.live, rebuilt=compared.rebuilt)
        if not compared.equal:
            findings.append(f"the state of {host.name} differs from its replay")
    return findings


async def _not_applied(installation: Installation) -> list[str]:
    peers, broker = installation.peers(), installation.broker
    behind = []
    for partition in installation.partitions():
        end, roles = broker.end(partition), broker.topics[partition.topic].answered_by
        if end and roles:
            position = Position(topic=partition.topic, partition=partition.number, offset=end - 1)
            behind += [f"{role} has not applied {partition}" for role in await peers.roles_behind(roles, position)]
    return behind


def _not_started(broker: Broker) -> list[str]:
    begun: dict[int, set[int]] = defaultdict(set)
    for fact in _messages(broker, PUSHES.name):
        begun[fact.msgid].add(fact.partition)
    pushes = [command.send for command in _messages(broker, PUSH_COMMANDS.name) if command.HasField("send")]
    missing = {push.msgid: _partitions_of(push, broker.partitions) - begun[push.msgid] for push in pushes}
    return [f"push {msgid} has neither started nor ended in {numbers}" for msgid, numbers in missing.items() if numbers]


def _partitions_of(push: SendPush, count: int) -> set[int]:
    """Return the partitions in which the push starts."""
    if push.audience.WhichOneof("audience") != "devices":
        return set(range(count))
    packed = push.audience.devices.partitions
    return set(struct.unpack(f"<{len(packed) // 2}H", packed))


def _tasks_not_sent(broker: Broker, ledger: Ledger) -> list[str]:
    ended = {fact.task_key for fact in _messages(broker, TASKS.name, lambda fact: fact.WhichOneof("fact") in _ENDS)}
    return [f"task {key} was not sent and did not end" for key in ledger.tasks.keys() - ended]


def _messages(broker: Broker, topic: str, accepts: Callable[..., bool] = lambda message: True) -> list[Any]:
    """Return the decoded records of a topic, partition by partition."""
    numbers = range(broker.topics[topic].partitions(broker.partitions))
    messages = [decode(record) for number in numbers for record in broker.records(Partition(topic, number))]
    return [message for message in messages if accepts(message)]
