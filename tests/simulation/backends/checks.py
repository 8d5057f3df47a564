"""Checks at the end of a world: nothing answered is lost, every role has done its work, every replay is equal.

A finding begins with the name of the rule that is broken.
"""

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from protos.push.v1.push_pb2 import SendPush
from protos.runtime.v1.log_pb2 import AwaitRequest, Position
from protos.runtime.v1.log_pb2_grpc import PositionsServiceStub
from services.domain.topics import DELIVERIES, PUSH_COMMANDS, PUSHES, TASK_COMMANDS, TASKS
from services.errors import CarillonError
from services.replica.peers import WAIT_APPLIED_S
from tests.simulation.backends.ledger import Ledger
from tests.simulation.backends.log_reading import messages
from tests.simulation.kernel.hosts import RoleHost
from tests.simulation.kernel.installation import Installation, process_name
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.model.ends import CancelledPart, cancelled_parts

_POLL_S = 0.5
_MAX_POLL_S = 10.0
_ENDS = frozenset({"sent", "cancelled", "expired", "failed"})


async def until_settled(
    installation: Installation, hosts: Sequence[RoleHost], seconds: float, undone: Callable[[], list[str]]
) -> list[str]:
    """Wait until all roles are ready and have carried out all commands; return what is missing after these seconds.

    `undone` returns what else has to be carried out.
    """
    loop = installation.world.loop
    deadline_s = loop.time() + seconds
    missing: list[str] = ["nothing was checked"]
    poll_s = _POLL_S
    while missing and loop.time() < deadline_s:
        await asyncio.sleep(poll_s)
        poll_s = min(2 * poll_s, _MAX_POLL_S)
        missing = [f"{host.name} is not ready" for host in hosts if not host.is_ready or host.process.is_paused]
        missing = missing or await _not_applied(installation)
        missing = missing or _undone(installation.broker) or undone()
    return [f"stuck: after {seconds:g} s without faults {each}" for each in missing]


def answered_and_lost(installation: Installation, ledger: Ledger) -> list[str]:
    """Return the pushes and tasks that were answered and are not in the log, and the clients' wrong reads."""
    broker = installation.broker
    pushes = {command.send.msgid for command in messages(broker, PUSH_COMMANDS.name) if command.HasField("send")}
    cancels = {command.cancel.msgid for command in messages(broker, PUSH_COMMANDS.name) if command.HasField("cancel")}
    tasks = {command.task_key for command in messages(broker, TASK_COMMANDS.name)}
    return [
        *(f"lost: push {msgid} was answered and is not in the log" for msgid in ledger.pushes.keys() - pushes),
        *(
            f"lost: the cancel of push {msgid} was answered and is not in the log"
            for msgid in ledger.cancelled_pushes - cancels
        ),
        *(f"lost: task {key} was answered and is not in the log" for key in ledger.tasks.keys() - tasks),
        *(f"reads: {error}" for error in ledger.errors),
    ]


async def replays_unequal(installation: Installation, hosts: Sequence[RoleHost]) -> list[str]:
    """Return the instances whose state differs from one rebuilt from the log, the states left at crashes included."""
    log = installation.log()
    findings = []
    for host in hosts:
        for compared in await host.verify(log):
            installation.world.trace.event("replay", of=host.name, live=compared.live, rebuilt=compared.rebuilt)
            if not compared.equal:
                findings.append(f"replay: the state of {host.name} differs from its replay")
    return findings


async def _not_applied(installation: Installation) -> list[str]:
    """Return the instances that have not applied the whole log, or do not say so."""
    broker, peers = installation.broker, installation.client_peers()
    ends = {partition: broker.end(partition) for partition in installation.partitions()}
    positions = [Position(topic=p.topic, partition=p.number, offset=end - 1) for p, end in ends.items() if end]
    request = AwaitRequest(positions=positions)
    asked = [
        (process_name(role, shard), channel)
        for role in installation.shards
        for shard, channel in enumerate(peers.all(role))
    ]
    answers = await asyncio.gather(
        *(PositionsServiceStub(channel).Await(request, timeout=WAIT_APPLIED_S) for _, channel in asked),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, CarillonError):
            raise answer
    return [
        f"{name} has not applied the log: {answer}"
        for (name, _), answer in zip(asked, answers, strict=True)
        if isinstance(answer, CarillonError)
    ]


def _undone(broker: Broker) -> list[str]:
    """Return the commands in the log that the roles have not carried out."""
    return [*_not_started(broker), *_tasks_not_ended(broker), *_not_cancelled(broker)]


def _not_started(broker: Broker) -> list[str]:
    begun: dict[int, set[int]] = defaultdict(set)
    for fact in messages(broker, PUSHES.name):
        begun[fact.msgid].add(fact.partition)
    pushes = [command.send for command in messages(broker, PUSH_COMMANDS.name) if command.HasField("send")]
    missing = {push.msgid: partitions_of(push, broker.partitions) - begun[push.msgid] for push in pushes}
    return [f"push {msgid} has neither started nor ended in {numbers}" for msgid, numbers in missing.items() if numbers]


def partitions_of(push: SendPush, count: int) -> set[int]:
    """Return the partitions in which the push starts."""
    if push.audience.WhichOneof("audience") != "devices":
        return set(range(count))
    packed = push.audience.devices.partitions
    return set(struct.unpack(f"<{len(packed) // 2}H", packed))


def _tasks_not_ended(broker: Broker) -> list[str]:
    created = {command.task_key for command in messages(broker, TASK_COMMANDS.name) if command.HasField("create")}
    ended = {fact.task_key for fact in messages(broker, TASKS.name) if fact.WhichOneof("fact") in _ENDS}
    return [f"task {key} was not sent and did not end" for key in sorted(created - ended)]


def _not_cancelled(broker: Broker) -> list[str]:
    return [
        f"push {part.msgid} in partition {part.partition} goes on after its cancel"
        for part in cancelled_in(broker)
        if part.ended_ms is None
    ]


def cancelled_in(broker: Broker) -> Iterator[CancelledPart]:
    """Yield the parts of pushes that the cancels in the log have to end."""
    return cancelled_parts(*(messages(broker, topic.name) for topic in (PUSH_COMMANDS, PUSHES, DELIVERIES)))
