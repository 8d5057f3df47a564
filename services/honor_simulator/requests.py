"""Requests to the simulator (sendMessage of version 1), refused with codes of Huawei's form.

Honor's list of codes is not known here; it descends from Huawei's, so the codes below are Huawei's nearest ones, and
nothing but this table knows them. How many tokens and bytes a request may have is unknown too, and not checked.
"""

import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

SUCCESS = "200"
WRONG_PARAMETER = "80100001"
WRONG_MESSAGE = "80100003"
NOT_AUTHENTICATED = "80200001"
TOKEN_EXPIRED = "80200003"  # noqa: S105  # a code, no secret
WRONG_TIMESTAMP = "80200001"
NO_TOKENS = "80300010"

MAX_TTL_S = 1_296_000
MAX_TIMESTAMP_MS = 600_000
"""How far a request's time may be from the server's."""

_TTL = re.compile(r"([1-9][0-9]{0,8})s")


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A field that Honor does not know is a wrong parameter."""


class HonorClickSchema(_Struct, frozen=True):
    type: Literal[1, 2, 3]
    intent: str = ""
    action: str = ""
    url: str = ""


class HonorBadgeSchema(_Struct, frozen=True):
    add_num: int | UnsetType = UNSET
    set_num: int | UnsetType = UNSET
    badge_class: str = ""


class HonorNotificationSchema(_Struct, frozen=True):
    title: str = ""
    body: str = ""
    click_action: HonorClickSchema | UnsetType = UNSET
    importance: Literal["LOW", "NORMAL"] = "NORMAL"
    notify_id: int | UnsetType = UNSET
    tag: str = ""
    group: str = ""
    badge: HonorBadgeSchema | UnsetType = UNSET
    style: Literal[0, 1] = 0
    big_title: str = ""
    big_body: str = ""
    when: str | int = ""
    buttons: list[dict[str, Any]] = []
    image: str = ""


class HonorAndroidSchema(_Struct, frozen=True):
    ttl: str = "86400s"
    bi_tag: str = ""
    target_user_type: Literal[0, 1] = 0
    notification: HonorNotificationSchema | UnsetType = UNSET


class HonorMessageSchema(_Struct, frozen=True):
    token: list[str]
    data: str = ""
    android: HonorAndroidSchema = HonorAndroidSchema()


_requests = msgspec.json.Decoder(HonorMessageSchema)


def validate(body: bytes) -> ReceivedRequest[HonorMessageSchema]:
    """Read the body of `sendMessage`. PushRefusedError."""
    try:
        message = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    if not all(message.token) or not message.token:
        raise PushRefusedError(NO_TOKENS, "token")
    ttl, notification = _TTL.fullmatch(message.android.ttl), message.android.notification
    if ttl is None or int(ttl[1]) > MAX_TTL_S:
        raise PushRefusedError(WRONG_MESSAGE, "ttl")
    if notification is not UNSET:
        _check_notification(notification)
    elif not message.data:
        raise PushRefusedError(WRONG_MESSAGE, "neither a notification nor data")
    return ReceivedRequest(message, message.token)


def check_timestamp(text: str, now_ms: int) -> None:
    """Check the header `timestamp`. PushRefusedError."""
    if re.fullmatch("[0-9]{13}", text) is None or abs(int(text) - now_ms) > MAX_TIMESTAMP_MS:
        raise PushRefusedError(WRONG_TIMESTAMP, "timestamp")


def _check_notification(notification: HonorNotificationSchema) -> None:
    click, badge = notification.click_action, notification.badge
    if not notification.title or not notification.body or click is UNSET:
        raise PushRefusedError(WRONG_MESSAGE, "a notification needs title, body and clickAction")
    is_complete = {
        1: bool(click.intent) != bool(click.action) and not click.url,
        2: click.url.startswith("https://") and not (click.intent or click.action),
        3: not (click.intent or click.action or click.url),
    }
    if not is_complete[click.type]:
        raise PushRefusedError(WRONG_MESSAGE, "clickAction")
    if notification.notify_id is not UNSET and not 0 <= notification.notify_id < 2**31:
        raise PushRefusedError(WRONG_MESSAGE, "notifyId")
    if len(notification.buttons) > 3:
        raise PushRefusedError(WRONG_MESSAGE, "buttons")
    if badge is not UNSET and not _is_right_badge(badge):
        raise PushRefusedError(WRONG_MESSAGE, "badge")


def _is_right_badge(badge: HonorBadgeSchema) -> bool:
    is_added = badge.add_num is UNSET or 1 <= badge.add_num <= 99
    is_set = badge.set_num is UNSET or 0 <= badge.set_num <= 99
    return is_added and is_set and (badge.add_num is not UNSET or badge.set_num is not UNSET)
