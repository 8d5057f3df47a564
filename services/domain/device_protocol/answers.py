"""Frames that the service sends to devices, except pushes, and the close codes of connections."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from protos.registry.v1.devices_pb2 import Device
from services.domain.addresses import channel_name
from services.domain.device_protocol.frames import DeviceAttributes, described
from services.errors import CarillonError, SignError

GoodbyeReason = Literal["draining", "replaced", "unauthorized", "protocol", "idle"]
ErrorReason = Literal["possession", "revoked"]


class HelloRefusedError(SignError):
    """The hello of an iOS device is refused, and `reason` says what the app can do."""

    def __init__(self, message: str, reason: ErrorReason) -> None:
        super().__init__(message)
        self.reason: ErrorReason = reason


class Welcome(msgspec.Struct, frozen=True, tag_field="type", tag="welcome", omit_defaults=True):
    token: Annotated[str, described("The device's token, to be stored.")]
    key: Annotated[str, described("The key that proves the token, to be stored.")]
    heartbeat: Annotated[int, described("The device sends a frame at least once in this interval, seconds.")]
    new: Annotated[bool, described("Whether the hello registered the device.")]
    ignored: Annotated[
        Sequence[str],
        described("Attributes of the hello that were not stored, and why; such as one that is too long."),
    ] = ()


class Pong(msgspec.Struct, frozen=True, tag_field="type", tag="pong"):
    pass


class Ok(msgspec.Struct, frozen=True, tag_field="type", tag="ok", omit_defaults=True):
    id: Annotated[int | None, described("The request's id.")] = None


class DeviceOk(msgspec.Struct, frozen=True, tag_field="type", tag="ok"):
    """Answer to get_device; its fields have the names of the requests that set them."""

    id: Annotated[int | None, described("The request's id.")]
    alias: Annotated[str | None, described("The device's alias.")]
    tags: Annotated[Sequence[int], described("Its number tags.")]
    stags: Annotated[Sequence[str], described("Its string tags.")]
    device: Annotated[DeviceAttributes, described("Its known attributes.")]
    channels: Annotated[
        Sequence[str] | msgspec.UnsetType, described("The channels on which it has an address; absent if on none.")
    ] = msgspec.UNSET


class Error(msgspec.Struct, frozen=True, tag_field="type", tag="error", omit_defaults=True):
    code: Annotated[
        int,
        described(
            "400 wrong field, 401 wrong appkey, token, key or proof, 403 a proof is missing or the app is paused, 429"
            " too many devices or requests: repeat it later, 500 a fault of the service: repeat the request."
        ),
    ]
    desc: Annotated[str, described("The error in words.")]
    id: Annotated[int | None, described("The request's id.")] = None
    reason: Annotated[
        ErrorReason | None,
        described(
            "Of the hello of an iOS token. possession: the token is registered, and a silent push brings a code for the"
            " next hello; revoked: the app's server must register the token first."
        ),
    ] = None


class Goodbye(msgspec.Struct, frozen=True, tag_field="type", tag="goodbye"):
    """The last frame of a connection. The device may reconnect after `retry_after_ms`; 0 is at once."""

    reason: Annotated[
        GoodbyeReason,
        described(
            "draining: reconnect after retry_after_ms; idle: reconnect; replaced: another connection of the device took"
            " over; unauthorized: wrong appkey, token or key; protocol: a frame was not understood."
        ),
    ]
    retry_after_ms: Annotated[int, described("Delay before reconnecting; 0: at once.")] = 0


Answer: TypeAlias = Welcome | Pong | Ok | DeviceOk | Error | Goodbye

_encoder = msgspec.json.Encoder()


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer)


def device_answer(request: int | None, device: Device) -> DeviceOk:
    """Return the answer to get_device from the registry's record."""
    known = {name: getattr(device.attributes, name) for name in DeviceAttributes.__struct_fields__}
    return DeviceOk(
        id=request,
        alias=device.alias if device.HasField("alias") else None,
        tags=list(device.tags),
        stags=list(device.stags),
        device=DeviceAttributes(**known),
        channels=[channel_name(each.channel) for each in device.addresses] or msgspec.UNSET,
    )


def error_answer(request: int | None, error: CarillonError) -> Error:
    """Return the error's own text for faults of the caller, and a general one for faults of the service."""
    desc = str(error) if error.result < 500 else "the service could not finish this; repeat the request"
    reason = error.reason if isinstance(error, HelloRefusedError) else None
    return Error(code=error.result, desc=desc, id=request, reason=reason)


# Close codes of the devices' WebSocket connections: those of goodbyes, and those that may be sent at all.

CLOSE_CODES: dict[GoodbyeReason, int] = {
    "draining": 1012,
    "replaced": 1000,
    "unauthorized": 1008,
    "protocol": 1002,
    "idle": 1001,
}
_DEFINED_CODES = frozenset([*range(1000, 1004), *range(1007, 1015)])
"""Close codes below 3000 that may be sent: RFC 6455, and 1012 to 1014, which were registered later."""

_PRIVATE_CODES = range(3000, 5000)


def may_be_sent(code: int) -> bool:
    """Return whether an endpoint may send this close code (RFC 6455, 7.4)."""
    return code in _DEFINED_CODES or code in _PRIVATE_CODES
