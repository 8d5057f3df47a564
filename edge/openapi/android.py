"""The legacy Android interface's document."""

import functools

import msgspec

from edge.android import bodies, replies
from edge.core.answers import Done, Refusal
from edge.openapi.document import Interface, Operation, openapi
from edge.openapi.schema import Component, Json, example_of

APPKEY = "1234567890"
SIGN = "0123456789abcdef0123456789abcdef"
TOKEN = "3e1f0cd9e1b84c0fa2a19c1de1d0a3b7"  # noqa: S105
SEND_TIME = "2027-01-31 18:05"
TASK_KEY = "f3c2a7d09be84d2c8d6a1b0e5c4f7a98"
MSGID = 5523479825186816
_SIGNED = {"appkey": APPKEY, "sign": SIGN}
_EVERYONE = {**example_of(bodies.AndroidPushBody, **_SIGNED), **example_of(bodies.Notification)}
_PLAIN = {**_SIGNED, "message": _EVERYONE["message"], "is_notif": 1}
PUSH_EXAMPLES: dict[str, Json] = {
    "everyone": _EVERYONE,
    "numbers as text": {**_PLAIN, "is_notif": "1", "period": "600", "qps": "0", "is_upgrade_download": "0"},
    "all tags": {**_PLAIN, "filter": [1, 2, "30"], "click_action": "open_app", "open_app": True},
    "groups of tags, and attributes": {
        **_PLAIN,
        "filter_v2": [[1, 2], [30]],
        "optfilter": example_of(bodies.AndroidFilter),
    },
    "a token": {**_PLAIN, "token": TOKEN, "click_action": "intent", "intent": "intent:#Intent;end"},
    "tokens": {**_PLAIN, "token": [TOKEN], "is_upgrade_download": 1, "download_url": "https://example.org/app.apk"},
    "an alias": {**_PLAIN, "alias": "alice", "alias_send_all": 0},
    "aliases": {**_PLAIN, "alias": ["alice", "bob"], "alias_send_all": 1},
}


def _signed(body: type[msgspec.Struct], name: str, *more: type[msgspec.Struct]) -> Component:
    return Component(body, name, (*more, bodies.AndroidSigned))


_PUSH = _signed(bodies.AndroidPushBody, "Push", bodies.Notification)
_TIMED_PUSH = _signed(bodies.TimedPushBody, "TimedPush", bodies.Notification)
OPERATIONS = [
    Operation(
        "post", "/push", "Send a push now", _PUSH, (replies.AndroidPushed, Refusal), PUSH_EXAMPLES,
        repeatable=True,
    ),
    Operation(
        "delete", "/push", "Cancel a broadcast for the devices that have not received it",
        _signed(bodies.CancelBody, "Cancel"), (Done, Refusal), {"cancel": {**_SIGNED, "msgid": MSGID}},
    ),
    Operation(
        "post", "/timed_msg", "Send a push later", _TIMED_PUSH,
        (replies.Timed, Refusal),
        {name: {**push, "send_time": SEND_TIME} for name, push in PUSH_EXAMPLES.items()}, repeatable=True,
    ),
    Operation(
        "delete", "/timed_msg", "Cancel a timed push that was not sent yet",
        _signed(bodies.CancelTimedBody, "CancelTimed"), (Done, Refusal),
        {"cancel": {**_SIGNED, "task_key": TASK_KEY}},
    ),
    Operation(
        "post", "/getAckInfo", "List the devices that received unicast messages; enabled app by app",
        _signed(bodies.AcksBody, "AskAcks"), (replies.Acks, Refusal),
        {"first": {**_SIGNED, "pos": "0"}, "next": {**_SIGNED, "pos": "0", "reqno": 100}},
    ),
]  # fmt: skip


@functools.cache
def document() -> Json:
    text = "The older interface for Android. Numbers may be written as text, within the same bounds."
    return openapi(Interface("Carillon legacy Android", text, 8001, OPERATIONS))
