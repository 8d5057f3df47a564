"""Named crash points before and after each effect, at which a test kills the process; without a test they do nothing.

A crash point that several consumers share is named with the consumer after an @: `follower-read@registry`.
"""

from collections.abc import Callable
from enum import StrEnum


class Point(StrEnum):
    """A crash point; its comment says what has happened by then."""

    FOLLOWER_READ = "follower-read"  # a follower has read a batch of records, and applied none
    FOLLOWER_APPLIED = "follower-applied"  # the follower's batch is applied and decided, no fact of it is appended
    FOLLOWER_APPENDED = "follower-appended"  # the facts of the follower's batch are in the log, nothing is committed
    FOLLOWER_COMMITTED = "follower-committed"  # the rows and offsets of the follower's batch are committed
    PUSH_DECIDED = "push-decided"  # the audiences of a push are fixed, PushStarted is not in the log
    PUSH_STARTED = "push-started"  # PushStarted is in the log, nothing of the push is sent
    PUSH_SENT = "push-sent"  # the push is sent to all connected devices; of some, the start is only in memory
    CANCEL_DECIDED = "cancel-decided"  # CancelPush is read, PushCancelled is not in the log
    CANCEL_DONE = "cancel-done"  # PushCancelled is in the log
    EXPIRY_DECIDED = "expiry-decided"  # a push has expired, which is not in the log yet
    EXPIRY_DONE = "expiry-done"  # the expiry of the push is in the log
    OUTCOMES_GATHERED = "outcomes-gathered"  # the outcomes of pushes are only in memory
    OUTCOMES_APPENDED = "outcomes-appended"  # the outcomes of pushes are in the log
    CLAIM_DECIDED = "claim-decided"  # channels are to show messages, which is only in memory
    CLAIM_RECORDED = "claim-recorded"  # the claims are in the log, no request is made
    RETURN_RECORDED = "return-recorded"  # that channels do not show messages is in the log, no other way has them yet
    SERVICE_SENDING = "service-sending"  # pushes are about to go to a push service, such as Apple's
    SERVICE_ANSWERED = "service-answered"  # the push service has answered requests, no answer is recorded
    SNAPSHOT_TAKEN = "snapshot-taken"  # a snapshot of the state is taken, nothing of it is on the disk
    SNAPSHOT_WRITTEN = "snapshot-written"  # the snapshot's file is written beside the old one
    SNAPSHOT_REPLACED = "snapshot-replaced"  # the snapshot's file has replaced the old one
    TASK_DUE = "task-due"  # a task is due, which is not in the log yet
    TASK_FELL_DUE = "task-fell-due"  # that the task is due is in the log
    TASK_SENDING = "task-sending"  # the pushes of a task are resolved, and not in the log
    TASK_SENT = "task-sent"  # the pushes of a task are in the log, that the task is sent is not
    SESSIONS_GATHERED = "sessions-gathered"  # session events are only in the gateway's memory
    SESSIONS_APPENDED = "sessions-appended"  # the session events are in the log
    REPORTS_TAKEN = "reports-taken"  # a batch of reports is collected for delivery
    REPORTS_HANDED = "reports-handed"  # delivery has accepted the batch of reports
    RANGE_GATHERED = "range-gathered"  # analytics has read records, their range is not stored
    RANGE_NOTED = "range-noted"  # the range of records is stored, none of its rows is inserted
    RANGE_INSERTED = "range-inserted"  # the rows of the range are inserted, the range is not marked as done
    RANGE_ENDED = "range-ended"  # the range of records is marked as done
    SEGMENT_READ = "segment-read"  # old records of the log are read, none is archived
    SEGMENT_WRITTEN = "segment-written"  # the old records are in a file that is not part of the archive yet
    SEGMENT_NAMED = "segment-named"  # the old records are in the archive and in the log
    SEGMENT_PARTLY_TRIMMED = "segment-partly-trimmed"  # one of several steps has removed old records from the log
    SEGMENT_TRIMMED = "segment-trimmed"  # the old records are in the archive alone
    KEYS_PUNCTURED = "keys-punctured"  # a key is to be destroyed, and is on the disk
    KEYS_WRITTEN = "keys-written"  # a file of keys is written beside the one that it replaces
    KEYS_REPLACED = "keys-replaced"  # the block without the key is on the disk, the root above it may be
    KEYS_FORGOTTEN = "keys-forgotten"  # nothing on the disk gives the key any more
    ERASURE_APPENDED = "erasure-appended"  # that a person is erased is in the log, and nothing else has changed
    ERASURE_KEYS_DESTROYED = "erasure-keys-destroyed"  # the keys of the person are destroyed, no stub is written
    ERASURE_FILE_PURGED = "erasure-file-purged"  # one file of a state has nothing left of the person, others may have
    KEYS_MADE = "keys-made"  # the keys of persons are stored, the installation does not seal yet
    KEYS_SEAL = "keys-seal"  # that the installation seals is in the log, the command has no answer
    COMMAND_CHECKED = "command-checked"  # a command is checked, and not appended
    COMMAND_APPENDED = "command-appended"  # the command is in the log, the caller has no answer


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
