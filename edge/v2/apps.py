"""The apps a v2 request names, and whose secrets may sign it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from edge.core.canonical import number_or_text
from edge.core.sign import AppRef, Signers
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, Platform
from services.runtime.errors import InputError

_ANDROID_ONLY = ("1", "7", "8")
_IOS_ONLY = ("2",)


class PushApps(NamedTuple):
    """The apps a push goes to; `ios_listed`: the iOS apps were given as a list, and are answered as one."""

    android: AppRef | None
    ios: tuple[AppRef, ...]
    ios_listed: bool
    accepted: tuple[Signers, ...]


def push_apps(fields: Mapping[str, Any]) -> PushApps:
    """Who a push is for, from its parsed body. InputError: an app that its userScope needs is missing.

    A platform that the userScope leaves out is ignored; the sign may then be made with the used app's secret alone or
    with the secrets of all.
    """
    send_to = _object(fields, "sendTo", "sendTo")
    appkeys = _object(send_to, "appkey", "sendTo.appkey")
    scope = number_or_text(send_to.get("userScope"))
    android = _apps(appkeys.get("android"), "sendTo.appkey.android", PLATFORM_ANDROID, scope in _IOS_ONLY)
    ios = _apps(appkeys.get("ios"), "sendTo.appkey.ios", PLATFORM_IOS, scope in _ANDROID_ONLY)
    if not android and (scope in ("0", *_ANDROID_ONLY) or not ios):
        raise InputError("sendTo.appkey.android is missing")
    if not ios and scope in ("0", *_IOS_ONLY):
        raise InputError("sendTo.appkey.ios is missing")
    everyone = android + ios
    used_android = () if scope in _IOS_ONLY else android
    used_ios = () if scope in _ANDROID_ONLY else ios
    used = used_android + used_ios
    return PushApps(
        android=used_android[0] if used_android else None,
        ios=used_ios,
        ios_listed=isinstance(appkeys.get("ios"), list),
        accepted=(used,) if used == everyone else (used, everyone),
    )


def _object(fields: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is None:
        raise InputError(f"{path} is missing")
    if not isinstance(value, dict):
        raise InputError(f"{path} must be an object")
    return value


def _apps(value: object, path: str, platform: "Platform.ValueType", ignored: bool) -> tuple[AppRef, ...]:
    """The apps of one platform; only iOS may have a list."""
    listed = isinstance(value, list) and platform == PLATFORM_IOS
    keys = [number_or_text(key) for key in (value if listed else [value])]  # type: ignore[attr-defined]
    named = bool(keys) and all(keys)
    if value is None or (ignored and not named):
        return ()
    if not named:
        raise InputError(f"{path} must be a string{' or a list of strings' * (platform == PLATFORM_IOS)}")
    if len(set(keys)) < len(keys):
        raise InputError(f"{path} names an app twice")
    return tuple(AppRef(key, platform) for key in keys if key)
