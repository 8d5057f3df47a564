"""The legacy Android door's document."""

import functools
from typing import Annotated, Any, Literal

import msgspec

from edge.android import audience, bodies, style
from edge.openapi import kinds
from edge.openapi.document import SIGN_TEXT, DoorDocument, Operation, Refusal, openapi
from edge.openapi.schema import Json, completed, one_of


def _bytes(limit: int, minimum: int = 0) -> msgspec.Meta:
    return msgspec.Meta(min_length=minimum, extra_json_schema={"x-maxBytes": limit})


class TokenOutcome(msgspec.Struct, forbid_unknown_fields=True):
    """What became of one entry of the token list."""

    msgid: kinds.MessageId
    pos: kinds.Position
    token: str
    result: Literal[0, 401]
    desc: str


class AliasOutcome(msgspec.Struct, forbid_unknown_fields=True):
    """What became of one alias."""

    alias: str
    succ_num: kinds.Position
    fail_num: kinds.Position


class Pushed(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str
    msgid: kinds.MessageId | msgspec.UnsetType = msgspec.UNSET
    details: list[one_of(TokenOutcome, AliasOutcome)] | msgspec.UnsetType = msgspec.UNSET  # type: ignore[valid-type]


class Timed(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str
    task_key: str


class Done(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    msgid: kinds.MessageId
    token: str


class Acks(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str
    ack_info_list: list[Ack]
    has_more: bool
    pos: str


_Message = Annotated[str, _bytes(style.MESSAGE_BYTES, 1)]
_Title = Annotated[str, _bytes(style.TITLE_BYTES)]
_PUSH_KINDS: dict[str, Any] = {
    "message": _Message,
    "title": _Title | None,
    "alias": kinds.Name | kinds.Aliases | None,
    "token": kinds.Token | kinds.Tokens | None,
    "optfilter": Annotated[
        kinds.LegacyDeviceFilter | None, msgspec.Meta(extra_json_schema={"x-maxBytes": audience.OPTFILTER_BYTES})
    ],
}
_SIGNED: dict[str, Any] = {"appkey": kinds.AndroidAppkey, "sign": kinds.Sign}
_Push = completed(bodies.PushBody, "Push", **_PUSH_KINDS, **_SIGNED)
_TimedPush = completed(bodies.TimedBody, "TimedPush", **_PUSH_KINDS, send_time=kinds.Minute, **_SIGNED)
_CancelTimed = completed(bodies.CancelTimedBody, "CancelTimed", task_key=kinds.TaskKey, **_SIGNED)
_Cancel = completed(bodies.CancelBody, "Cancel", **_SIGNED)
_AskAcks = completed(bodies.AckBody, "AskAcks", **_SIGNED)

APPKEY = "1234567890"
SIGN = "0123456789abcdef0123456789abcdef"
TOKEN = "3e1f0cd9e1b84c0fa2a19c1de1d0a3b7"  # noqa: S105
SEND_TIME = "2027-01-31 18:05"
TASK_KEY = "f3c2a7d09be84d2c8d6a1b0e5c4f7a98"
MSGID = 5523479825186816
_WHO = {"appkey": APPKEY, "sign": SIGN}
_PLAIN = {**_WHO, "message": "Your order is on its way", "is_notif": 1}
_NOTIFICATION = {
    "title": "News",
    "sound": True,
    "vibrate": True,
    "unremovable": False,
    "extra": "campaign-7",
    "period": 86400,
}
PUSH_EXAMPLES: dict[str, Json] = {
    "everyone": {
        **_PLAIN,
        **_NOTIFICATION,
        "qps": 500,
        "click_action": "open_url",
        "open_url": "https://example.org/news",
    },
    "numbers as text": {**_PLAIN, "is_notif": "1", "period": "600", "qps": "0", "is_upgrade_download": "0"},
    "all tags": {**_PLAIN, "filter": [1, 2, "30"], "click_action": "open_app", "open_app": True},
    "groups of tags, and attributes": {
        **_PLAIN,
        "filter_v2": [[1, 2], [30]],
        "optfilter": {
            "locate": ["北京市"],
            "osversion": ["14"],
            "appversion": ["2.1"],
            "channel": ["store"],
            "phone": ["brand"],
            "operator": ["cm"],
            "activity_1": {">=": 1},
            "activity_7": {">": 2, "<": 50},
            "activity_30": {"<=": 100},
            "activity_90": {"=": 60},
        },
    },
    "a token": {**_PLAIN, "token": TOKEN, "click_action": "intent", "intent": "intent:#Intent;end"},
    "tokens": {**_PLAIN, "token": [TOKEN], "is_upgrade_download": 1, "download_url": "https://example.org/app.apk"},
    "an alias": {**_PLAIN, "alias": "alice", "alias_send_all": 0},
    "aliases": {**_PLAIN, "alias": ["alice", "bob"], "alias_send_all": 1},
}
OPERATIONS = [
    Operation("post", "/push", "Send a push now", _Push, (Pushed, Refusal), PUSH_EXAMPLES, True),
    Operation(
        "delete", "/push", "Cancel a broadcast for all who have not received it", _Cancel, (Done, Refusal),
        {"cancel": {**_WHO, "msgid": MSGID}},
    ),
    Operation(
        "post", "/timed_msg", "Send a push later", _TimedPush, (Timed, Refusal),
        {name: {**push, "send_time": SEND_TIME} for name, push in PUSH_EXAMPLES.items()}, True,
    ),
    Operation(
        "delete", "/timed_msg", "Cancel a timed push that was not sent yet", _CancelTimed, (Done, Refusal),
        {"cancel": {**_WHO, "task_key": TASK_KEY}},
    ),
    Operation(
        "post", "/getAckInfo", "Which devices received unicast messages; enabled app by app", _AskAcks,
        (Acks, Refusal), {"first": {**_WHO, "pos": "0"}, "next": {**_WHO, "pos": "0", "reqno": 100}},
    ),
]  # fmt: skip
_PUSH_TEXTS = {
    "appkey": "The app. A number is accepted too.",
    "sign": SIGN_TEXT + ".",
    "message": "The content.",
    "is_notif": "1: a notification; 0: handed to the app alone; 0 unless given.",
    "period": "How long it is kept for devices that are away, seconds; the app's own unless given.",
    "qps": "Messages a second, for broadcasts; 0: as fast as can be.",
    "filter": "Tags a device must all have. Deprecated.",
    "filter_v2": "Groups of tags: a device has all tags of at least one group. Not beside filter.",
    "optfilter": "Device attributes, ANDed with the tags; its compact text has at most 2000 bytes.",
    "token": "One token or a list. Each entry is sent to, a repeated one again. Not beside a filter.",
    "alias": "One alias or a list, each sent to once. Not beside a filter.",
    "alias_send_all": "1: to all devices of each alias; 0: to the most recently active one; 0 unless given.",
    "extra": "Free text that goes along.",
    "title": "The notification's title.",
    "sound": "Play a sound; false unless given.",
    "vibrate": "Vibrate; false unless given.",
    "unremovable": "true: the user cannot remove the notification; false unless given.",
    "click_action": "What a click does.",
    "open_app": "Needed with click_action open_app.",
    "open_url": "The URL; needed with click_action open_url.",
    "intent": "The intent's URI; needed with click_action intent.",
    "is_upgrade_download": "1: a click opens download_url.",
    "download_url": "Needed with is_upgrade_download 1.",
}
TEXTS = {
    **kinds.LEGACY_DEVICE_FILTER_TEXTS,
    **{f"{name}.{field}": text for name in ("Push", "TimedPush") for field, text in _PUSH_TEXTS.items()},
    **{
        f"{name}.{field}": _PUSH_TEXTS[field]
        for name in ("CancelTimed", "Cancel", "AskAcks")
        for field in ("appkey", "sign")
    },
    "TimedPush.send_time": "A minute in the service's time zone, at least 10 minutes ahead and within 3 days.",
    "CancelTimed.task_key": "The task, from the answer that made it.",
    "Cancel.msgid": "The broadcast, from the answer that sent it.",
    "AskAcks.pos": "Where to go on: 0, then what the last answer said.",
    "AskAcks.reqno": "Records at most; 1000 unless given.",
    "Pushed.msgid": "The message's id; where a token list was named, details has the ids.",
    "Pushed.details": "An entry for each token, then one for each alias.",
    "TokenOutcome.msgid": "This entry's own message id.",
    "TokenOutcome.pos": "Its place in the list, from 0.",
    "TokenOutcome.token": "The token.",
    "TokenOutcome.result": "0, or 401 where the token is unknown.",
    "TokenOutcome.desc": "In words.",
    "AliasOutcome.alias": "The alias.",
    "AliasOutcome.succ_num": "Devices it is sent to.",
    "AliasOutcome.fail_num": "1 where the alias has no device.",
    "Timed.task_key": "Names the timed push.",
    "Acks.ack_info_list": "Who received what; from 15 minutes after receipt, for two days.",
    "Acks.has_more": "false: wait about 30 seconds before asking again.",
    "Acks.pos": "Where the next request goes on.",
    "Ack.msgid": "The message.",
    "Ack.token": "The device that received it.",
    **{f"{name}.result": "Success." for name in ("Pushed", "Timed", "Done", "Acks")},
    **{f"{name}.desc": "In words." for name in ("Pushed", "Timed", "Done", "Acks")},
}


@functools.cache
def document() -> Json:
    parts = (TokenOutcome, AliasOutcome)
    text = "The older interface for Android. Numbers may be written as text, within the same bounds."
    return openapi(DoorDocument("Carillon legacy Android", text, 8001, OPERATIONS, parts, TEXTS))
