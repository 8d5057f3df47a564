"""Requests of the v2 interface: JSON into what the core understands, every rule checked. InputError names the field."""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from edge.core.parsing.minutes import minute_ms
from edge.core.parsing.typed import decode
from edge.core.push import Push
from edge.core.signature import AppRef
from edge.v2.apps import PushApps
from edge.v2.push.style import MsgStyle, android_message, ios_message
from edge.v2.push.targets import SendTo, Target, targets
from protos.push.v1.push_pb2 import KIND_BROADCAST, KIND_MULTICAST, KIND_UNICAST, Kind, Message
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, Platform
from services.runtime.errors import InputError

MAX_PERIOD_S = 604_800
MAX_AHEAD_S = 365 * 86_400


class Option(msgspec.Struct, frozen=True):
    period: Annotated[int, msgspec.Meta(ge=0, le=MAX_PERIOD_S)] | None = None
    qps: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None
    timed: Literal[0, 1, 2] | None = None
    send_time: msgspec.Raw = msgspec.Raw(b"null")
    send_time_interval: msgspec.Raw = msgspec.Raw(b"null")


class PushBody(msgspec.Struct, frozen=True):
    send_to: SendTo = msgspec.field(name="sendTo")
    style: MsgStyle = msgspec.field(name="msgStyle")
    option: Option | None = None
    extra: str | None = None


class PushOrder(NamedTuple):
    """What a request asks for: `pushes` Android first, then one for each iOS app. `due_ms` None: at once."""

    scope: int
    pushes: list[Push]
    ios_listed: bool
    due_ms: int | None


def push_order(
    raw: bytes, apps: PushApps, default_period_s: Callable[[AppRef], int], now_ms: int, zone: ZoneInfo
) -> PushOrder:
    """Read POST /v2/push. A `period` that is absent or 0 is the app's own."""
    body: PushBody = decode(PushBody, raw)
    option = body.option or Option()
    scope = body.send_to.user_scope
    found = targets(body.send_to, apps)
    messages = {platform: _message(platform, body) for platform in dict.fromkeys(t.app.platform for t in found)}
    pushes = [
        Push(
            app=target.app,
            kind=_kind(scope),
            audience=target.audience,
            message=messages[target.app.platform],
            period_s=option.period or default_period_s(target.app),
            qps=option.qps or 0,
            must_exist=_must_exist(target),
        )
        for target in found
    ]
    return PushOrder(scope, pushes, apps.ios_listed, _due_ms(option, now_ms, zone))


def _message(platform: "Platform.ValueType", body: PushBody) -> Message:
    make = android_message if platform == PLATFORM_ANDROID else ios_message
    return make(body.style, body.extra)


def _kind(scope: int) -> "Kind.ValueType":
    if scope <= 2:
        return KIND_BROADCAST
    return KIND_UNICAST if scope <= 5 else KIND_MULTICAST


def _must_exist(target: Target) -> bool:
    return target.lone and target.app.platform == PLATFORM_IOS


def _due_ms(option: Option, now_ms: int, zone: ZoneInfo) -> int | None:
    if not option.timed:
        return None
    if option.timed == 2:
        return now_ms + 1000 * _interval_s(option.send_time_interval)
    due_ms = _minute_ms(option.send_time, zone)
    if not now_ms < due_ms <= now_ms + MAX_AHEAD_S * 1000:
        raise InputError("option.send_time must lie in the future, within 365 days")
    return due_ms


def _interval_s(raw: msgspec.Raw) -> int:
    seconds: int | None = decode(int | None, raw, "option.send_time_interval")
    if seconds is None:
        raise InputError("option.send_time_interval is missing: option.timed 2 needs it")
    if not 1 <= seconds <= MAX_AHEAD_S:
        raise InputError(f"option.send_time_interval must be an integer from 1 to {MAX_AHEAD_S}")
    return seconds


def _minute_ms(raw: msgspec.Raw, zone: ZoneInfo) -> int:
    text: str | None = decode(str | None, raw, "option.send_time")
    if text is None:
        raise InputError("option.send_time is missing: option.timed 1 needs it")
    return minute_ms(text, zone, "option.send_time")
