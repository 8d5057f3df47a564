"""The apps that a v2 request names, and the apps whose secrets may sign it."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from edge.core.parsing.canonical import number_or_text
from edge.core.parsing.fields import AndroidAppkey, Appkey, IosAppkey, described, sign_of
from edge.core.parsing.typed import integer_text
from edge.core.signature import AppRef, Signers
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID, PLATFORM_IOS, PLATFORM_UNSPECIFIED, Platform
from services.domain.apps import AppDirectory
from services.errors import Code, InputError

MAX_APPS = 100
_ANDROID_ONLY = ("1", "7", "8")
_IOS_ONLY = ("2",)
_APPS = msgspec.Meta(min_length=1, max_length=MAX_APPS, extra_json_schema={"uniqueItems": True})
IosApps = IosAppkey | Annotated[list[IosAppkey], _APPS]
AnyApps = Appkey | Annotated[list[Appkey], _APPS]
SIGN_BY_PLATFORM = sign_of("the secrets of the apps: Android, then iOS in the order of the appkeys")
SIGN_BY_LIST = sign_of("the secrets of the apps in the order of the appkeys")


class Appkeys(msgspec.Struct):
    """The apps, by platform."""

    android: Annotated[AndroidAppkey | None, described("The Android app. Ignored with userScope 2.")] = None
    ios: Annotated[IosApps | None, described("The iOS app or a list. Ignored with userScope 1, 7 and 8.")] = None


class PushApps(NamedTuple):
    """The apps that a push goes to. `ios_listed`: its iOS apps are a list in the request and in the answer."""

    android: AppRef | None
    ios: tuple[AppRef, ...]
    ios_listed: bool
    accepted: tuple[Signers, ...]

    @property
    def first(self) -> AppRef:
        return self.android or self.ios[0]

    @property
    def appkeys(self) -> list[str]:
        return [app.appkey for app in (self.android, *self.ios) if app is not None]


class NamedApps(NamedTuple):
    """The apps of any other request, in the order of their secrets. `listed`: the request gives a list."""

    apps: tuple[AppRef, ...]
    listed: bool = False

    @property
    def accepted(self) -> tuple[Signers, ...]:
        return (self.apps,)

    @property
    def appkeys(self) -> list[str]:
        return [app.appkey for app in self.apps]


def push_apps(fields: Mapping[str, Any]) -> PushApps:
    """Find the apps of a push in its parsed body. InputError: an app that its userScope needs is missing.

    A platform that the userScope leaves out is ignored; the sign may then be computed with the secret of the used app
    alone or with the secrets of all apps.
    """
    send_to = _object(fields, "sendTo", "sendTo")
    appkeys = _object(send_to, "appkey", "sendTo.appkey")
    scope = integer_text(send_to.get("userScope"))
    android = _apps(appkeys.get("android"), "sendTo.appkey.android", PLATFORM_ANDROID, scope in _IOS_ONLY)
    ios = _apps(appkeys.get("ios"), "sendTo.appkey.ios", PLATFORM_IOS, scope in _ANDROID_ONLY)
    if not android and (scope in ("0", *_ANDROID_ONLY) or not ios):
        raise InputError(Code.MISSING, at="sendTo.appkey.android")
    if not ios and scope in ("0", *_IOS_ONLY):
        raise InputError(Code.MISSING, at="sendTo.appkey.ios")
    every_app = android + ios
    used_android = () if scope in _IOS_ONLY else android
    used_ios = () if scope in _ANDROID_ONLY else ios
    used = used_android + used_ios
    return PushApps(
        android=used_android[0] if used_android else None,
        ios=used_ios,
        ios_listed=bool(used_ios) and isinstance(appkeys.get("ios"), list),
        accepted=(used,) if used == every_app else (used, every_app),
    )


def task_apps(fields: Mapping[str, Any]) -> NamedApps:
    """Find the apps of a request about timed tasks: `appkey` is an object, and one platform is enough."""
    appkeys = _object(fields, "appkey", "appkey")
    android = _apps(appkeys.get("android"), "appkey.android", PLATFORM_ANDROID)
    ios = _apps(appkeys.get("ios"), "appkey.ios", PLATFORM_IOS)
    if not android and not ios:
        raise InputError("appkey must name an app of android or ios")
    return NamedApps(android + ios)


def listed_apps(fields: Mapping[str, Any]) -> NamedApps:
    """Find apps of either platform, one or a list."""
    return _named(fields, PLATFORM_UNSPECIFIED)


def with_platforms(named: NamedApps, directory: AppDirectory) -> NamedApps:
    """Return the apps of an authenticated request with the platforms that they have."""
    known = [(ref.appkey, directory.get(ref.appkey)) for ref in named.apps]
    return NamedApps(
        tuple(AppRef(appkey, app.platform if app else PLATFORM_UNSPECIFIED) for appkey, app in known), named.listed
    )


def listed_ios_apps(fields: Mapping[str, Any]) -> NamedApps:
    """Find iOS apps, one or a list."""
    return _named(fields, PLATFORM_IOS)


def one_app(fields: Mapping[str, Any]) -> NamedApps:
    """Find one app of either platform."""
    if isinstance(fields.get("appkey"), list):
        raise InputError(Code.WRONG_TYPE, at="appkey", kinds="a string")
    return _named(fields, PLATFORM_UNSPECIFIED)


def _named(fields: Mapping[str, Any], platform: "Platform.ValueType") -> NamedApps:
    value = fields.get("appkey")
    if value is None:
        raise InputError(Code.MISSING, at="appkey")
    return NamedApps(_apps(value, "appkey", platform), isinstance(value, list))


def _object(fields: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if value is None:
        raise InputError(Code.MISSING, at=path)
    if not isinstance(value, dict):
        raise InputError(Code.WRONG_TYPE, at=path, kinds="an object")
    return value


def _apps(value: object, path: str, platform: "Platform.ValueType", ignored: bool = False) -> tuple[AppRef, ...]:
    """Return the apps in one field; a list is accepted except for Android. InputError: it is wrong, and not ignored."""
    given = value if isinstance(value, list) and platform != PLATFORM_ANDROID else [value]
    keys = [number_or_text(key) for key in given[: MAX_APPS + 1]]
    wrong = ""
    if not keys or not all(keys):
        wrong = f"must be a string{' or a list of strings' * (platform != PLATFORM_ANDROID)}"
    elif len(keys) > MAX_APPS:
        wrong = f"must have at most {MAX_APPS} entries"
    elif len(set(keys)) < len(keys):
        wrong = "names an app twice"
    if value is None or (wrong and ignored):
        return ()
    if wrong:
        raise InputError(f"{path} {wrong}")
    return tuple(AppRef(key, platform) for key in keys if key)
