"""Named places where a test lets the process die, before and after each effect; unless armed, nothing happens there.

The name of a place that several consumers share carries the consumer after an @: `follower-read@registry`.
"""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """Where a process may die; the comment says what is done by then."""

    FOLLOWER_READ = "follower-read"  # a batch is read, nothing of it applied
    FOLLOWER_APPLIED = "follower-applied"  # applied and decided, no fact appended
    FOLLOWER_APPENDED = "follower-appended"  # its facts are in the log, nothing committed
    FOLLOWER_COMMITTED = "follower-committed"  # rows and offsets are committed
    PUSH_DECIDED = "push-decided"  # audiences are fixed, not in the log
    PUSH_STARTED = "push-started"  # the start is in the log, nobody is sent anything
    PUSH_SENT = "push-sent"  # whoever is connected is sent it
    CANCEL_DECIDED = "cancel-decided"  # a cancel is read, not done
    CANCEL_DONE = "cancel-done"  # the end is in the log
    EXPIRY_DECIDED = "expiry-decided"  # a push is over, which the log does not say
    EXPIRY_DONE = "expiry-done"  # the end is in the log
    OUTCOMES_GATHERED = "outcomes-gathered"  # outcomes are in memory alone
    OUTCOMES_APPENDED = "outcomes-appended"  # they are in the log
    APNS_SENDING = "apns-sending"  # pushes are about to go to Apple
    APNS_ANSWERED = "apns-answered"  # Apple has answered, nothing is recorded
    SNAPSHOT_TAKEN = "snapshot-taken"  # nothing is on the disk
    SNAPSHOT_WRITTEN = "snapshot-written"  # it is beside the old one
    SNAPSHOT_REPLACED = "snapshot-replaced"  # it is in the old one's place
    TASK_DUE = "task-due"  # a moment has come, which the log does not say
    TASK_FELL_DUE = "task-fell-due"  # the log says so
    TASK_SENDING = "task-sending"  # its pushes are resolved, not in the log
    TASK_SENT = "task-sent"  # they are in the log, which does not say that the task is sent
    SESSIONS_GATHERED = "sessions-gathered"  # what devices did is in memory alone
    SESSIONS_APPENDED = "sessions-appended"  # it is in the log
    REPORTS_TAKEN = "reports-taken"  # a batch for delivery is made
    REPORTS_HANDED = "reports-handed"  # delivery has taken it
    RANGE_GATHERED = "range-gathered"  # records are read, the range is not noted
    RANGE_NOTED = "range-noted"  # the range is noted, no row inserted
    RANGE_INSERTED = "range-inserted"  # the rows are in, the range is not ticked off
    RANGE_ENDED = "range-ended"  # the range is ticked off
    COMMAND_CHECKED = "command-checked"  # a door is about to append
    COMMAND_APPENDED = "command-appended"  # the log has it, the caller has no answer


_armed: Callable[[str], None] | None = None


def reached(point: Point, consumer: str = "") -> None:
    """Say that the process is at the point."""
    if _armed is not None:
        _armed(f"{point}@{consumer}" if consumer else point)


def arm(name: str, times: int, die: Callable[[], None]) -> None:
    """Die at the named point when it is reached for the given time, counted from 1. For tests alone."""
    global _armed
    left = times

    def count(at: str) -> None:
        nonlocal left
        left -= at == name
        if at == name and left == 0:
            die()

    _armed = count
