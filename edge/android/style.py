"""The message of a legacy Android push."""

import msgspec

from edge.android.bodies import MESSAGE_BYTES, TITLE_BYTES, PushBody
from edge.core.parsing.digits import Flag, number
from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.runtime.errors import InputError

_OPEN_APP, _OPEN_URL, _INTENT, _DOWNLOAD = 1, 2, 3, 8


def message_of(body: PushBody) -> Message:
    """Return the message. InputError: a field is too long, or missing though another one needs it.

    A pass-through message shows nothing, so its notification fields are left out.
    """
    _check_bytes(body.message, MESSAGE_BYTES, "message")
    _check_bytes(body.title or "", TITLE_BYTES, "title")
    is_notif = number(Flag, body.is_notif, "is_notif") == 1
    is_upgrade = number(Flag, body.is_upgrade_download, "is_upgrade_download") == 1
    return Message(
        is_notif=is_notif,
        content=body.message,
        extra=body.extra,
        android=_notification(body, is_upgrade) if is_notif else AndroidStyle(),
    )


def _notification(body: PushBody, is_upgrade: bool) -> AndroidStyle:
    action, param = _click(body)
    if is_upgrade:
        action, param = _DOWNLOAD, _given(body.download_url, "download_url", "is_upgrade_download 1")
    return AndroidStyle(
        title=body.title,
        sound=body.sound or False,
        vibrate=body.vibrate or False,
        removable=not body.unremovable,
        click_action=action,
        click_param_json=msgspec.json.encode(param).decode() if param else "",
    )


def _click(body: PushBody) -> tuple[int, str]:
    """Return the action's number and its parameter."""
    match body.click_action:
        case "open_app":
            if body.open_app is None:
                raise InputError("open_app is missing: click_action open_app needs it")
            return _OPEN_APP, ""
        case "open_url":
            return _OPEN_URL, _given(body.open_url, "open_url", "click_action open_url")
        case "intent":
            return _INTENT, _given(body.intent, "intent", "click_action intent")
        case None:
            return 0, ""


def _given(value: str | None, name: str, needed_by: str) -> str:
    if not value:
        raise InputError(f"{name} is missing: {needed_by} needs it")
    return value


def _check_bytes(text: str, limit: int, name: str) -> None:
    if len(text.encode()) > limit:
        raise InputError(f"{name} must have at most {limit} bytes")
