"""The message of a legacy Android push."""

import msgspec

from edge.android.bodies import MESSAGE_BYTES, TITLE_BYTES, Notification, PushBody
from edge.core.parsing.typed import decode
from protos.push.v1.push_pb2 import AndroidStyle, Message
from services.runtime.errors import InputError

_OPEN_APP, _OPEN_URL, _INTENT, _DOWNLOAD = 1, 2, 3, 8


def message_of(raw: bytes, body: PushBody, app_name: str) -> Message:
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
