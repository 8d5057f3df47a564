"""The state of timed tasks, and how facts change it.

    WAITING ── TaskCancelled ──> CANCELLED <── TaskCancelled ──┐
       ├────── TaskPaused ────────────────────────────────> PAUSED ── TaskExpired ──> EXPIRED
       └────── TaskFellDue ───> FELL_DUE <── TaskFellDue ──────┘
                                   ├── TaskSent ──> SENT
                                   └── TaskFailed ──> FAILED

A task that fell due will be sent: each start sends the tasks whose TaskSent is missing once more, with the same
message ids. The order of TaskCancelled and TaskFellDue in `tasks` therefore decides which of the two applies. Only a
task of an account that needs an approval by then is not sent: it ends as failed, and waits as a draft in accounts.

A task is paused if its due time comes while one of its apps is paused. Its time to live then counts from the due time.

A request with an idempotency key is a task too, due at once unless it is timed: the due time that the edge's clock gave
it orders such tasks, and is not waited for. Its TaskScheduled carries a claim: one record holds the claimed key, the
pushes to send and the answer.

A task belongs to the app of its first push: it is sent in that app's turn, and waits for no other app's tasks.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, assert_never

from protos.scheduling.v1.scheduling_pb2 import Claim, TaskFact, TaskScheduled

CLAIM_MS = 600_000
"""How long a claim blocks its idempotency key for other requests."""

ENDED_KEPT_MS = 35 * 86_400_000
"""How long after its due time an ended task (sent, cancelled, expired or failed) is kept: as long as the log keeps
records by default.
"""


class Status(IntEnum):
    """A status of a task, as it is stored; the module's docstring draws the changes."""

    WAITING = 1
    FELL_DUE = 2
    SENT = 3
    CANCELLED = 4
    PAUSED = 5
    EXPIRED = 6
    FAILED = 7


UNSENT = (Status.WAITING, Status.PAUSED)
"""A task in one of these can be cancelled, and falls due."""


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A task in the store. `scheduled`: its TaskScheduled fact with the meta. `cancelled_by`: event id of the cancel.

    `was_paused`: the due time came while one of its apps was paused.
    """

    task_key: str
    partition: int
    status: Status
    scheduled: TaskFact
    cancelled_by: bytes
    was_paused: bool = False

    @property
    def appkeys(self) -> set[str]:
        return {push.appkey for push in self.scheduled.scheduled.pushes}

    @property
    def expires_ms(self) -> int:
        return expires_ms(self.scheduled.scheduled)

    def is_of(self, appkeys: Iterable[str]) -> bool:
        """Return whether a push of the task belongs to one of the apps."""
        return not self.appkeys.isdisjoint(appkeys)


def expires_ms(scheduled: TaskScheduled) -> int:
    """Return the time from which none of the pushes of a paused task may be sent."""
    return scheduled.due_ms + 1000 * max((push.period_s for push in scheduled.pushes), default=0)


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """The last claim of an idempotency key. `is_unsent`: its task goes out at once and is not sent yet.

    `failure`: why its task, which should have gone out at once, was not sent; "" for any other task.
    """

    task_key: str
    claim: Claim
    created_ms: int
    is_unsent: bool
    failure: str

    @property
    def expires_ms(self) -> int:
        return self.created_ms + CLAIM_MS


class Tasks(Protocol):
    """A store of tasks."""

    def add(self, partition: int, scheduled: TaskFact) -> None:
        """Add a waiting task unless it exists, and replace the claim of its idempotency key.

        First delete the partition's tasks that ended too long ago (ENDED_KEPT_MS).
        """
        ...

    def change(self, task_key: str, before: Collection[Status], after: Status, cancelled_by: bytes = b"") -> None:
        """Change the status of a task that is in one of `before`. A task without a set time is deleted once sent."""
        ...

    def fail(self, task_key: str, reason: str) -> None:
        """Note that a task that fell due was not sent, and why."""
        ...


def apply(tasks: Tasks, partition: int, fact: TaskFact) -> None:
    """Apply one fact of topic `tasks`."""
    match fact.WhichOneof("fact"):
        case "scheduled":
            tasks.add(partition, fact)
        case "cancelled":
            tasks.change(fact.task_key, UNSENT, Status.CANCELLED, fact.cancelled.by_event_id)
        case "paused":
            tasks.change(fact.task_key, (Status.WAITING,), Status.PAUSED)
        case "expired":
            tasks.change(fact.task_key, (Status.PAUSED,), Status.EXPIRED)
        case "fell_due":
            tasks.change(fact.task_key, UNSENT, Status.FELL_DUE)
        case "sent":
            tasks.change(fact.task_key, (Status.FELL_DUE,), Status.SENT)
        case "failed":
            tasks.fail(fact.task_key, fact.failed.reason)
        case None:
            pass
        case other:
            assert_never(other)
