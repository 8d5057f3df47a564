"""Parses requests of the legacy Android interface. InputError names the field."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

from edge.android.audience import audiences, kind_of
from edge.android.bodies import (
    MAX_ACKS,
    AcksBody,
    CancelBody,
    CancelTimedBody,
    Notification,
    PushBody,
    TimedPushBody,
)
from edge.android.style import message_of
from edge.core.parsing.minutes import MINUTE_MS, minute_ms
from edge.core.parsing.target_keys import check_top
from edge.core.parsing.typed import decode
from edge.core.push import AppPush
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import KIND_BROADCAST
from protos.registry.v1.apps_pb2 import App
from services.domain.limits.filters import check_written
from services.runtime.errors import InputError

TARGETS = ("filter", "filter_v2", "optfilter", "token", "alias")
_KEYS = frozenset(TimedPushBody.__struct_fields__ + Notification.__struct_fields__)
MAX_AHEAD_S = 3 * 86_400


class PushOrder(NamedTuple):
    """The pushes of a request: one, or two when it names tokens and aliases, tokens first.

    `is_single_token`: the request names a token, not a list.
    """

    pushes: list[AppPush]
    is_single_token: bool


def push_order(raw: bytes, app: App) -> PushOrder:
    """Parse POST /push."""
    _check_targets(raw)
    return _order(raw, decode(PushBody, raw), app)


def timed_order(raw: bytes, app: App, now_ms: int, zone: ZoneInfo, min_lead_s: int) -> tuple[PushOrder, int]:
    """Parse POST /timed_msg into the pushes and their time, in milliseconds since 1970.

    The lead is counted in whole minutes from the present one: a client that formats now and ten minutes is right.
    """
    _check_targets(raw)
    body: TimedPushBody = decode(TimedPushBody, raw)
    order = _order(raw, body, app)
    due_ms = minute_ms(body.send_time, zone, "send_time")
    ahead_s = (due_ms // MINUTE_MS - now_ms // MINUTE_MS) * 60
    if not min_lead_s <= ahead_s <= MAX_AHEAD_S:
        lead = f"{min_lead_s} seconds" if min_lead_s % 60 else f"{min_lead_s // 60} minutes"
        raise InputError(f"send_time must be at least {lead} in the future and within 3 days")
    return order, due_ms


def cancelled_task(raw: bytes) -> str:
    """Parse DELETE /timed_msg into the task key."""
    body: CancelTimedBody = decode(CancelTimedBody, raw)
    return body.task_key


def cancelled_push(raw: bytes) -> int:
    """Parse DELETE /push into the message id of the broadcast."""
    body: CancelBody = decode(CancelBody, raw)
    return body.msgid


def acks_query(raw: bytes) -> tuple[str, int]:
    """Parse POST /getAckInfo into the position to continue at and the maximum number of records."""
    body: AcksBody = decode(AcksBody, raw)
    return str(body.pos), body.reqno or MAX_ACKS


def _check_targets(raw: bytes) -> None:
    """Check the names of the targets, and the numbers of tags before they are parsed."""
    given = check_top(raw, _KEYS, TARGETS)
    for name in ("filter", "filter_v2"):
        if name in given:
            check_written(bytes(given[name]), name)


def _order(raw: bytes, body: PushBody, app: App) -> PushOrder:
    kind = kind_of(body)
    message = message_of(raw, body, app.name)
    period_s = body.period or app.default_period_s
    qps = body.qps or 0
    ref = AppRef(app.appkey, app.platform)
    pushes = [
        AppPush(ref, kind, audience, message, period_s, qps if kind == KIND_BROADCAST else 0)
        for audience in audiences(body)
    ]
    return PushOrder(pushes, isinstance(body.token, str))
