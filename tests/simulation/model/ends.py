"""Checks that each end of a push or a timed task in the log has its reason there too, and that cancels have effect.

No app is paused in the worlds that these checks judge, and all tasks have a set time. Facts are given partition by
partition, without those of former owners.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from protos.delivery.v1.delivery_pb2 import DeliveryFact, PushFact
from protos.push.v1.push_pb2 import PushCommand
from protos.scheduling.v1.scheduling_pb2 import TaskCommand, TaskFact
from services.domain.recorded_reasons import AudienceUnresolved, parsed_reason

Part = tuple[int, int]
"""Message id and partition: a push in one partition."""


class CancelledPart(NamedTuple):
    """A push in a partition where a cancel has to end it: it has started there, for a device at least.

    `asked_ms`: from when on the cancel could end it. `ended_ms` None: it has not ended.
    """

    msgid: int
    partition: int
    asked_ms: int
    ended_ms: int | None


def wrong_task_ends(
    commands: Iterable[TaskCommand], facts: Iterable[TaskFact], push_commands: Iterable[PushCommand]
) -> Iterator[str]:
    """Yield the ends of tasks without a reason: sent without its pushes, cancelled without a cancel, expired or failed.

    Only a paused task expires, and a task fails where it cannot be made into pushes.
    """
    sent = {(command.send.task_key, command.send.msgid) for command in push_commands if command.HasField("send")}
    cancels = {(command.task_key, command.meta.event_id) for command in commands if command.HasField("cancel")}
    wanted: dict[str, list[int]] = {}
    for fact in facts:
        key = fact.task_key
        match fact.WhichOneof("fact"):
            case "scheduled":
                wanted[key] = [push.msgid for push in fact.scheduled.pushes]
            case "sent":
                missing = [msgid for msgid in wanted.get(key, ()) if (key, msgid) not in sent]
                if missing or key not in wanted:
                    yield f"task {key} counts as sent, and its pushes {missing} are not in the log"
            case "cancelled":
                if (key, fact.cancelled.by_event_id) not in cancels:
                    yield f"task {key} was cancelled, and no such cancel of it is in the log"
            case "expired":
                yield f"task {key} expired, though no app is paused"
            case "failed":
                yield f"task {key} failed: {fact.failed.reason}"
            case _:
                pass


def wrong_push_ends(
    commands: Iterable[PushCommand], facts: Iterable[PushFact], *, tells_time: bool = True
) -> Iterator[str]:
    """Yield the ends of pushes without a reason: cancelled without a cancel, or finished or failed too early.

    A push fails only where its time to live was over before targeting resolved its audience. `tells_time`: no clock was
    set, so that the times of the log can be compared.
    """
    expires_ms: dict[int, int] = {}
    cancels: set[tuple[int, str]] = set()
    for command in commands:
        if command.HasField("send"):
            expires_ms.setdefault(command.send.msgid, command.meta.time_ms + command.send.period_s * 1000)
        elif command.HasField("cancel"):
            cancels.add((command.cancel.msgid, command.cancel.appkey))
    started: set[Part] = set()
    for fact in facts:
        text = f"push {fact.msgid} in partition {fact.partition}"
        is_early = tells_time and fact.meta.time_ms < expires_ms.get(fact.msgid, 0)
        match fact.WhichOneof("fact"):
            case "started":
                started.add((fact.msgid, fact.partition))
            case "cancelled":
                if (fact.msgid, fact.appkey) not in cancels:
                    yield f"{text} was cancelled, and no cancel of it is in the log"
            case "finished":
                if is_early or (fact.msgid, fact.partition) not in started:
                    yield f"{text} was finished before its time to live was over, or before it started"
            case "failed":
                if is_early or not isinstance(parsed_reason(fact.failed.reason), AudienceUnresolved):
                    yield f"{text} failed: {fact.failed.reason}"
            case _:
                pass


def cancelled_parts(
    commands: Iterable[PushCommand], facts: Iterable[PushFact], outcomes: Iterable[DeliveryFact]
) -> Iterator[CancelledPart]:
    """Yield each part of a push that a cancel in the log has to end.

    Parts without a device end as they start, and pushes with outcomes may end with the last one, so both are left out.
    """
    asked_ms: dict[int, int] = {}
    ids: dict[int, tuple[str, range]] = {}
    for command in commands:
        if command.HasField("send"):
            send = command.send
            ids[send.msgid] = send.appkey, range(send.msgid, send.msgid + max(1, send.id_count))
        elif command.HasField("cancel") and ids.get(command.cancel.msgid, ("",))[0] == command.cancel.appkey:
            asked_ms.setdefault(command.cancel.msgid, command.meta.time_ms)
    started_ms: dict[Part, int] = {}
    ended_ms: dict[Part, int] = {}
    for fact in facts:
        part = fact.msgid, fact.partition
        if fact.HasField("started") and fact.started.count:
            started_ms.setdefault(part, fact.meta.time_ms)
        elif fact.HasField("cancelled") or fact.HasField("finished"):
            ended_ms.setdefault(part, fact.meta.time_ms)
    with_outcomes = {msgid for fact in outcomes for app in fact.outcomes.apps for msgid in array("Q", app.msgids)}
    for (msgid, partition), begun_ms in started_ms.items():
        if msgid in asked_ms and with_outcomes.isdisjoint(ids[msgid][1]):
            since_ms = max(begun_ms, asked_ms[msgid])
            yield CancelledPart(msgid, partition, since_ms, ended_ms.get((msgid, partition)))
