"""Parses POST /v2/push and checks every rule. InputError names the field."""

import re
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from edge.core.parsing.fields import APNS_LIMIT, Minute, Shown, Sign, described, minute_ms
from edge.core.parsing.typed import ABSENT, decode
from edge.core.push import AppPush
from edge.core.signature import AppRef
from edge.v2.apps import SIGN_BY_PLATFORM, PushApps
from edge.v2.push.style import MsgStyle, android_message, ios_message
from edge.v2.push.targets import SendTo, app_audiences, check_keys
from protos.push.v1.push_pb2 import (
    IMPORTANCE_UNSPECIFIED,
    KIND_BROADCAST,
    KIND_MULTICAST,
    KIND_UNICAST,
    ChannelOptions,
    Importance,
    Kind,
    Message,
)
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, ROUTE_UNSPECIFIED, App, Platform
from services.domain.addresses import ROUTES, RouteName
from services.domain.apns_payload import carrying_msgid
from services.domain.text import checked_text
from services.errors import Code, InputError

MAX_PERIOD_S = 30 * 86_400
"""Longest time to live of a message, unless set otherwise."""

MAX_AHEAD_S = 365 * 86_400


_CATEGORY = re.compile(r"[A-Z][A-Z_]*")
Category = Annotated[
    str, msgspec.Meta(min_length=1, max_length=40, extra_json_schema={"pattern": f"^{_CATEGORY.pattern}$"})
]


class ChannelOption(msgspec.Struct, frozen=True):
    route: Annotated[
        RouteName | None,
        described(
            "How the push reaches devices with an address on a channel. auto: over the device's own connection, or by a"
            " channel once the device has not been connected for a moment; own: over its own connection alone; vendor:"
            " by a channel first. Default: the app's own setting, auto unless it was changed.",
            "auto",
        ),
    ] = None
    importance: Annotated[
        Literal["high", "normal", "low"] | None,
        described("high: a channel is asked as soon as the device is not connected.", "normal"),
    ] = None
    category: Annotated[
        Category | None,
        described(
            "What the message is, for vendors that limit each kind of messages, such as Huawei: IM, ACCOUNT, WORK and"
            " others. It counts where the vendor has granted it to the app. Default: MARKETING.",
            "IM",
        ),
    ] = None


class Option(msgspec.Struct, frozen=True):
    period: Annotated[
        msgspec.Raw,
        Shown(Annotated[int, msgspec.Meta(ge=1, le=MAX_PERIOD_S)] | None),
        described(
            "Time to live for devices that are offline, seconds. Default: the app's own setting. The operator may have"
            " set another maximum.",
            86400,
        ),
    ] = ABSENT
    qps: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None,
        described("Messages per second; absent or 0: no limit.", 500),
    ] = None
    timed: Annotated[
        Literal[0, 1, 2] | None, described("0 (default) now, 1 at send_time, 2 after send_time_interval.", 0)
    ] = None
    send_time: Annotated[
        msgspec.Raw,
        Shown(Minute | None),
        described("A minute in the service's time zone, within 365 days; with timed 1."),
    ] = ABSENT
    send_time_interval: Annotated[
        msgspec.Raw,
        Shown(Annotated[int, msgspec.Meta(ge=1, le=MAX_AHEAD_S)] | None),
        described("Seconds from now; with timed 2."),
    ] = ABSENT
    channel: Annotated[
        ChannelOption | None,
        described("For Android: how channels, such as Web Push, take part. They reach devices without a connection."),
    ] = None
    label: Annotated[
        Annotated[str, msgspec.Meta(max_length=64)] | None,
        described(
            "A name of yours, such as that of a campaign, by which webhooks choose the events of pushes.", "spring"
        ),
    ] = None


class PushRequest(msgspec.Struct, frozen=True):
    send_to: Annotated[SendTo, described("The audience.")] = msgspec.field(name="sendTo")
    style: Annotated[MsgStyle, described(f"The notification, or the message for the app. {APNS_LIMIT}")] = (
        msgspec.field(name="msgStyle")
    )
    option: Annotated[Option | None, described("Speed, time to live and time of sending.")] = None
    extra: Annotated[str | None, described("Free text that is sent along.", "campaign-7")] = None


class _SendToKeys(msgspec.Struct, frozen=True):
    """The keys of sendTo, unknown ones too."""

    send_to: dict[str, msgspec.Raw] = msgspec.field(name="sendTo")


class PushSigned(msgspec.Struct, frozen=True):
    """The field that authentication reads, beside sendTo.appkey."""

    sign: Annotated[Sign, SIGN_BY_PLATFORM]


class PushOrder(NamedTuple):
    """The pushes of a request to `apps`: Android first, then one for each iOS app; none for an app without tokens.

    `due_ms` None: sent at once.
    """

    scope: int
    pushes: list[AppPush]
    apps: PushApps
    due_ms: int | None


def push_order(
    raw: bytes,
    apps: PushApps,
    app_of: Callable[[AppRef], App],
    now_ms: int,
    zone: ZoneInfo,
    max_period_s: int = MAX_PERIOD_S,
) -> PushOrder:
    """Parse POST /v2/push. `app_of` returns the settings of an app: its name is the default of an Android title."""
    body: PushRequest = decode(PushRequest, raw)
    check_keys(decode(_SendToKeys, raw).send_to)
    option = body.option or Option()
    period_s = _positive(option.period, max_period_s, "option.period")
    label = checked_text("option.label", option.label or "", required=False)
    scope = body.send_to.user_scope
    audiences = app_audiences(body.send_to, apps)
    names = {of_app.app.platform: app_of(of_app.app).name for of_app in audiences}
    messages = {platform: _message(platform, body, name) for platform, name in names.items()}
    pushes = [
        AppPush(
            app=of_app.app,
            kind=_kind(scope),
            audience=of_app.audience,
            message=_of_app(app_of(of_app.app), messages[of_app.app.platform]),
            period_s=period_s or app_of(of_app.app).default_period_s,
            qps=option.qps or 0,
            channel=_channel(option.channel) if of_app.app.platform == PLATFORM_ANDROID else None,
            label=label,
            must_exist=of_app.is_single_token and of_app.app.platform == PLATFORM_IOS,
        )
        for of_app in audiences
    ]
    return PushOrder(scope, pushes, apps, _due_ms(option, now_ms, zone))


def _message(platform: "Platform.ValueType", body: PushRequest, app_name: str) -> Message:
    if platform == PLATFORM_ANDROID:
        return android_message(body.style, body.extra, app_name)
    return ios_message(body.style, body.extra)


def _of_app(app: App, message: Message) -> Message:
    return carrying_msgid(message) if app.apns_reports else message


def _channel(option: ChannelOption | None) -> ChannelOptions | None:
    if option is None or option == ChannelOption():
        return None
    if option.category and not _CATEGORY.fullmatch(option.category):
        raise InputError(
            Code.UNREADABLE, at="option.channel.category", problem="write a word in capital letters, such as IM"
        )
    route = ROUTES[option.route] if option.route else ROUTE_UNSPECIFIED
    importance = (
        Importance.Value(f"IMPORTANCE_{option.importance.upper()}") if option.importance else IMPORTANCE_UNSPECIFIED
    )
    return ChannelOptions(route=route, importance=importance, category=option.category or "")


def _kind(scope: int) -> "Kind.ValueType":
    if scope <= 2:
        return KIND_BROADCAST
    return KIND_UNICAST if scope <= 5 else KIND_MULTICAST


def _due_ms(option: Option, now_ms: int, zone: ZoneInfo) -> int | None:
    if not option.timed:
        return None
    if option.timed == 2:
        return now_ms + 1000 * _interval_s(option.send_time_interval)
    due_ms = _minute_ms(option.send_time, zone)
    if not now_ms < due_ms <= now_ms + MAX_AHEAD_S * 1000:
        raise InputError(Code.NOT_AHEAD, at="option.send_time", days=MAX_AHEAD_S // 86_400)
    return due_ms


def _interval_s(raw: msgspec.Raw) -> int:
    seconds = _positive(raw, MAX_AHEAD_S, "option.send_time_interval")
    if seconds is None:
        raise InputError(Code.NEEDED, at="option.send_time_interval", by="option.timed 2")
    return seconds


def _positive(raw: msgspec.Raw, maximum: int, at: str) -> int | None:
    number: int | None = decode(int | None, raw, at)
    if number is not None and not 1 <= number <= maximum:
        raise InputError(Code.SECONDS_OUT_OF_RANGE, at=at, least_s=1, most_s=maximum)
    return number


def _minute_ms(raw: msgspec.Raw, zone: ZoneInfo) -> int:
    text: str | None = decode(str | None, raw, "option.send_time")
    if text is None:
        raise InputError(Code.NEEDED, at="option.send_time", by="option.timed 1")
    return minute_ms(text, zone, "option.send_time")
