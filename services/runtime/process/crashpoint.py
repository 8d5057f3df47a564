"""Named crash points before and after each effect, at which a test kills the process; without a test they do nothing.

A crash point that several consumers share is named with the consumer after an @: `follower-read@registry`.
"""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """A crash point; its comment says what has happened by then."""

    FOLLOWER_READ = "follower-read"  # a batch is read, nothing of it applied
    FOLLOWER_APPLIED = "follower-applied"  # applied and decided, no fact appended
    FOLLOWER_APPENDED = "follower-appended"  # its facts are in the log, nothing committed
    FOLLOWER_COMMITTED = "follower-committed"  # rows and offsets are committed
    PUSH_DECIDED = "push-decided"  # audiences are fixed, not in the log
    PUSH_STARTED = "push-started"  # the start is in the log, nothing is sent
    PUSH_SENT = "push-sent"  # it is sent to all connected devices; of some, the start is only in memory
    CANCEL_DECIDED = "cancel-decided"  # a cancel is read, not done
    CANCEL_DONE = "cancel-done"  # the end is in the log
    EXPIRY_DECIDED = "expiry-decided"  # a push has ended, which is not in the log yet
    EXPIRY_DONE = "expiry-done"  # the end is in the log
    OUTCOMES_GATHERED = "outcomes-gathered"  # outcomes are only in memory
    OUTCOMES_APPENDED = "outcomes-appended"  # they are in the log
    APNS_SENDING = "apns-sending"  # pushes are about to go to Apple
    APNS_ANSWERED = "apns-answered"  # Apple has answered, nothing is recorded
    SNAPSHOT_TAKEN = "snapshot-taken"  # nothing is on the disk
    SNAPSHOT_WRITTEN = "snapshot-written"  # it is beside the old one
    SNAPSHOT_REPLACED = "snapshot-replaced"  # it is in the old one's place
    TASK_DUE = "task-due"  # a task is due, which is not in the log yet
    TASK_FELL_DUE = "task-fell-due"  # that the task is due is in the log
    TASK_SENDING = "task-sending"  # its pushes are resolved, not in the log
    TASK_SENT = "task-sent"  # the pushes are in the log, that the task is sent is not
    SESSIONS_GATHERED = "sessions-gathered"  # session events are only in memory
    SESSIONS_APPENDED = "sessions-appended"  # it is in the log
    REPORTS_TAKEN = "reports-taken"  # a batch of reports is collected for delivery
    REPORTS_HANDED = "reports-handed"  # delivery has accepted it
    RANGE_GATHERED = "range-gathered"  # records are read, their range is not stored
    RANGE_NOTED = "range-noted"  # the range is stored, no row is inserted
    RANGE_INSERTED = "range-inserted"  # the rows are inserted, the range is not marked as done
    RANGE_ENDED = "range-ended"  # the range is marked as done
    SEGMENT_READ = "segment-read"  # old records are read, nothing of them is archived
    SEGMENT_WRITTEN = "segment-written"  # they are in a file that is not part of the archive yet
    SEGMENT_NAMED = "segment-named"  # they are in the archive and in the log
    SEGMENT_PARTLY_TRIMMED = "segment-partly-trimmed"  # one step of several has removed some from the embedded log
    SEGMENT_TRIMMED = "segment-trimmed"  # they are in the archive alone
    COMMAND_CHECKED = "command-checked"  # a command is checked, not appended
    COMMAND_APPENDED = "command-appended"  # it is in the log, the caller has no answer


_armed: Callable[[str], None] | None = None


def reached(point: Point, consumer: str = "") -> None:
    """Report that the process has reached the crash point."""
    if _armed is not None:
        _armed(f"{point}@{consumer}" if consumer else point)


def arm(name: str, times: int, die: Callable[[], None]) -> None:
    """Call `die` when the named crash point is reached for the `times`-th time, counted from 1. For tests only."""
    global _armed
    left = times

    def count(at: str) -> None:
        nonlocal left
        left -= at == name
        if at == name and left == 0:
            die()

    _armed = count
