"""The legacy iOS interface's document."""

import functools

from edge.core.answers import Done, Refusal
from edge.ios import replies, requests
from edge.openapi.document import Interface, Operation, openapi
from edge.openapi.schema import Component, Json, example_of

APPKEY = "1987654321"
SIGN = "0123456789abcdef0123456789abcdef"
TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
_SIGNED = {"appkey": APPKEY, "sign": SIGN}
_PLAIN = {**_SIGNED, "message": "Your order is on its way"}
_PUSH = Component(requests.IosPushBody, "Push", (requests.IosSigned,))
_REGISTRATION = Component(requests.RegistrationBody, "Registration", (requests.IosSigned,))
_PUSH_EXAMPLES = {
    "everyone": example_of(requests.IosPushBody, **_SIGNED),
    "numbers as text": {**_PLAIN, "period": "600", "badge": "-1", "transparent": "1", "content-available": "0"},
    "tokens": {**_PLAIN, "token": [TOKEN]},
    "a token": {**_PLAIN, "token": TOKEN},
}
_REGISTRATION_EXAMPLES = {"token": {**_SIGNED, "token": TOKEN}}
OPERATIONS = [
    Operation(
        "post", "/push", "Send a push to everyone, to a list of tokens or to one", _PUSH,
        (replies.IosPushed, replies.NotPushed, Refusal), _PUSH_EXAMPLES, repeatable=True,
    ),
    Operation(
        "post", "/register", "Register a device token", _REGISTRATION, (Done, Refusal), _REGISTRATION_EXAMPLES
    ),
    Operation(
        "delete", "/register", "Delete a device token", _REGISTRATION, (Done, Refusal), _REGISTRATION_EXAMPLES
    ),
]  # fmt: skip


@functools.cache
def document() -> Json:
    text = "The older interface for iOS. Numbers may be written as text, within the same bounds."
    return openapi(Interface("Carillon legacy iOS", text, 8200, OPERATIONS))
