"""Parses requests of the legacy Android interface. InputError names the field."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

from edge.android.audience import audiences, kind_of
from edge.android.bodies import (
    MAX_ACKS,
    AckCount,
    AcksBody,
    CancelBody,
    CancelTimedBody,
    MessageId,
    PushBody,
    Speed,
    TimedPushBody,
)
from edge.android.style import message_of
from edge.core.parsing.digits import Period, number
from edge.core.parsing.minutes import MINUTE_MS, minute_ms
from edge.core.parsing.target_keys import check_top
from edge.core.parsing.typed import decode
from edge.core.push import AppPush
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import KIND_BROADCAST
from services.runtime.errors import InputError

TARGETS = ("filter", "filter_v2", "optfilter", "token", "alias")
_KEYS = frozenset(TimedPushBody.__struct_fields__)
MAX_AHEAD_S = 3 * 86_400


class PushOrder(NamedTuple):
    """The pushes of a request: one, or two when it names tokens and aliases, tokens first.

    `is_single_token`: the request names a token, not a list.
    """

    pushes: list[AppPush]
    is_single_token: bool


def push_order(raw: bytes, app: AppRef, default_period_s: int) -> PushOrder:
    """Parse POST /push."""
    check_top(raw, _KEYS, TARGETS)
    return _order(decode(PushBody, raw), app, default_period_s)


def timed_order(
    raw: bytes, app: AppRef, default_period_s: int, now_ms: int, zone: ZoneInfo, min_lead_s: int
) -> tuple[PushOrder, int]:
    """Parse POST /timed_msg into the pushes and their time, in milliseconds since 1970.

    Times have a resolution of a minute, so the lead counts from the start of the current minute.
    """
    check_top(raw, _KEYS, TARGETS)
    body: TimedPushBody = decode(TimedPushBody, raw)
    order = _order(body, app, default_period_s)
    due_ms = minute_ms(body.send_time, zone, "send_time")
    ahead_ms = due_ms - now_ms // MINUTE_MS * MINUTE_MS
    if not min_lead_s * 1000 <= ahead_ms <= MAX_AHEAD_S * 1000:
        raise InputError(f"send_time must lie at least {min_lead_s} seconds ahead, and within 3 days")
    return order, due_ms


def cancelled_task(raw: bytes) -> str:
    """Parse DELETE /timed_msg into the task key."""
    body: CancelTimedBody = decode(CancelTimedBody, raw)
    return body.task_key


def cancelled_push(raw: bytes) -> int:
    """Parse DELETE /push into the message id of the broadcast."""
    body: CancelBody = decode(CancelBody, raw)
    return number(MessageId, body.msgid, "msgid") or 0


def acks_query(raw: bytes) -> tuple[str, int]:
    """Parse POST /getAckInfo into the position to continue at and the maximum number of records."""
    body: AcksBody = decode(AcksBody, raw)
    return str(body.pos), number(AckCount, body.reqno, "reqno") or MAX_ACKS


def _order(body: PushBody, app: AppRef, default_period_s: int) -> PushOrder:
    kind = kind_of(body)
    message = message_of(body)
    period_s = number(Period, body.period, "period") or default_period_s
    qps = number(Speed, body.qps, "qps") or 0
    pushes = [
        AppPush(app, kind, audience, message, period_s, qps if kind == KIND_BROADCAST else 0)
        for audience in audiences(body)
    ]
    return PushOrder(pushes, isinstance(body.token, str))
