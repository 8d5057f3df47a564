"""Requests to the simulator (message/auth and message/send), refused by vivo's results."""

import hashlib
import hmac
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

# Documented results. Which of the parameter errors (10050 to 10069 and others) vivo chooses for a fault is an
# assumption; that senders react to all of them alike is not.
NOT_AUTHENTICATED = "10000"
OTHER_APP = "10094"
MISSING_PARAMETER = "10050"
WRONG_PARAMETER = "10054"
TOO_LONG = "10056"
UNKNOWN_CATEGORY = "10096"
WRONG_CATEGORY = "10097"
WRONG_CLASSIFICATION = "11000"

MAX_TIMESTAMP_MS = 600_000
"""How far the time of a signature may be from the server's."""

_OPERATIONAL, _SYSTEM = 0, 1
CATEGORIES = {
    _SYSTEM: frozenset(("IM", "ACCOUNT", "TODO", "DEVICE_REMINDER", "ORDER", "SUBSCRIPTION")),
    _OPERATIONAL: frozenset(("NEWS", "CONTENT", "MARKETING", "SOCIAL")),
}
"""The categories of each classification."""


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A field that vivo does not know is a wrong parameter."""


class _AuthSchema(_Struct, frozen=True):
    app_id: str | int = ""
    app_key: str = ""
    timestamp: int | UnsetType = UNSET
    sign: str = ""


class VivoExtraSchema(_Struct, frozen=True):
    callback: str = ""
    callback_param: str = msgspec.field(name="callback.param", default="")
    callback_id: str | int = msgspec.field(name="callback.id", default="")


class VivoMessageSchema(_Struct, frozen=True):
    app_id: str | int = ""
    reg_id: str = ""
    notify_type: Literal[1, 2, 3, 4] | UnsetType = UNSET
    title: str = ""
    content: str = ""
    time_to_live: int | UnsetType = UNSET
    skip_type: Literal[1, 2, 3, 4] | UnsetType = UNSET
    skip_content: str = ""
    network_type: Literal[-1, 1] = -1
    classification: int = _OPERATIONAL
    category: str = ""
    client_custom_map: dict[str, str] = {}
    extra: VivoExtraSchema = VivoExtraSchema()
    request_id: str = ""
    push_mode: Literal[0, 1] = 0
    notify_id: int | UnsetType = UNSET
    profile_id: str = ""
    send_online: bool = False
    foreground_show: bool = True


_Read = TypeVar("_Read")

_auths = msgspec.json.Decoder(_AuthSchema)
_messages = msgspec.json.Decoder(VivoMessageSchema)


def validate(body: bytes) -> ReceivedRequest[VivoMessageSchema]:
    """Read the body of `message/send`. PushRefusedError."""
    message = _decode(_messages, body)
    required = {
        "appId": message.app_id, "regId": message.reg_id, "title": message.title, "content": message.content,
        "requestId": message.request_id,
    }  # fmt: skip
    missing = [name for name, value in required.items() if value == ""]
    if missing or message.notify_type is UNSET or message.skip_type is UNSET:
        raise PushRefusedError(MISSING_PARAMETER, f"missing: {missing or 'notifyType or skipType'}")
    _check_lengths(message)
    _check_category(message)
    is_right = {
        "timeToLive": message.time_to_live is UNSET or 60 <= message.time_to_live <= 86_400,
        "skipContent": bool(message.skip_content) == (message.skip_type != 1),
        "clientCustomMap": len(message.client_custom_map) <= 10,
        "notifyId": message.notify_id is UNSET or 1 <= message.notify_id < 2**31,
    }
    for name, right in is_right.items():
        if not right:
            raise PushRefusedError(WRONG_PARAMETER, name)
    return ReceivedRequest(message, [message.reg_id])


def signed_by(body: bytes, app_of: Callable[[str], tuple[str, str] | None], now_ms: int) -> str:
    """Return the id of the app that signed an auth request; `app_of`: its key and secret. PushRefusedError."""
    request = _decode(_auths, body)
    if not (request.app_id and request.app_key and request.sign) or request.timestamp is UNSET:
        raise PushRefusedError(MISSING_PARAMETER, "appId, appKey, timestamp or sign")
    app_id, app = str(request.app_id), app_of(str(request.app_id))
    if app is None or abs(request.timestamp - now_ms) > MAX_TIMESTAMP_MS:
        raise PushRefusedError(NOT_AUTHENTICATED, "appId or timestamp")
    key, secret = app
    sign = hashlib.md5(f"{app_id}{key}{request.timestamp}{secret}".encode(), usedforsecurity=False).hexdigest()
    if request.app_key != key or not hmac.compare_digest(sign.encode(), request.sign.encode()):
        raise PushRefusedError(NOT_AUTHENTICATED, "appKey or sign")
    return app_id


def _check_lengths(message: VivoMessageSchema) -> None:
    lengths = {
        "title": (len(message.title), 40),
        "content": (len(message.content), 100),
        "skipContent": (len(message.skip_content), 2048 if message.skip_type in (2, 4) else 1024),
        "clientCustomMap": (sum(len(key) + len(value) for key, value in message.client_custom_map.items()), 1024),
        "requestId": (len(message.request_id), 64),
        "profileId": (len(message.profile_id), 64),
        "callback": (len(message.extra.callback), 128),
        "callback.param": (len(message.extra.callback_param), 192),
    }
    for name, (length, limit) in lengths.items():
        if length > limit:
            raise PushRefusedError(TOO_LONG, f"{name} is too long")


def _check_category(message: VivoMessageSchema) -> None:
    of_classification = CATEGORIES.get(message.classification)
    if of_classification is None:
        raise PushRefusedError(WRONG_CLASSIFICATION, "classification")
    if not message.category or message.category in of_classification:
        return
    is_known = any(message.category in categories for categories in CATEGORIES.values())
    raise PushRefusedError(WRONG_CATEGORY if is_known else UNKNOWN_CATEGORY, "category")


def _decode(decoder: msgspec.json.Decoder[_Read], body: bytes) -> _Read:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
