"""Requests of the legacy iOS interface: their bodies with limits and descriptions, and their parsing."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from edge.core.message_ids import SLOT_IDS
from edge.core.parsing.body import MAX_BODY_BYTES
from edge.core.parsing.fields import (
    APNS_LIMIT,
    AnyIosToken,
    Badge,
    Flag,
    IosAppkey,
    IosToken,
    Period,
    Sign,
    check_payload,
    described,
    sign_of,
)
from edge.core.parsing.targets import check_top
from edge.core.parsing.typed import decode
from edge.core.push import AppPush
from edge.core.signature import AppRef
from protos.push.v1.push_pb2 import KIND_BROADCAST, KIND_UNICAST, Audience, Everyone, IosStyle, Message, Tokens
from protos.registry.v1.apps_pb2 import App
from services.domain.apns_payload import carrying_msgid
from services.domain.ios_tokens import ios_token, ios_tokens
from services.errors import InputError

# Bodies of the legacy iOS interface, with their limits and descriptions.
#
# Fields that are not named here are ignored, unless they look like a misspelt target; null counts as absent, except
# that a target must not be null.

TokenList = Annotated[list[AnyIosToken], msgspec.Meta(min_length=1)]
Dictionary = Annotated[dict[str, Any], msgspec.Meta(min_length=1)]


class IosSigned(msgspec.Struct, frozen=True):
    """The fields of every request that authentication reads."""

    appkey: Annotated[IosAppkey, described("The app. A number is accepted too.")]
    sign: Annotated[Sign, sign_of("the app's secret")]


class IosPushBody(msgspec.Struct, frozen=True):
    """POST /push. `extra`, `transparent` and `content-available` have no effect when `token` is a single one."""

    message: Annotated[
        str | Dictionary,
        described(
            "The content: text, or a dictionary in the form of Apple's alert. Empty text with a `badge` changes"
            f" the badge alone. {APNS_LIMIT}",
            {"title": "News", "body": "Your order is on its way"},
        ),
    ]
    token: Annotated[
        IosToken | TokenList | None,
        described("A token, which must be registered, or a list of tokens. Default: all devices."),
    ] = None
    period: Annotated[
        Period | None,
        described("Time to live for devices that are offline, seconds. Default: the app's own setting.", 86400),
    ] = None
    badge: Annotated[Badge | None, described("The number at the app's icon.", 3)] = None
    extra: Annotated[str | None, described("Free text that is sent along; not to a single token.", "campaign-7")] = None
    transparent: Annotated[
        Flag | None, described("1: passed to the app without showing it; not to a single token.", 0)
    ] = None
    content_available: Annotated[
        Flag | None, described("1 wakes the app in the background; not for a single token.", 1)
    ] = msgspec.field(name="content-available", default=None)
    category: Annotated[str | None, described("The category of custom actions.", "NEWS")] = None


class RegistrationBody(msgspec.Struct, frozen=True):
    """POST and DELETE /register."""

    token: Annotated[
        IosToken,
        described("The device token that APNs gave: 64 to 200 hexadecimal digits; spaces, < and > are left out."),
    ]


TARGETS = ("token",)
MAX_TOKENS = MAX_BODY_BYTES // 67
"""Upper bound of a list of tokens: a body has no room for more, each of 64 digits between quotes, with a comma."""

_KEYS = frozenset(IosPushBody.__struct_fields__)
_DEFAULT_SOUND = "default"
_NAMES = {"content": "message", "extra": "extra", "category": "category", "sound": "message"}


def push_order(raw: bytes, app: App) -> list[AppPush]:
    """Parse POST /push: to one token, which must be registered, to a list of tokens, or to all devices.

    Only the size of the body limits the list. The number of message ids of one push is limited, so a longer list
    becomes several pushes.
    """
    check_top(raw, _KEYS, TARGETS)
    body: IosPushBody = decode(IosPushBody, raw)
    message = carrying_msgid(_message(body)) if app.apns_reports else _message(body)
    return [
        AppPush(
            app=AppRef(app.appkey, app.platform),
            kind=KIND_BROADCAST if body.token is None else KIND_UNICAST,
            audience=audience,
            message=message,
            period_s=body.period or app.default_period_s,
            qps=0,
            must_exist=isinstance(body.token, str),
        )
        for audience in _audiences(body.token)
    ]


def named_token(raw: bytes) -> str:
    """Parse POST and DELETE /register into the token as it is given."""
    body: RegistrationBody = decode(RegistrationBody, raw)
    ios_token(body.token, "token")
    return body.token


def _audiences(token: str | list[str] | None) -> Iterator[Audience]:
    if token is None:
        yield Audience(everyone=Everyone())
        return
    if not isinstance(token, str) and len(token) > MAX_TOKENS:
        raise InputError(f"token must have at most {MAX_TOKENS} entries")
    tokens = [ios_token(token, "token")] if isinstance(token, str) else ios_tokens(token)
    for at in range(0, len(tokens), SLOT_IDS):
        yield Audience(tokens=Tokens(tokens=tokens[at : at + SLOT_IDS]))


def _message(body: IosPushBody) -> Message:
    is_unicast = isinstance(body.token, str)
    is_notif = is_unicast or body.transparent != 1
    if body.message == "" and (body.badge is None or not is_notif):
        raise InputError("message must not be empty, unless a notification has a badge")
    in_background = None if is_unicast else body.content_available
    message = Message(
        is_notif=is_notif,
        content=body.message if isinstance(body.message, str) else _json(body.message),
        extra=None if is_unicast else body.extra,
        ios=IosStyle(
            badge=body.badge,
            sound=_DEFAULT_SOUND if is_notif and body.message and not _is_payload(body.message) else None,
            content_available=None if in_background is None else in_background == 1,
            category=body.category,
            content_is_json=not isinstance(body.message, str),
        ),
    )
    check_payload(message, _NAMES)
    return message


def _is_payload(message: str | Mapping[str, Any]) -> bool:
    """Return whether the message is Apple's payload, whose `aps` says whether there is a sound."""
    return not isinstance(message, str) and isinstance(message.get("aps"), dict)


def _json(dictionary: Mapping[str, Any]) -> str:
    """Encode compactly, with integers of any size."""
    return json.dumps(dictionary, ensure_ascii=False, separators=(",", ":"))
