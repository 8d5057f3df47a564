"""Requests to the simulator, refused as Huawei refuses them (Push Kit, messages:send of versions 1 and 2)."""

import re
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

MAX_BYTES = 4096
"""Huawei's limit of a request without its tokens."""

MAX_TOKENS = 1000
MAX_TTL_S = 15 * 86_400
CATEGORIES = frozenset(
    (
        "IM", "VOIP", "MISS_CALL", "SUBSCRIPTION", "TRAVEL", "HEALTH", "WORK", "ACCOUNT", "EXPRESS", "FINANCE",
        "DEVICE_REMINDER", "MAIL", "PLAY_VOICE", "MARKETING",
    )
)  # fmt: skip

SUCCESS = "80000000"
SOME_TOKENS = "80100000"
WRONG_PARAMETER = "80100001"
WRONG_MESSAGE = "80100003"
WRONG_COLLAPSE_KEY = "80100013"
NOT_AUTHENTICATED = "80200001"
TOKEN_EXPIRED = "80200003"  # noqa: S105  # a code, no secret
JWT_EXPIRED = "80200005"
ALL_TOKENS = "80300007"
TOO_LARGE = "80300008"
TOKEN_COUNT = "80300010"  # noqa: S105  # a code, no secret
NO_RIGHT = "80300011"

_TTL = re.compile(r"([1-9][0-9]{0,8})s")
_TOKEN = re.compile(r"[A-Za-z0-9_.:-]+")


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field that Huawei does not know is a wrong parameter."""


class ClickAction(_Struct, frozen=True):
    type: Literal[1, 2, 3]
    intent: str = ""
    action: str = ""
    url: str = ""


class Badge(_Struct, frozen=True):
    class_: str = msgspec.field(name="class")
    add_num: int | UnsetType = UNSET
    set_num: int | UnsetType = UNSET


class HmsNotificationSchema(_Struct, frozen=True):
    title: str = ""
    body: str = ""
    click_action: ClickAction | UnsetType = UNSET
    importance: Literal["LOW", "NORMAL", "HIGH"] = "NORMAL"
    notify_id: int | UnsetType = UNSET
    tag: str = ""
    channel_id: str = ""
    foreground_show: bool = True
    badge: Badge | UnsetType = UNSET
    style: Literal[0, 1, 3] = 0
    image: str = ""
    profile_id: str = ""


class HmsAndroidSchema(_Struct, frozen=True):
    collapse_key: int = -1
    urgency: Literal["HIGH", "NORMAL"] | UnsetType = UNSET
    category: str = ""
    ttl: str = "86400s"
    bi_tag: str = ""
    receipt_id: str = ""
    target_user_type: Literal[0, 1] = 0
    notification: HmsNotificationSchema | UnsetType = UNSET


class HmsMessageSchema(_Struct, frozen=True):
    token: list[str]
    data: str = ""
    android: HmsAndroidSchema = HmsAndroidSchema()


class _SendRequest(_Struct, frozen=True):
    message: HmsMessageSchema | UnsetType = UNSET
    validate_only: bool = False


class _Loose(msgspec.Struct):
    message: dict[str, msgspec.Raw] | UnsetType = UNSET


_requests = msgspec.json.Decoder(_SendRequest)
_loose = msgspec.json.Decoder(_Loose)


def validate(body: bytes, *, may_be_urgent: bool) -> ReceivedRequest[HmsMessageSchema]:
    """Read the body of `messages:send`. `may_be_urgent`: the app has the right to high importance. PushRefusedError."""
    try:
        if _loose.decode(body).message is UNSET:
            raise PushRefusedError(TOKEN_COUNT, "no message")
        request = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    message = request.message
    assert message is not UNSET
    if not 1 <= len(message.token) <= MAX_TOKENS:
        raise PushRefusedError(TOKEN_COUNT, f"{len(message.token)} tokens")
    if len(body) - len(msgspec.json.encode(message.token)) > MAX_BYTES:
        raise PushRefusedError(TOO_LARGE)
    _check_android(message.android, may_be_urgent=may_be_urgent)
    if message.android.notification is UNSET and not message.data:
        raise PushRefusedError(WRONG_MESSAGE, "neither a notification nor data")
    return ReceivedRequest(message, message.token, request.validate_only)


def is_token(text: str) -> bool:
    """Whether the text may be a token of a phone."""
    return _TOKEN.fullmatch(text) is not None


def _check_android(android: HmsAndroidSchema, *, may_be_urgent: bool) -> None:
    ttl = _TTL.fullmatch(android.ttl)
    if ttl is None or int(ttl[1]) > MAX_TTL_S:
        raise PushRefusedError(WRONG_MESSAGE, "ttl")
    if not -1 <= android.collapse_key <= 100:
        raise PushRefusedError(WRONG_COLLAPSE_KEY)
    if android.category and android.category not in CATEGORIES:
        raise PushRefusedError(WRONG_MESSAGE, "category")
    if len(android.bi_tag.encode()) > 64:
        raise PushRefusedError(WRONG_MESSAGE, "bi_tag")
    notification = android.notification
    if notification is UNSET:
        if android.urgency == "HIGH" and not may_be_urgent:
            raise PushRefusedError(NO_RIGHT)
        return
    if android.urgency is not UNSET:
        raise PushRefusedError(WRONG_MESSAGE, "urgency is for data messages")
    if notification.importance == "HIGH" and not may_be_urgent:
        raise PushRefusedError(NO_RIGHT)
    _check_notification(notification)


def _check_notification(notification: HmsNotificationSchema) -> None:
    click, badge = notification.click_action, notification.badge
    if not notification.title or not notification.body or click is UNSET:
        raise PushRefusedError(WRONG_MESSAGE, "a notification needs title, body and click_action")
    is_complete = {
        1: bool(click.intent) != bool(click.action),
        2: click.url.startswith("https://"),
        3: not (click.intent or click.action or click.url),
    }
    if not is_complete[click.type]:
        raise PushRefusedError(WRONG_MESSAGE, "click_action")
    if badge is not UNSET and not _is_right_badge(badge):
        raise PushRefusedError(WRONG_MESSAGE, "badge")
    if len(notification.profile_id) > 64:
        raise PushRefusedError(WRONG_MESSAGE, "profile_id")


def _is_right_badge(badge: Badge) -> bool:
    is_added = badge.add_num is UNSET or 1 <= badge.add_num <= 99
    is_set = badge.set_num is UNSET or 0 <= badge.set_num <= 99
    return bool(badge.class_) and is_added and is_set
