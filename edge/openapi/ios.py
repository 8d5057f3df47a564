"""The legacy iOS door's document."""

import functools
from typing import Annotated, Any, Literal

import msgspec

from edge.ios import bodies
from edge.openapi import kinds
from edge.openapi.document import SIGN_TEXT, DoorDocument, Operation, Refusal, openapi
from edge.openapi.schema import Json, completed


class Pushed(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str
    msgid: kinds.MessageId


class NotPushed(msgspec.Struct, forbid_unknown_fields=True):
    """The only token that was named is unknown."""

    result: Literal[401]
    desc: str


class Done(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str


_SIGNED: dict[str, Any] = {"appkey": kinds.IosAppkey, "sign": kinds.Sign}
_Push = completed(
    bodies.PushBody,
    "Push",
    message=bodies.Name | Annotated[dict[str, Any], msgspec.Meta(min_length=1)],
    **_SIGNED,
)
_Registration = completed(bodies.RegisterBody, "Registration", **_SIGNED)

APPKEY = "1987654321"
SIGN = "0123456789abcdef0123456789abcdef"
TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
_WHO = {"appkey": APPKEY, "sign": SIGN}
_PLAIN = {**_WHO, "message": "Your order is on its way"}
_REGISTRATION = {"token": {**_WHO, "token": TOKEN}}
OPERATIONS = [
    Operation(
        "post",
        "/push",
        "Send a push to everyone, to a list of tokens or to one",
        _Push,
        (Pushed, NotPushed, Refusal),
        {
            "everyone": {
                **_PLAIN,
                "message": {"title": "News", "body": "Your order is on its way"},
                "period": 86400,
                "badge": 3,
                "extra": "campaign-7",
                "transparent": 0,
                "content-available": 1,
                "category": "NEWS",
            },
            "numbers as text": {
                **_PLAIN,
                "period": "600",
                "badge": "-1",
                "transparent": "1",
                "content-available": "0",
            },
            "tokens": {**_PLAIN, "token": [TOKEN]},
            "a token": {**_PLAIN, "token": TOKEN},
        },
        repeatable=True,
    ),
    Operation("post", "/register", "Register a device token", _Registration, (Done, Refusal), _REGISTRATION),
    Operation("delete", "/register", "Delete a device token", _Registration, (Done, Refusal), _REGISTRATION),
]
TEXTS = {
    **{f"{name}.appkey": "The app. A number is accepted too." for name in ("Push", "Registration")},
    **{f"{name}.sign": SIGN_TEXT + "." for name in ("Push", "Registration")},
    "Push.message": f"The content: text, or a dictionary as Apple's alert has it. {kinds.APPLE_LIMIT}",
    "Push.token": "One token, which must exist, or a list; absent: everyone.",
    "Push.period": "How long it is kept for devices that are away, seconds; the app's own unless given.",
    "Push.badge": "The number at the app's icon.",
    "Push.extra": "Free text that goes along; not to a single token.",
    "Push.transparent": "1: handed to the app alone; not to a single token.",
    "Push.content-available": "1 wakes the app in the background; not to a single token.",
    "Push.category": "Custom actions.",
    "Registration.token": "The token that APNs gave.",
    "Pushed.msgid": "The message's id; where a list was named, that of its first entry.",
    "NotPushed.result": "Always 401.",
    "NotPushed.desc": "token not found",
    **{f"{name}.result": "Success." for name in ("Pushed", "Done")},
    **{f"{name}.desc": "In words." for name in ("Pushed", "Done")},
}


@functools.cache
def document() -> Json:
    text = "The older interface for iOS. Numbers may be written as text, within the same bounds."
    return openapi(DoorDocument("Carillon legacy iOS", text, 8200, OPERATIONS, (), TEXTS))
