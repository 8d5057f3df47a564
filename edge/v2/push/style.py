"""msgStyle of a v2 push: what is shown or handed over, on each platform."""

from typing import Annotated, Literal

import msgspec

from edge.core.parsing.apns_limit import check_payload
from edge.core.parsing.typed import ABSENT, decode
from edge.v2.push.click import LAST_ACTION, click_param_json
from protos.push.v1.push_pb2 import AndroidStyle, IosStyle, Message
from services.runtime.errors import InputError

Badge = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Flag = Literal[0, 1]


class ContentByPlatform(msgspec.Struct, frozen=True):
    android: str | None = None
    ios: str | None = None


class NotifByPlatform(msgspec.Struct, frozen=True):
    android: Flag | None = None
    ios: Flag | None = None


class Basic(msgspec.Struct, frozen=True):
    content: str | ContentByPlatform
    is_notif: Flag | NotifByPlatform


class MsgStyle(msgspec.Struct, frozen=True):
    basic: Basic
    android: msgspec.Raw = ABSENT
    ios: msgspec.Raw = ABSENT


class Android(msgspec.Struct, frozen=True):
    sound: bool | None = None
    unremovable: bool | None = None
    title: str | None = None
    click_action: Annotated[int, msgspec.Meta(ge=0, le=LAST_ACTION)] | None = None
    click_param: msgspec.Raw = ABSENT
    vibrate: bool | None = None
    badge: Badge | None = None


class Ios(msgspec.Struct, frozen=True):
    sound: str | None = None
    content_available: Flag | None = msgspec.field(name="content-available", default=None)
    category: str | None = None
    badge: Badge | None = None


AndroidOrNone = Android | None
IosOrNone = Ios | None
_IOS_NAMES = {"extra": "extra", "sound": "msgStyle.ios.sound", "category": "msgStyle.ios.category"}


def android_message(style: MsgStyle, extra: str | None) -> Message:
    """The message for Android devices. `unremovable`: false is not removable, true is removable."""
    given: Android = decode(AndroidOrNone, style.android, "msgStyle.android") or Android()
    action = given.click_action or 0
    return Message(
        is_notif=bool(_is_notif(style.basic, "android")),
        content=_content(style.basic, "android"),
        extra=extra,
        android=AndroidStyle(
            title=given.title,
            sound=given.sound or False,
            vibrate=given.vibrate or False,
            removable=given.unremovable or False,
            click_action=action,
            click_param_json=click_param_json(action, given.click_param, "msgStyle.android.click_param"),
            badge=given.badge,
        ),
    )


def ios_message(style: MsgStyle, extra: str | None) -> Message:
    """The message for iOS devices. A notification that names no sound has the default one. InputError: it is too long
    for Apple."""
    given: Ios = decode(IosOrNone, style.ios, "msgStyle.ios") or Ios()
    is_notif = bool(_is_notif(style.basic, "ios"))
    message = Message(
        is_notif=is_notif,
        content=_content(style.basic, "ios"),
        extra=extra,
        ios=IosStyle(
            badge=given.badge,
            sound=given.sound if given.sound is not None or not is_notif else "default",
            content_available=None if given.content_available is None else bool(given.content_available),
            category=given.category,
        ),
    )
    check_payload(message, {"content": _content_path(style.basic, "ios"), **_IOS_NAMES})
    return message


def _content(basic: Basic, platform: Literal["android", "ios"]) -> str:
    content: str | None = basic.content if isinstance(basic.content, str) else getattr(basic.content, platform)
    if not content:
        path = _content_path(basic, platform)
        raise InputError(f"{path} is missing" if content is None else f"{path} must not be empty")
    return content


def _content_path(basic: Basic, platform: Literal["android", "ios"]) -> str:
    return "msgStyle.basic.content" if isinstance(basic.content, str) else f"msgStyle.basic.content.{platform}"


def _is_notif(basic: Basic, platform: Literal["android", "ios"]) -> int:
    value = getattr(basic.is_notif, platform) if isinstance(basic.is_notif, NotifByPlatform) else basic.is_notif
    if value is None:
        raise InputError(f"msgStyle.basic.is_notif.{platform} is missing")
    return int(value)
