"""Parses requests of the legacy Android interface, messages included. InputError names the field."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from edge.android.audience import audiences, kind_of
from edge.android.bodies import (
    MAX_ACKS,
    MESSAGE_BYTES,
    TITLE_BYTES,
    AcksBody,
    AndroidPushBody,
    CancelBody,
    CancelTimedBody,
    Notification,
    TimedPushBody,
)
from edge.core.parsing.fields import MINUTE_MS, minute_ms
from edge.core.parsing.targets import check_top
from edge.core.parsing.typed import decode
from edge.core.push import AppPush
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import KIND_BROADCAST, AndroidStyle, Message
from protos.registry.v1.apps_pb2 import App
from services.domain.limits import check_written
from services.errors import InputError

# The message of a legacy Android push.

_OPEN_APP, _OPEN_URL, _INTENT, _DOWNLOAD = 1, 2, 3, 8


def message_of(raw: bytes, body: AndroidPushBody, app_name: str) -> Message:
    """Return the message of the request `raw`. A notification without a title gets the app's name as its title.

    InputError: a field is too long, or missing though another one needs it.
    """
    _check_bytes(body.message, MESSAGE_BYTES, "message")
    is_notif = body.is_notif == 1
    style = _style(decode(Notification, raw), app_name) if is_notif else AndroidStyle()
    return Message(is_notif=is_notif, content=body.message, extra=body.extra, android=style)


def _style(given: Notification, app_name: str) -> AndroidStyle:
    _check_bytes(given.title or "", TITLE_BYTES, "title")
    action, param = _click(given)
    if given.is_upgrade_download == 1:
        action, param = _DOWNLOAD, _given(given.download_url, "download_url", "is_upgrade_download 1")
    return AndroidStyle(
        title=given.title or app_name,
        sound=given.sound or False,
        vibrate=given.vibrate or False,
        removable=not given.unremovable,
        click_action=action,
        click_param_json=msgspec.json.encode(param).decode() if param else "",
    )


def _click(given: Notification) -> tuple[int, str]:
    """Return the action's number and its parameter."""
    match given.click_action:
        case "open_app":
            if given.open_app is None:
                raise InputError("open_app is missing: click_action open_app needs it")
            return _OPEN_APP, ""
        case "open_url":
            return _OPEN_URL, _given(given.open_url, "open_url", "click_action open_url")
        case "intent":
            return _INTENT, _given(given.intent, "intent", "click_action intent")
        case None:
            return 0, ""


def _given(value: str | None, name: str, needed_by: str) -> str:
    if not value:
        raise InputError(f"{name} is missing: {needed_by} needs it")
    return value


def _check_bytes(text: str, limit: int, name: str) -> None:
    if len(text.encode()) > limit:
        raise InputError(f"{name} must have at most {limit} bytes")


TARGETS = ("filter", "filter_v2", "optfilter", "token", "alias")
_KEYS = frozenset(TimedPushBody.__struct_fields__ + Notification.__struct_fields__)
MAX_AHEAD_S = 3 * 86_400


class AndroidPushOrder(NamedTuple):
    """The pushes of a request: one, or two when it names tokens and aliases, tokens first.

    `is_single_token`: the request names a token, not a list.
    """

    pushes: list[AppPush]
    is_single_token: bool


def push_order(raw: bytes, app: App) -> AndroidPushOrder:
    """Parse POST /push."""
    _check_targets(raw)
    return _order(raw, decode(AndroidPushBody, raw), app)


def timed_order(raw: bytes, app: App, now_ms: int, zone: ZoneInfo, min_lead_s: int) -> tuple[AndroidPushOrder, int]:
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


def _order(raw: bytes, body: AndroidPushBody, app: App) -> AndroidPushOrder:
    kind = kind_of(body)
    message = message_of(raw, body, app.name)
    period_s = body.period or app.default_period_s
    qps = body.qps or 0
    ref = AppRef(app.appkey, app.platform)
    pushes = [
        AppPush(ref, kind, audience, message, period_s, qps if kind == KIND_BROADCAST else 0)
        for audience in audiences(body)
    ]
    return AndroidPushOrder(pushes, isinstance(body.token, str))
