"""Requests to the simulator (auth, and notification/unicast), refused by OPPO's codes."""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from services.push_simulator.forms import read_form
from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

# Documented codes. Which of its group OPPO chooses for a fault is an assumption; the reaction to each group is not.
WRONG_TOKEN = "11"  # noqa: S105  # a code, no secret
WRONG_APP_KEY, NO_APP_KEY = "14", "15"
WRONG_SIGN, NO_SIGN = "16", "17"
NO_TIMESTAMP, WRONG_TIMESTAMP = "18", "19"
MISSING_PARAMETER, WRONG_PARAMETER = "40", "41"
WRONG_CATEGORY = "67"
WRONG_REGISTRATION_ID = "10000"

MAX_TTL_S = 864_000
MAX_TIMESTAMP_MS = 600_000
"""How far the time of a signature may be from the server's."""

CATEGORIES = frozenset(
    (
        "IM", "ACCOUNT", "DEVICE_REMINDER", "ORDER", "TODO", "SUBSCRIPTION", "NEWS", "CONTENT", "MARKETING", "SOCIAL",
    )
)  # fmt: skip


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that OPPO does not know is a wrong parameter."""


class OppoNotificationSchema(_Struct, frozen=True):
    title: str = ""
    sub_title: str = ""
    content: str = ""
    style: Literal[1, 2] = 1
    click_action_type: Literal[0, 1, 2, 4, 5] = 0
    click_action_activity: str = ""
    click_action_url: str = ""
    action_parameters: str | dict[str, Any] = ""
    off_line: bool = True
    off_line_ttl: int | UnsetType = UNSET
    network_type: Literal[0, 1] = 0
    channel_id: str = ""
    category: str = ""
    notify_level: Literal[1, 2, 16] | UnsetType = UNSET
    notify_id: int | UnsetType = UNSET
    show_ttl: int | UnsetType = UNSET
    app_message_id: str | UnsetType = UNSET
    private_msg_template_id: str = ""
    private_title_parameters: str | dict[str, Any] = ""
    private_content_parameters: str | dict[str, Any] = ""
    call_back_url: str = ""
    call_back_parameter: str = ""


class OppoMessageSchema(_Struct, frozen=True):
    target_type: Literal[2] | UnsetType = UNSET
    target_value: str = ""
    notification: OppoNotificationSchema | UnsetType = UNSET
    verify_registration_id: bool = False


_messages = msgspec.json.Decoder(OppoMessageSchema)


def read_message(headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    """Return the auth token and the message of the form of a unicast. PushRefusedError."""
    form = _form(headers, body, {"auth_token", "message"})
    return form.get("auth_token", ""), form.get("message", "")


def validate(text: str) -> ReceivedRequest[OppoMessageSchema]:
    """Read the message of a unicast. PushRefusedError."""
    if not text:
        raise PushRefusedError(MISSING_PARAMETER, "message")
    try:
        message = _messages.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    if message.target_type is UNSET or not message.target_value or message.notification is UNSET:
        raise PushRefusedError(MISSING_PARAMETER, "target_type, target_value or notification")
    if re.search("[;,]", message.target_value):
        raise PushRefusedError(WRONG_PARAMETER, "target_value is one registration id")
    _check_content(message.notification)
    _check_click(message.notification)
    _check_options(message.notification)
    return ReceivedRequest(message, [message.target_value])


def signed_by(headers: Mapping[str, str], body: bytes, secret_of: Callable[[str], str | None], now_ms: int) -> str:
    """Return the app key that signed the form of an auth request. PushRefusedError."""
    form = _form(headers, body, {"app_key", "timestamp", "sign"})
    for name, code in (("app_key", NO_APP_KEY), ("sign", NO_SIGN), ("timestamp", NO_TIMESTAMP)):
        if not form.get(name):
            raise PushRefusedError(code, f"no {name}")
    app_key, timestamp = form["app_key"], form["timestamp"]
    secret = secret_of(app_key)
    if secret is None:
        raise PushRefusedError(WRONG_APP_KEY, "app_key")
    if re.fullmatch("[0-9]{13}", timestamp) is None or abs(int(timestamp) - now_ms) > MAX_TIMESTAMP_MS:
        raise PushRefusedError(WRONG_TIMESTAMP, "timestamp")
    sign = hashlib.sha256(f"{app_key}{timestamp}{secret}".encode()).hexdigest()
    if not hmac.compare_digest(sign.encode(), form["sign"].encode()):
        raise PushRefusedError(WRONG_SIGN, "sign")
    return app_key


def _form(headers: Mapping[str, str], body: bytes, known: set[str]) -> dict[str, str]:
    try:
        form = read_form(headers, body)
    except ValueError as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    if form.keys() - known:
        raise PushRefusedError(WRONG_PARAMETER, f"unknown: {sorted(form.keys() - known)}")
    return form


def _check_content(notification: OppoNotificationSchema) -> None:
    if not notification.title or not notification.content:
        raise PushRefusedError(MISSING_PARAMETER, "a notification needs title and content")
    limits = {
        "title": (notification.title, 50),
        "sub_title": (notification.sub_title, 10),
        "content": (notification.content, {1: 50, 2: 128}[notification.style]),
        "call_back_url": (notification.call_back_url, 200),
        "call_back_parameter": (notification.call_back_parameter, 100),
    }
    for name, (text, limit) in limits.items():
        if len(text) > limit:
            raise PushRefusedError(WRONG_PARAMETER, f"{name} is too long")


def _check_click(notification: OppoNotificationSchema) -> None:
    activity, url = notification.click_action_activity, notification.click_action_url
    is_complete = {
        0: not activity and not url,
        1: bool(activity) and not url,
        2: bool(url) and not activity,
        4: bool(activity) and not url,
        5: bool(activity) != bool(url),  # the documents differ in where the intent's URL stands
    }
    if not is_complete[notification.click_action_type]:
        raise PushRefusedError(WRONG_PARAMETER, "click_action_type")
    if len(activity) > 500 or len(url) > 2000:
        raise PushRefusedError(WRONG_PARAMETER, "click_action_activity or click_action_url is too long")
    if len(_json_object("action_parameters", notification.action_parameters)) > 4000:
        raise PushRefusedError(WRONG_PARAMETER, "action_parameters is too long")


def _check_options(notification: OppoNotificationSchema) -> None:
    if notification.category and notification.category not in CATEGORIES:
        raise PushRefusedError(WRONG_CATEGORY, "category")
    if notification.notify_level is not UNSET and not notification.category:
        raise PushRefusedError(WRONG_CATEGORY, "notify_level needs a category")
    title = _json_object("private_title_parameters", notification.private_title_parameters)
    content = _json_object("private_content_parameters", notification.private_content_parameters)
    is_right = {
        "off_line_ttl": notification.off_line_ttl is UNSET
        or (notification.off_line and 1 <= notification.off_line_ttl <= MAX_TTL_S),
        "notify_id": notification.notify_id is UNSET or 0 <= notification.notify_id < 2**31,
        "show_ttl": notification.show_ttl is UNSET or notification.show_ttl > 0,
        "app_message_id": notification.app_message_id != "",
        "private_msg_template_id": bool(notification.private_msg_template_id) or not (title or content),
    }
    for name, right in is_right.items():
        if not right:
            raise PushRefusedError(WRONG_PARAMETER, name)


def _json_object(name: str, value: str | dict[str, Any]) -> str:
    """Return the text of a JSON object, which may stand in the message as such or as text. PushRefusedError."""
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    try:
        if value:
            msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise PushRefusedError(WRONG_PARAMETER, f"{name} is no JSON object") from None
    return value
