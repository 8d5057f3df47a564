"""The AsyncAPI 3.0 document of the device protocol: the frames of a WebSocket connection to the gateway."""

import functools
from importlib.metadata import version
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from edge.core.parsing.fields import MessageId
from edge.openapi import device
from edge.openapi.document import MEDIA_TYPE
from edge.openapi.schema import Component, Components, Json
from services.domain.device_protocol import answers, frames

PATH = "/device/v1"


def _described(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Click(msgspec.Struct, frozen=True):
    """The action of a click on the notification."""

    action: Annotated[
        int,
        _described(
            "1 open the app, 2 a URL, 3 an intent, 4 landing page, 5 pop-up, 6 information flow, 7 rich media,"
            " 8 download an upgrade."
        ),
    ]
    param: Annotated[
        Any | UnsetType,
        _described("The action's parameter from the app server: text for 2, 3 and 8, an object for 4 to 7."),
    ] = UNSET


class PushFrame(msgspec.Struct, frozen=True, tag_field="type", tag="push"):
    """A message. Without an acknowledgement it is sent again after a reconnect, under the same id."""

    msgid: Annotated[MessageId, _described("The message id. Show no id twice, but acknowledge a repeated one as well.")]
    is_notif: Annotated[Literal[0, 1], _described("1: show a notification; 0: pass the message to the app.")]
    content: Annotated[str, _described("The content.")]
    expires_at: Annotated[int, _described("End of the time to live, milliseconds since 1970 UTC.")]
    title: Annotated[str | UnsetType, _described("The notification's title.")] = UNSET
    sound: Annotated[bool | UnsetType, _described("Play a sound.")] = UNSET
    vibrate: Annotated[bool | UnsetType, _described("Vibrate.")] = UNSET
    removable: Annotated[bool | UnsetType, _described("The user can remove the notification.")] = UNSET
    click: Annotated[Click | UnsetType, _described("The action of a click.")] = UNSET
    badge: Annotated[int | UnsetType, _described("The number at the app's icon; -1 adds one.")] = UNSET
    extra: Annotated[str | UnsetType, _described("Free text from the app server.")] = UNSET
    shortened: Annotated[
        list[str] | UnsetType,
        _described("Over Web Push, where a message has 4 KB: the fields that were cut or left out."),
    ] = UNSET


_REPORTS: tuple[type[msgspec.Struct], ...] = (frames.Report, frames.Activity)
_SENT: tuple[type[msgspec.Struct], ...] = (frames.Hello, frames.Ack, *_REPORTS, frames.Ping, *device.CHANGES)
_FRAMES = (
    *map(device.frame, _SENT),
    Component(PushFrame, "Push"),
    *device.ANSWERS,
    Component(answers.Pong),
    Component(answers.Goodbye),
)
_EXAMPLES: dict[str, Json] = {
    "Hello": {**device.HELLO, **device.CREDENTIALS},
    "Ack": {"type": "ack", "msgids": [5523479825186816]},
    "Report": {"type": "report", "id": 10, "event": "shown", "msgid": 5523479825186816},
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


@functools.cache
def document() -> Json:
    _, components = Components().schemas(*_FRAMES)
    names = [component.name or component.struct.__name__ for component in _FRAMES]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Carillon device protocol",
            "version": version("carillon"),
            "description": "JSON text frames of at most 8 KiB over one WebSocket connection, subprotocol"
            f" {frames.SUBPROTOCOL}. The device says hello first, within ten seconds. docs/devices.md explains more.",
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
    """Return the operations from the service's side: it receives the frames that devices send."""
    operations: Json = {"hello": _operation("receive", "Hello") | {"reply": _reply("Welcome", "Error", "Goodbye")}}
    operations["ack"] = _operation("receive", "Ack")
    for struct in _REPORTS:
        operations[_verb(struct)] = _operation("receive", struct.__name__) | {"reply": _reply("Ok", "Error")}
    operations["ping"] = _operation("receive", "Ping") | {"reply": _reply("Pong")}
    for struct in device.CHANGES:
        ok = "DeviceOk" if struct is frames.GetDeviceRequest else "Ok"
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
