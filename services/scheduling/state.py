"""What is known of timed tasks, and how facts change it.

    WAITING ── TaskCancelled ──> CANCELLED
       └────── TaskFellDue ───> FELL_DUE ── TaskSent ──> SENT

A task that fell due will be sent: a start finds those whose TaskSent is missing and sends them again, with the same
message ids. So the order of TaskCancelled and TaskFellDue in `tasks` says which of the two came first.

A request with an idempotency key is a task too, due at once unless it is timed, and its TaskScheduled makes a claim:
one record says that the key is taken, which pushes go out and what was answered.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, assert_never

from protos.scheduling.v1.scheduling_pb2 import Claim, TaskFact

CLAIM_MS = 600_000
"""How long a claim holds its key."""


class Status(IntEnum):
    WAITING = 1
    FELL_DUE = 2
    SENT = 3
    CANCELLED = 4


@dataclass(frozen=True, slots=True)
class StoredTask:
    """`scheduled` is the TaskScheduled fact with its meta; `cancelled_by` the event id of the cancel, or empty."""

    task_key: str
    partition: int
    status: Status
    scheduled: TaskFact
    cancelled_by: bytes

    def is_of(self, appkeys: Iterable[str]) -> bool:
        """Whether one of its pushes is to one of the apps."""
        return not {push.appkey for push in self.scheduled.scheduled.pushes}.isdisjoint(appkeys)


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """The last claim of a key; `is_waiting`: pushes that are to go out at once are not in the log yet."""

    task_key: str
    claim: Claim
    created_ms: int
    is_waiting: bool

    @property
    def expires_ms(self) -> int:
        return self.created_ms + CLAIM_MS


class Tasks(Protocol):
    """Where tasks are kept."""

    def add(self, partition: int, scheduled: TaskFact) -> None:
        """Add a waiting task; one that is there already stays as it is. Its claim takes the place of an older one."""
        ...

    def change(self, task_key: str, before: Status, after: Status, cancelled_by: bytes = b"") -> None:
        """Move a task on; one that is not in the status `before` stays as it is. One that was to go out at once is
        forgotten when it is sent."""
        ...


def apply(tasks: Tasks, partition: int, fact: TaskFact) -> None:
    """Fold one fact of `tasks`."""
    match fact.WhichOneof("fact"):
        case "scheduled":
            tasks.add(partition, fact)
        case "cancelled":
            tasks.change(fact.task_key, Status.WAITING, Status.CANCELLED, fact.cancelled.by_event_id)
        case "fell_due":
            tasks.change(fact.task_key, Status.WAITING, Status.FELL_DUE)
        case "sent":
            tasks.change(fact.task_key, Status.FELL_DUE, Status.SENT)
        case None:
            pass
        case other:
            assert_never(other)
