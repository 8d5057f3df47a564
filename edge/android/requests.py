"""Requests of the legacy Android interface: JSON into what the core understands. InputError names the field."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

from edge.android.audience import audiences, kind_of
from edge.android.bodies import (
    MAX_ACKS,
    AckBody,
    AckCount,
    CancelBody,
    CancelTimedBody,
    MessageId,
    PushBody,
    Speed,
    TimedBody,
)
from edge.android.style import message_of
from edge.core.parsing.digits import Period, number
from edge.core.parsing.minutes import MINUTE_MS, minute_ms
from edge.core.parsing.typed import decode
from edge.core.push import Push
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import KIND_BROADCAST
from services.runtime.errors import InputError

MAX_AHEAD_S = 3 * 86_400


class PushOrder(NamedTuple):
    """What a request asks for: one push, or two where it names tokens and aliases, tokens first. `lone`: a single token
    was named, not a list."""

    pushes: list[Push]
    lone: bool


def push_order(raw: bytes, app: AppRef, default_period_s: int) -> PushOrder:
    """Read POST /push."""
    return _order(decode(PushBody, raw), app, default_period_s)


def timed_order(
    raw: bytes, app: AppRef, default_period_s: int, now_ms: int, zone: ZoneInfo, min_lead_s: int
) -> tuple[PushOrder, int]:
    """Read POST /timed_msg: what to send, and when, in milliseconds since 1970.

    Times are in minutes: the lead counts from the minute it is now.
    """
    body: TimedBody = decode(TimedBody, raw)
    order = _order(body, app, default_period_s)
    due_ms = minute_ms(body.send_time, zone, "send_time")
    ahead_ms = due_ms - now_ms // MINUTE_MS * MINUTE_MS
    if not min_lead_s * 1000 <= ahead_ms <= MAX_AHEAD_S * 1000:
        raise InputError(f"send_time must lie at least {min_lead_s} seconds ahead, and within 3 days")
    return order, due_ms


def cancelled_task(raw: bytes) -> str:
    """Read DELETE /timed_msg: the task's key."""
    body: CancelTimedBody = decode(CancelTimedBody, raw)
    return body.task_key


def cancelled_push(raw: bytes) -> int:
    """Read DELETE /push: the broadcast's id."""
    body: CancelBody = decode(CancelBody, raw)
    return number(MessageId, body.msgid, "msgid") or 0


def asked_acks(raw: bytes) -> tuple[str, int]:
    """Read POST /getAckInfo: where to go on, and how many records at most."""
    body: AckBody = decode(AckBody, raw)
    return str(body.pos), number(AckCount, body.reqno, "reqno") or MAX_ACKS


def _order(body: PushBody, app: AppRef, default_period_s: int) -> PushOrder:
    kind = kind_of(body)
    message = message_of(body)
    period_s = number(Period, body.period, "period") or default_period_s
    qps = number(Speed, body.qps, "qps") or 0
    pushes = [
        Push(app, kind, audience, message, period_s, qps if kind == KIND_BROADCAST else 0)
        for audience in audiences(body)
    ]
    return PushOrder(pushes, isinstance(body.token, str))
