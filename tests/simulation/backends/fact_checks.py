"""Checks of the facts in the log: each is decided once and in time, and no cancelled task is sent."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from services.domain.topics import (
    ACCOUNTS,
    DEVICE_COMMANDS,
    DEVICES,
    DRAFTS,
    PUSH_COMMANDS,
    PUSHES,
    TASK_COMMANDS,
    TASKS,
    decode,
)
from services.log.port import NewRecord, Partition, Record
from tests.simulation.backends.checks import cancelled_in, partitions_of
from tests.simulation.backends.ledger import Ledger
from tests.simulation.backends.log_reading import messages
from tests.simulation.kernel.faults import Fault
from tests.simulation.kernel.installation import Installation, process_name, standby_name
from tests.simulation.kernel.log.broker import Broker
from tests.simulation.model.devices import wrongly_taken
from tests.simulation.model.ends import wrong_push_ends, wrong_task_ends
from tests.simulation.model.outages import Outages

BOUND_MS = 5_000
"""Time within which a push starts, and a task that is due is sent, while nothing is broken and nothing slow.

A push waits up to 1 s for its own audience and as long for that of an earlier one.
"""

_SAME_MOMENT_MS = 5
"""An outage that begins so much later than a call has ended, by the rounded times, may be why the call failed."""

_KEEP_THE_LOG = frozenset(
    {
        *("kill", "kill_after_steps", "kill_at_point", "kill_at_append", "cut_power", "cut_all_power", "lose_disk"),
        *("down", "block", "resets"),
    }
)
"""Kinds of faults under which each append is stored once, and its writer, if it still runs, gets the answer."""


class StoredFacts:
    """Counts the facts of devices, tasks, accounts and drafts by event id as the log stores them: compaction removes
    some of them later.

    `note` takes the place of the function that a Broker is given, which it calls.
    """

    def __init__(self, note: Callable[[Partition, int, Sequence[NewRecord]], None]) -> None:
        self.counts: Counter[tuple[str, bytes]] = Counter()
        self._note = note

    def note(self, partition: Partition, offset: int, new_records: Sequence[NewRecord]) -> None:
        self._note(partition, offset, new_records)
        if partition.topic in (DEVICES.name, TASKS.name, ACCOUNTS.name, DRAFTS.name):
            for place, new_record in enumerate(new_records, offset):
                fact = decode(Record(*partition, place, new_record.key, new_record.value))
                self.counts[partition.topic, fact.meta.event_id] += 1


def fact_findings(
    installation: Installation,
    ledger: Ledger,
    stored: StoredFacts,
    faults: Sequence[Fault],
    outages: Outages,
    bound_ms: int,
) -> list[str]:
    """Return the findings about the facts in the log; each begins with the name of the rule."""
    broker = installation.broker
    keeps_the_log = {fault.kind for fault in faults} <= _KEEP_THE_LOG
    return [
        *_started_twice(broker),
        *(_decided_twice(stored) if keeps_the_log else ()),
        *(_addresses_taken(broker) if keeps_the_log else ()),
        *_cancelled_and_sent(broker, ledger),
        *_wrong_ends(broker, outages),
        *(_tasks_late(broker, outages, bound_ms) if outages.tells_time else ()),
        *(_pushes_late(installation, outages, bound_ms) if outages.tells_time else ()),
        *(_cancels_late(broker, outages, bound_ms) if outages.tells_time else ()),
    ]


def failed_while_calm(ledger: Ledger, outages: Outages) -> list[str]:
    """Return the calls of the driver that failed although nothing was broken while they were made, nor lately."""
    return [
        f"failed: {call.name} at {call.begun_ms} failed after {call.ended_ms - call.begun_ms} ms: {call.error}"
        for call in ledger.failed_calls
        if outages.is_calm(call.begun_ms, call.ended_ms + _SAME_MOMENT_MS)
    ]


def _started_twice(broker: Broker) -> Iterator[str]:
    """Yield the pushes that were started twice in a partition: by two facts, not by one that the log holds twice."""
    starts: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for fact in messages(broker, PUSHES.name):
        if fact.WhichOneof("fact") == "started":
            starts[fact.msgid, fact.partition].add(fact.meta.event_id)
    for (push, number), ids in starts.items():
        if len(ids) > 1:
            yield f"started twice: push {push} in partition {number}, {len(ids)} times"


def _decided_twice(stored: StoredFacts) -> Iterator[str]:
    """Yield the facts that were stored twice although every append was stored once."""
    for (topic, event_id), count in stored.counts.items():
        if count > 1:
            yield f"decided twice: the fact {event_id.hex()} was stored in {topic} {count} times"


def _addresses_taken(broker: Broker) -> Iterator[str]:
    """Yield the addresses that the device which set them last has lost to another one."""
    yield from (f"address: {each}" for each in wrongly_taken(messages(broker, DEVICE_COMMANDS.name)))


def _cancelled_and_sent(broker: Broker, ledger: Ledger) -> Iterator[str]:
    """Yield the tasks that were sent although scheduling had said that they were cancelled."""
    sent = {command.send.task_key for command in messages(broker, PUSH_COMMANDS.name) if command.HasField("send")}
    for key in sorted(ledger.cancelled_tasks & sent):
        yield f"cancelled: task {key} was sent after its cancel"


def _wrong_ends(broker: Broker, outages: Outages) -> Iterator[str]:
    """Yield the ends of pushes and tasks for which the log has no reason."""
    commands = [messages(broker, topic.name) for topic in (TASK_COMMANDS, TASKS, PUSH_COMMANDS)]
    yield from (f"ends: {each}" for each in wrong_task_ends(*commands))
    pushes = messages(broker, PUSH_COMMANDS.name), messages(broker, PUSHES.name)
    yield from (f"ends: {each}" for each in wrong_push_ends(*pushes, tells_time=outages.tells_time))


def _cancels_late(broker: Broker, outages: Outages, bound_ms: int) -> Iterator[str]:
    for part in cancelled_in(broker):
        if part.ended_ms is not None and outages.calm_ms(part.asked_ms, part.ended_ms) > bound_ms:
            late_ms = part.ended_ms - part.asked_ms
            yield f"late: push {part.msgid} ended in partition {part.partition} {late_ms} ms after its cancel"


def _tasks_late(broker: Broker, outages: Outages, bound_ms: int) -> Iterator[str]:
    due_ms: dict[str, int] = {}
    for fact in messages(broker, TASKS.name):
        if fact.WhichOneof("fact") == "scheduled":
            due_ms[fact.task_key] = fact.scheduled.due_ms
    for command in messages(broker, PUSH_COMMANDS.name):
        due, sent_ms = due_ms.get(command.send.task_key), command.meta.time_ms
        if due is None:
            continue
        if sent_ms < due:
            yield f"early: task {command.send.task_key} was sent {due - sent_ms} ms before it was due"
        if outages.calm_ms(due, sent_ms) > bound_ms:
            yield f"late: task {command.send.task_key} was sent {sent_ms - due} ms after it was due"


def _pushes_late(installation: Installation, outages: Outages, bound_ms: int) -> Iterator[str]:
    """Yield the pushes that started late in a partition; outages of the targeting of other partitions do not count."""
    broker, instances = installation.broker, installation.shards["targeting"]
    begun_ms: dict[tuple[int, int], int] = {}
    for fact in messages(broker, PUSHES.name):
        begun_ms.setdefault((fact.msgid, fact.partition), fact.meta.time_ms)
    for command in messages(broker, PUSH_COMMANDS.name):
        if not command.HasField("send"):
            continue
        for partition in partitions_of(command.send, broker.partitions):
            others = [
                name("targeting", shard)
                for shard in range(instances)
                if partition % instances != shard
                for name in (process_name, standby_name)
            ]
            begun = begun_ms.get((command.send.msgid, partition), command.meta.time_ms)
            if outages.calm_ms(command.meta.time_ms, begun, without=others) > bound_ms:
                late_ms = begun - command.meta.time_ms
                yield f"late: push {command.send.msgid} started {late_ms} ms late in partition {partition}"
