"""Frames of the device protocol as documents show them, and POST /device/v1 for devices without a connection."""

import functools
import operator
from typing import Annotated, Any

import msgspec

from edge.openapi import kinds
from edge.openapi.document import Operation
from edge.openapi.schema import completed
from services.domain import device_protocol as protocol

_WITHOUT_NUL = r"^[^\u0000]*$"
_Name = Annotated[kinds.Name, msgspec.Meta(pattern=_WITHOUT_NUL)]
_Text = Annotated[protocol.AttributeText, msgspec.Meta(pattern=_WITHOUT_NUL)]
_TEXTS_OF_DEVICE: dict[str, Any] = dict.fromkeys(protocol.DeviceAttributes.__struct_fields__, (_Text, ""))
Attributes = completed(protocol.DeviceAttributes, **_TEXTS_OF_DEVICE)
Stags = Annotated[list[_Name], msgspec.Meta(min_length=1, max_length=100)]
_ANY_APPKEY = {"description": "The app; a number is accepted too.", "format": "appkey"}
Appkey = Annotated[str | int, msgspec.Meta(extra_json_schema=_ANY_APPKEY)]
_CHECKED: dict[type[msgspec.Struct], dict[str, Any]] = {
    protocol.Hello: {"appkey": Appkey, "device": Attributes | None},
    protocol.SetAliasRequest: {"alias": _Name},
    protocol.AddStagsRequest: {"stags": Stags},
    protocol.RemoveStagsRequest: {"stags": Stags},
    protocol.SetAttributesRequest: {"device": Attributes},
}
CHANGES: tuple[type[msgspec.Struct], ...] = (
    protocol.SetAliasRequest,
    protocol.ClearAliasRequest,
    protocol.AddTagsRequest,
    protocol.RemoveTagsRequest,
    protocol.AddStagsRequest,
    protocol.RemoveStagsRequest,
    protocol.SetAttributesRequest,
    protocol.GetDeviceRequest,
)
_OVER_HTTP: tuple[type[msgspec.Struct], ...] = (*CHANGES, protocol.Activity)


def frame(struct: type[msgspec.Struct]) -> Any:
    """A frame that a device sends over its connection."""
    return completed(struct, struct.__name__.removesuffix("Request"), **_CHECKED.get(struct, {}))


def _with_credentials(struct: type[msgspec.Struct]) -> Any:
    """A frame as the body of a request: it says who sends it."""
    return completed(
        struct,
        struct.__name__.removesuffix("Request"),
        **_CHECKED.get(struct, {}),
        appkey=Appkey,
        token=protocol.Secret,
        key=protocol.Secret,
    )


REQUEST = functools.reduce(operator.or_, map(_with_credentials, _OVER_HTTP), frame(protocol.Hello))
ANSWERS: tuple[Any, ...] = (
    completed(protocol.Welcome, closed=True),
    completed(protocol.Ok, closed=True),
    completed(protocol.DeviceOk, closed=True, device=Attributes),
    completed(protocol.Error, closed=True),
)

APPKEY = "1987654321"
TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
KEY = "the key from the welcome"
DEVICE = {
    "region": "北京市",
    "carrier": "China Mobile",
    "channel": "store",
    "sdk_version": "1.0",
    "brand": "brand",
    "model": "model",
    "resolution": "1170x2532",
    "os_version": "18.1",
    "app_version": "2.1",
}
_WHO = {"appkey": APPKEY, "token": TOKEN, "key": KEY}
HELLO = {"type": "hello", "appkey": APPKEY, "token": TOKEN, "device": DEVICE, "heartbeat": 240}
REQUESTS: dict[str, dict[str, Any]] = {
    "set alias": {"type": "set_alias", "id": 1, "alias": "alice"},
    "clear alias": {"type": "clear_alias", "id": 2},
    "add tags": {"type": "add_tags", "id": 3, "tags": [1, -2]},
    "remove tags": {"type": "remove_tags", "id": 4, "tags": [1]},
    "add string tags": {"type": "add_stags", "id": 5, "stags": ["news", "vip"]},
    "remove string tags": {"type": "remove_stags", "id": 6, "stags": ["vip"]},
    "set attributes": {"type": "set_attributes", "id": 7, "device": DEVICE},
    "get device": {"type": "get_device", "id": 8},
}
ACTIVITY = {"type": "activity", "event": "open"}
_EXAMPLES = {
    "register": HELLO,
    "hello again": {**HELLO, "key": KEY},
    **{name: {**request, **_WHO} for name, request in {**REQUESTS, "app opened": ACTIVITY}.items()},
}
OPERATION = Operation(
    "post", "/device/v1", "A device's request, for devices that hold no connection", REQUEST, ANSWERS, _EXAMPLES
)

ATTRIBUTE_TEXTS = {
    "DeviceAttributes.region": "A region such as 北京市.",
    "DeviceAttributes.carrier": "The carrier's name; those of the three main carriers become cm, ct, cu.",
    "DeviceAttributes.channel": "Where the app was installed from.",
    "DeviceAttributes.sdk_version": "Version of the client library.",
    "DeviceAttributes.brand": "Brand.",
    "DeviceAttributes.model": "Model.",
    "DeviceAttributes.resolution": "Screen, as width x height.",
    "DeviceAttributes.os_version": "Version of the operating system.",
    "DeviceAttributes.app_version": "Version of the app.",
}
REQUEST_TEXTS = {
    **ATTRIBUTE_TEXTS,
    "Hello.token": "The device's token, for iOS the one that APNs gave. Without one a new Android device is made.",
    "Hello.key": "Proves that the token is the device's own.",
    "Hello.device": "What the device says about itself.",
    "Hello.heartbeat": "The heartbeat it wishes for, in seconds; the welcome tells which was agreed.",
    "Activity.event": "The app was opened; its user logged in or out.",
    "SetAlias.alias": "Whose device it is. The 11th device of an alias takes the place of the least recently active.",
    "AddTags.tags": "Number tags.",
    "RemoveTags.tags": "Number tags.",
    "AddStags.stags": "String tags.",
    "RemoveStags.stags": "String tags.",
    "SetAttributes.device": "Fields that are not empty replace what was known.",
    **{
        f"{struct.__name__.removesuffix('Request')}.id": "The device's own number for the request; in the answer too."
        for struct in CHANGES
    },
}
ANSWER_TEXTS = {
    "Welcome.token": "The device's token; keep it.",
    "Welcome.key": "The proof that goes with it; keep it.",
    "Welcome.heartbeat": "Send something at least every so many seconds.",
    "Welcome.new": "Whether the device was registered just now.",
    "Ok.id": "The request's id.",
    "DeviceOk.id": "The request's id.",
    "DeviceOk.alias": "The device's alias.",
    "DeviceOk.tags": "Its number tags.",
    "DeviceOk.stags": "Its string tags.",
    "DeviceOk.device": "What it said about itself; an empty string: nothing.",
    "Error.code": "400 wrong field, 401 wrong appkey, token or key, 500 a fault of the service: repeat the request.",
    "Error.desc": "In words.",
    "Error.id": "The request's id.",
}
_CREDENTIAL_TEXTS = {
    f"{struct.__name__.removesuffix('Request')}.{name}": text
    for struct in _OVER_HTTP
    for name, text in {"token": "The device's token.", "key": "The key from the welcome."}.items()
}
TEXTS = {**REQUEST_TEXTS, **ANSWER_TEXTS, **_CREDENTIAL_TEXTS}
