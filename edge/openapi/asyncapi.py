"""The device protocol as an AsyncAPI 3.0 document: what a device and the gateway say over one WebSocket connection."""

import functools
from importlib.metadata import version
from typing import Any, Literal

import msgspec

from edge.openapi import device, kinds
from edge.openapi.document import MEDIA_TYPE
from edge.openapi.schema import Json, completed, schemas
from services.domain import device_protocol as protocol

PATH = "/device/v1"


class Click(msgspec.Struct, frozen=True):
    """What a click on the notification does."""

    action: int
    param: Any | msgspec.UnsetType = msgspec.UNSET


class Push(msgspec.Struct, frozen=True, tag_field="type", tag="push"):
    """A message. One that is not acknowledged comes again after the next connection, under the same id."""

    msgid: kinds.MessageId
    is_notif: Literal[0, 1]
    content: str
    expires_at: int
    title: str | msgspec.UnsetType = msgspec.UNSET
    sound: bool | msgspec.UnsetType = msgspec.UNSET
    vibrate: bool | msgspec.UnsetType = msgspec.UNSET
    removable: bool | msgspec.UnsetType = msgspec.UNSET
    click: Click | msgspec.UnsetType = msgspec.UNSET
    badge: int | msgspec.UnsetType = msgspec.UNSET
    extra: str | msgspec.UnsetType = msgspec.UNSET


_UNANSWERED: tuple[type[msgspec.Struct], ...] = (protocol.Ack, protocol.Report, protocol.Activity)
_SENT: tuple[type[msgspec.Struct], ...] = (protocol.Hello, *_UNANSWERED, protocol.Ping, *device.CHANGES)
_FROM_DEVICE = [device.frame(struct) for struct in _SENT]
_TO_DEVICE = [Push, *device.ANSWERS, completed(protocol.Pong), completed(protocol.Goodbye)]
_WHO = {"appkey": device.APPKEY, "token": device.TOKEN, "key": device.KEY}
_EXAMPLES: dict[str, Json] = {
    "Hello": {**device.HELLO, **_WHO},
    "Ack": {"type": "ack", "msgids": [5523479825186816]},
    "Report": {"type": "report", "event": "shown", "msgid": 5523479825186816},
    "Activity": device.ACTIVITY,
    "Ping": {"type": "ping"},
    "Pong": {"type": "pong"},
    **{
        "".join(word.capitalize() for word in request["type"].split("_")): request
        for request in device.REQUESTS.values()
    },
    "Push": {
        "type": "push",
        "msgid": 5523479825186816,
        "is_notif": 1,
        "content": "Your order is on its way",
        "title": "News",
        "sound": True,
        "vibrate": False,
        "removable": True,
        "click": {"action": 2, "param": "https://example.org/news"},
        "badge": 1,
        "extra": "campaign-7",
        "expires_at": 1893456000000,
    },
    "Welcome": {"type": "welcome", "token": device.TOKEN, "key": device.KEY, "heartbeat": 240, "new": False},
    "Ok": {"type": "ok", "id": 1},
    "DeviceOk": {"type": "ok", "id": 8, "alias": "alice", "tags": [1], "stags": ["news"], "device": device.DEVICE},
    "Error": {"type": "error", "id": 1, "code": 400, "desc": "input error: tags: expected `array`"},
    "Goodbye": {"type": "goodbye", "reason": "draining", "retry_after_ms": 1500},
}
_TEXTS = {
    "Ack.msgids": "Messages that the device has stored or shown.",
    "Report.event": "What became of the notification.",
    "Report.msgid": "The message.",
    "Push.msgid": "The message's id. Show none twice, acknowledge a repeated one all the same.",
    "Push.is_notif": "1: show a notification; 0: for the app alone.",
    "Push.content": "The content.",
    "Push.expires_at": "Until when it is of use, milliseconds since 1970 UTC.",
    "Push.title": "The notification's title.",
    "Push.sound": "Play a sound.",
    "Push.vibrate": "Vibrate.",
    "Push.removable": "The user can remove the notification.",
    "Push.click": "What a click does.",
    "Push.badge": "The number at the app's icon; -1 adds one.",
    "Push.extra": "Free text from the app server.",
    "Click.action": "1 open the app, 2 a URL, 3 an intent, 4 landing page, 5 pop-up, 6 information flow, 7 rich media,"
    " 8 download an upgrade.",
    "Click.param": "What the app server gave for the action: text for 2, 3 and 8, an object for 4 to 7.",
    "Goodbye.reason": "draining: come back after retry_after_ms; idle: come back; replaced: another connection of the"
    " device took over; unauthorized: wrong appkey, token or key; protocol: a frame was not understood.",
    "Goodbye.retry_after_ms": "When to come back; 0: at once.",
}


@functools.cache
def document() -> Json:
    frames = [*_FROM_DEVICE, *_TO_DEVICE]
    texts = {**device.REQUEST_TEXTS, **device.ANSWER_TEXTS, **_TEXTS}
    _, components = schemas(frames, (), texts)
    names = [kind.__name__ for kind in frames]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Carillon device protocol",
            "version": version("carillon"),
            "description": "JSON text frames of at most 8 KiB over one WebSocket connection, subprotocol"
            f" {protocol.SUBPROTOCOL}. The device says hello first, within ten seconds. docs/devices.md tells more.",
        },
        "defaultContentType": MEDIA_TYPE,
        "servers": {"gateway": {"host": "localhost:8400", "protocol": "ws"}},
        "channels": {
            "device": {"address": PATH, "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names}}
        },
        "operations": _operations(),
        "components": {"messages": {name: _message(name) for name in names}, "schemas": components},
    }


def _message(name: str) -> Json:
    example = {"name": name, "payload": _EXAMPLES[name]}
    return {"name": name, "payload": {"$ref": f"#/components/schemas/{name}"}, "examples": [example]}


def _operations() -> Json:
    """Seen from the service: it receives what devices send."""
    operations: Json = {"hello": _operation("receive", "Hello") | {"reply": _reply("Welcome", "Error", "Goodbye")}}
    for struct in _UNANSWERED:
        operations[_verb(struct)] = _operation("receive", struct.__name__)
    operations["ping"] = _operation("receive", "Ping") | {"reply": _reply("Pong")}
    for struct in device.CHANGES:
        ok = "DeviceOk" if struct is protocol.GetDeviceRequest else "Ok"
        name = struct.__name__.removesuffix("Request")
        operations[_verb(struct)] = _operation("receive", name) | {"reply": _reply(ok, "Error")}
    return operations | {"push": _operation("send", "Push"), "goodbye": _operation("send", "Goodbye")}


def _verb(struct: type[msgspec.Struct]) -> str:
    return str(struct.__struct_config__.tag)


def _operation(action: Literal["send", "receive"], message: str) -> Json:
    return {"action": action, "channel": _CHANNEL, "messages": [_in_channel(message)]}


def _reply(*messages: str) -> Json:
    return {"channel": _CHANNEL, "messages": [_in_channel(message) for message in messages]}


def _in_channel(message: str) -> Json:
    return {"$ref": f"#/channels/device/messages/{message}"}


_CHANNEL = {"$ref": "#/channels/device"}
