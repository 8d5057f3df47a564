"""Requests to the simulator, refused as Huawei refuses them (Push Kit of HarmonyOS, messages:send of version 3)."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from services.hms_simulator.requests import (
    CATEGORIES,
    MAX_BYTES,
    MAX_TOKENS,
    MAX_TTL_S,
    TOKEN_COUNT,
    TOO_LARGE,
    WRONG_MESSAGE,
    WRONG_PARAMETER,
)
from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest

WRONG_TTL = "80100004"
TEST_TOKEN_COUNT = "80300030"  # noqa: S105  # a code, no secret
MAX_TEST_TOKENS = 10
NOTIFICATION, BACKGROUND = "0", "6"


class _Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A field that Huawei does not know is a wrong parameter."""


class HarmonyClickSchema(_Struct, frozen=True):
    action_type: Literal[0, 1]
    action: str = ""
    uri: str = ""
    data: dict[str, Any] = {}


class HarmonyBadgeSchema(_Struct, frozen=True):
    add_num: int | UnsetType = UNSET
    set_num: int | UnsetType = UNSET


class HarmonyNotificationSchema(_Struct, frozen=True):
    category: str = ""
    title: str = ""
    body: str = ""
    click_action: HarmonyClickSchema | UnsetType = UNSET
    style: Literal[0, 1, 3] = 0
    image: str = ""
    notify_id: int | UnsetType = UNSET
    app_message_id: str | UnsetType = UNSET
    profile_id: str = ""
    foreground_show: bool = True
    badge: HarmonyBadgeSchema | UnsetType = UNSET


class Payload(_Struct, frozen=True):
    notification: HarmonyNotificationSchema | UnsetType = UNSET
    extra_data: str = ""


class PushOptions(_Struct, frozen=True):
    test_message: bool = False
    ttl: int = 86_400
    bi_tag: str = ""
    receipt_id: str = ""
    collapse_key: int = -1


class Target(_Struct, frozen=True):
    token: list[str]


class HarmonyMessageSchema(_Struct, frozen=True):
    payload: Payload
    target: Target
    push_options: PushOptions = PushOptions()

    @property
    def token(self) -> list[str]:
        """The phones that get it."""
        return self.target.token


_requests = msgspec.json.Decoder(HarmonyMessageSchema)


def validate(body: bytes, push_type: str) -> ReceivedRequest[HarmonyMessageSchema]:
    """Read the body of `messages:send`. `push_type`: the header. PushRefusedError."""
    if push_type not in (NOTIFICATION, BACKGROUND):
        raise PushRefusedError(WRONG_PARAMETER, "push-type")
    try:
        message = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PushRefusedError(WRONG_PARAMETER, str(error)) from None
    is_test = message.push_options.test_message
    if not 1 <= len(message.token) <= MAX_TOKENS:
        raise PushRefusedError(TOKEN_COUNT, f"{len(message.token)} tokens")
    if is_test and len(message.token) > MAX_TEST_TOKENS:
        raise PushRefusedError(TEST_TOKEN_COUNT, f"{len(message.token)} tokens")
    if len(body) - len(msgspec.json.encode(message.token)) > MAX_BYTES:
        raise PushRefusedError(TOO_LARGE)
    _check_options(message.push_options)
    notification, data = message.payload.notification, message.payload.extra_data
    if (push_type == NOTIFICATION) != (notification is not UNSET) or (push_type == BACKGROUND) != bool(data):
        raise PushRefusedError(WRONG_MESSAGE, "the payload is not that of the push-type")
    if notification is not UNSET:
        _check_notification(notification)
    return ReceivedRequest(message, message.token, is_test)


def _check_options(options: PushOptions) -> None:
    if not 1 <= options.ttl <= MAX_TTL_S:
        raise PushRefusedError(WRONG_TTL)
    if len(options.bi_tag.encode()) > 64:
        raise PushRefusedError(WRONG_MESSAGE, "biTag")
    if not -1 <= options.collapse_key <= 100:
        raise PushRefusedError(WRONG_MESSAGE, "collapseKey")


def _check_notification(notification: HarmonyNotificationSchema) -> None:
    if notification.category not in CATEGORIES:
        raise PushRefusedError(WRONG_MESSAGE, "category")
    if not notification.title or not notification.body or notification.click_action is UNSET:
        raise PushRefusedError(WRONG_MESSAGE, "a notification needs title, body and clickAction")
    click, badge = notification.click_action, notification.badge
    if (click.action_type == 1) != bool(click.action or click.uri):
        raise PushRefusedError(WRONG_MESSAGE, "clickAction")
    if notification.notify_id is not UNSET and not 0 <= notification.notify_id < 2**31:
        raise PushRefusedError(WRONG_MESSAGE, "notifyId")
    if notification.app_message_id is not UNSET and not 1 <= len(notification.app_message_id) <= 64:
        raise PushRefusedError(WRONG_MESSAGE, "appMessageId")
    if notification.image and not notification.image.startswith("https://"):
        raise PushRefusedError(WRONG_MESSAGE, "image")
    if badge is not UNSET and not _is_right_badge(badge):
        raise PushRefusedError(WRONG_MESSAGE, "badge")


def _is_right_badge(badge: HarmonyBadgeSchema) -> bool:
    is_added = badge.add_num is UNSET or 1 <= badge.add_num <= 99
    is_set = badge.set_num is UNSET or 0 <= badge.set_num <= 99
    return is_added and is_set
