"""Frames of the device protocol as documents show them, and POST /device/v1 for devices without a connection."""

from typing import Annotated, Any

import msgspec

from edge.openapi import android
from edge.openapi.document import Operation
from edge.openapi.schema import Component
from services.domain.device_protocol import answers, frames

Struct = type[msgspec.Struct]
_APPKEY = msgspec.Meta(description="The app; a number is accepted too.", extra_json_schema={"format": "appkey"})


class DeviceCredentials(msgspec.Struct, frozen=True):
    """The sender of a frame over HTTP."""

    appkey: Annotated[str | int, _APPKEY]
    token: Annotated[frames.Secret, msgspec.Meta(description="The device's token.")]
    key: Annotated[frames.Secret, msgspec.Meta(description="The key from the welcome.")]


CHANGES: tuple[Struct, ...] = (
    frames.SetAliasRequest,
    frames.ClearAliasRequest,
    frames.AddTagsRequest,
    frames.RemoveTagsRequest,
    frames.AddStagsRequest,
    frames.RemoveStagsRequest,
    frames.SetAttributesRequest,
    frames.SetAddressRequest,
    frames.ClearAddressRequest,
    frames.GetDeviceRequest,
)


def frame(struct: Struct, *more: Struct) -> Component:
    """A frame that a device sends. `more`: structs whose fields it has as well."""
    return Component(struct, struct.__name__.removesuffix("Request"), more)


_OVER_HTTP: tuple[Struct, ...] = (*CHANGES, frames.Activity)
REQUEST: tuple[Struct | Component, ...] = (frames.Hello, *(frame(struct, DeviceCredentials) for struct in _OVER_HTTP))
ANSWERS = (
    Component(answers.Welcome, closed=True),
    Component(answers.Ok, closed=True),
    Component(answers.DeviceOk, closed=True),
    Component(answers.Error, closed=True),
)

APPKEY = "1987654321"
TOKEN = "a9d0ed10e9cfd022a61cb08753f49c5a0b0dfb383697bf9f9d750a1003da19c7"  # noqa: S105
NEW_TOKEN = "5e1f0cd9e1b84c0fa2a19c1de1d0a3b7c8d2f64154e14c7d9a35e0f1b2c3d4e6"  # noqa: S105
KEY = "the key from the welcome"
ANDROID_KEY = "the key from the welcome of an Android device"
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
PROOF = (
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSIsImF1ZCI6IjE5ODc2NTQzMjEiLCJleHAiOjE4OTM0NTYwMDB9"
    ".MEYCIQDVt0PZ0gYl4cZ5o0H1r7kqW8x3nJ2mT6uB9eLfA_sKxgIhAP3yRb1q"
)
CREDENTIALS = {"appkey": APPKEY, "token": TOKEN, "key": KEY}
ANDROID_CREDENTIALS = {"appkey": android.APPKEY, "token": android.TOKEN, "key": ANDROID_KEY}
HELLO = {"type": "hello", "appkey": APPKEY, "token": TOKEN, "device": DEVICE, "heartbeat": 240}
REQUESTS: dict[str, dict[str, Any]] = {
    "set alias": {"type": "set_alias", "id": 1, "alias": "alice"},
    "set a proven alias": {"type": "set_alias", "id": 1, "alias": "alice", "proof": PROOF},
    "clear alias": {"type": "clear_alias", "id": 2},
    "add tags": {"type": "add_tags", "id": 3, "tags": [1, -2]},
    "add proven tags": {"type": "add_tags", "id": 3, "tags": [30001], "proof": PROOF},
    "remove tags": {"type": "remove_tags", "id": 4, "tags": [1]},
    "add string tags": {"type": "add_stags", "id": 5, "stags": ["news", "vip"]},
    "add proven string tags": {"type": "add_stags", "id": 5, "stags": ["user:7"], "proof": PROOF},
    "remove string tags": {"type": "remove_stags", "id": 6, "stags": ["vip"]},
    "set attributes": {"type": "set_attributes", "id": 7, "device": DEVICE},
    "set the address of a browser": {
        "type": "set_address",
        "id": 10,
        "channel": "webpush",
        "address": "https://updates.push.services.mozilla.com/wpush/v2/gAAAAABbq",
        "keys": {
            "p256dh": "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
            "auth": "BTBZMqHH6r4Tts7J_aSIgg",
        },
    },
    "set the address of a vendor": {"type": "set_address", "id": 11, "channel": "fcm", "address": "cXz1y:APA91bH"},
    "clear address": {"type": "clear_address", "id": 12, "channel": "fcm"},
    "get device": {"type": "get_device", "id": 8},
}
ACTIVITY = {"type": "activity", "id": 9, "event": "open"}
_EXAMPLES = {
    "register": {**HELLO, "token": NEW_TOKEN},
    "hello again": {**HELLO, "key": KEY},
    "hello with a code": {**HELLO, "token": NEW_TOKEN[::-1], "code": "arE7it7PD7AWuCkYK6lCTF66eaI"},
    **{
        name: {**request, **(ANDROID_CREDENTIALS if request["type"] == "set_address" else CREDENTIALS)}
        for name, request in {**REQUESTS, "app opened": ACTIVITY}.items()
    },
}
OPERATION = Operation(
    "post",
    "/device/v1",
    "A device's request, for devices that hold no connection",
    REQUEST,
    ANSWERS,
    _EXAMPLES,
    denial=Component(answers.Error, closed=True),
)
