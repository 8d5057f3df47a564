"""The device protocol: JSON frames between a device and its door, the same over WebSocket and over HTTP.

Pure: what a frame looks like, what is wrong with one, which command follows from it, what the answers look like.
A device sends `Hello` first. `Ack`, `Report` and `Activity` are not answered, `Ping` by `Pong`, others with their id.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias, TypeVar, assert_never

import msgspec

from protos.delivery.v1.delivery_pb2 import OutcomeKind
from protos.gateway.v1.sessions_pb2 import SessionEventKind
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import (
    AddStags,
    AddTags,
    Attributes,
    ClearAlias,
    Device,
    DeviceCommand,
    RegisterDevice,
    RemoveStags,
    RemoveTags,
    SetAlias,
    SetAttributes,
)
from services.runtime.errors import CarillonError, InputError

SUBPROTOCOL = "carillon.device.v1"
HEARTBEAT_S = 240
MAX_FRAME_BYTES = 8 * 1024
MAX_NAME_BYTES = 40
"""An alias or a string tag at most, UTF-8."""

_WITHOUT_NUL = {"pattern": r"^[^\u0000]*$"}
_NAME = {"minLength": 1, "x-maxBytes": MAX_NAME_BYTES, **_WITHOUT_NUL}


def _described(text: str) -> msgspec.Meta:
    """Describe a field in the published documents, which are made from these types."""
    return msgspec.Meta(description=text)


RequestId = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
MessageId = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
Tag = Annotated[int, msgspec.Meta(ge=-32767, le=32767)]
Tags = Annotated[list[Tag], msgspec.Meta(min_length=1, max_length=100), _described("Number tags.")]
Name = Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
"""An alias or a string tag, whose length `_check_name` checks."""

Stags = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100), _described("String tags.")]
AttributeText = Annotated[str, msgspec.Meta(max_length=100, extra_json_schema=_WITHOUT_NUL)]
Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
ReportEvent = Literal["shown", "clicked", "dismissed"]
ActivityEvent = Literal["open", "login", "logout"]
GoodbyeReason = Literal["draining", "replaced", "unauthorized", "protocol", "idle"]
Decoded = TypeVar("Decoded")


class DeviceAttributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a device says about itself; an empty string says nothing."""

    region: Annotated[AttributeText, _described("A region such as 北京市.")] = ""
    carrier: Annotated[
        AttributeText, _described("The carrier's name; those of the three main carriers become cm, ct, cu.")
    ] = ""
    channel: Annotated[AttributeText, _described("The channel that the app was installed from.")] = ""
    sdk_version: Annotated[AttributeText, _described("Version of the client library.")] = ""
    brand: Annotated[AttributeText, _described("Brand.")] = ""
    model: Annotated[AttributeText, _described("Model.")] = ""
    resolution: Annotated[AttributeText, _described("Screen, as width x height.")] = ""
    os_version: Annotated[AttributeText, _described("Version of the operating system.")] = ""
    app_version: Annotated[AttributeText, _described("Version of the app.")] = ""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if "\0" in getattr(self, name):
                raise ValueError(f"{name} must not contain NUL")

    def to_proto(self) -> Attributes:
        return Attributes(**{name: getattr(self, name) for name in self.__struct_fields__})


class Credentials(msgspec.Struct, frozen=True):
    """The sender of a frame. `key` proves that the device owns the token; an appkey may be a JSON number."""

    appkey: Annotated[
        str | int,
        msgspec.Meta(description="The app; a number is accepted too.", extra_json_schema={"format": "appkey"}),
    ]
    token: Annotated[
        Secret | None,
        _described("The device's token, on iOS the token from APNs. Without one a new Android device is registered."),
    ] = None
    key: Annotated[Secret | None, _described("Proves that the token is the device's own.")] = None

    @property
    def app(self) -> str:
        return str(self.appkey)


class Hello(Credentials, frozen=True, tag_field="type", tag="hello"):
    """The first frame. Without a token it registers a new device. `heartbeat`: the interval it asks for, seconds."""

    device: Annotated[DeviceAttributes | None, _described("The device's attributes.")] = None
    heartbeat: Annotated[
        int | None, _described("The heartbeat interval it asks for, seconds; the welcome has the agreed one.")
    ] = None


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack"):
    msgids: Annotated[
        list[MessageId],
        msgspec.Meta(min_length=1, max_length=1000),
        _described("Messages that the device has stored or shown."),
    ]


class Report(msgspec.Struct, frozen=True, tag_field="type", tag="report"):
    event: Annotated[ReportEvent, _described("The outcome of the notification.")]
    msgid: Annotated[MessageId, _described("The message.")]


class Activity(msgspec.Struct, frozen=True, tag_field="type", tag="activity"):
    event: Annotated[ActivityEvent, _described("The app was opened, or its user logged in or out.")]


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """A heartbeat of devices that cannot send WebSocket pings; it is answered by a pong."""


class Request(msgspec.Struct, frozen=True, tag_field="type", tag=False, kw_only=True):
    """A frame that is answered; the answer carries its id."""

    id: Annotated[RequestId | None, _described("The device's own number for the request, repeated in the answer.")] = (
        None
    )


class SetAliasRequest(Request, frozen=True, tag="set_alias"):
    alias: Annotated[
        Name,
        _described("The new alias. The 11th device of an alias replaces the least recently active one."),
    ]

    def __post_init__(self) -> None:
        _check_name("alias", self.alias)


class ClearAliasRequest(Request, frozen=True, tag="clear_alias"):
    pass


class AddTagsRequest(Request, frozen=True, tag="add_tags"):
    tags: Tags


class RemoveTagsRequest(Request, frozen=True, tag="remove_tags"):
    tags: Tags


class AddStagsRequest(Request, frozen=True, tag="add_stags"):
    stags: Stags

    def __post_init__(self) -> None:
        _check_stags(self.stags)


class RemoveStagsRequest(Request, frozen=True, tag="remove_stags"):
    stags: Stags

    def __post_init__(self) -> None:
        _check_stags(self.stags)


class SetAttributesRequest(Request, frozen=True, tag="set_attributes"):
    device: Annotated[DeviceAttributes, _described("Fields that are not empty replace the known ones.")]


class GetDeviceRequest(Request, frozen=True, tag="get_device"):
    pass


Change: TypeAlias = (
    SetAliasRequest
    | ClearAliasRequest
    | AddTagsRequest
    | RemoveTagsRequest
    | AddStagsRequest
    | RemoveStagsRequest
    | SetAttributesRequest
)
Frame: TypeAlias = Hello | Ack | Report | Activity | Ping | Change | GetDeviceRequest


class Welcome(msgspec.Struct, frozen=True, tag_field="type", tag="welcome"):
    token: Annotated[str, _described("The device's token, to be stored.")]
    key: Annotated[str, _described("The key that proves the token, to be stored.")]
    heartbeat: Annotated[int, _described("The device sends a frame at least once in this interval, seconds.")]
    new: Annotated[bool, _described("Whether the hello registered the device.")]


class Pong(msgspec.Struct, frozen=True, tag_field="type", tag="pong"):
    pass


class Ok(msgspec.Struct, frozen=True, tag_field="type", tag="ok", omit_defaults=True):
    id: Annotated[int | None, _described("The request's id.")] = None


class DeviceOk(msgspec.Struct, frozen=True, tag_field="type", tag="ok"):
    """The answer to get_device: fields are named as in the requests that set them."""

    id: Annotated[int | None, _described("The request's id.")]
    alias: Annotated[str | None, _described("The device's alias.")]
    tags: Annotated[Sequence[int], _described("Its number tags.")]
    stags: Annotated[Sequence[str], _described("Its string tags.")]
    device: Annotated[DeviceAttributes, _described("Its attributes; an empty string is an unknown one.")]


class Error(msgspec.Struct, frozen=True, tag_field="type", tag="error", omit_defaults=True):
    code: Annotated[
        int,
        _described("400 wrong field, 401 wrong appkey, token or key, 500 a fault of the service: repeat the request."),
    ]
    desc: Annotated[str, _described("The error in words.")]
    id: Annotated[int | None, _described("The request's id.")] = None


class Goodbye(msgspec.Struct, frozen=True, tag_field="type", tag="goodbye"):
    """The last frame of a connection. The device may reconnect after `retry_after_ms`; 0 is at once."""

    reason: Annotated[
        GoodbyeReason,
        _described(
            "draining: reconnect after retry_after_ms; idle: reconnect; replaced: another connection of the device took"
            " over; unauthorized: wrong appkey, token or key; protocol: a frame was not understood."
        ),
    ]
    retry_after_ms: Annotated[int, _described("Delay before reconnecting; 0: at once.")] = 0


Answer: TypeAlias = Welcome | Pong | Ok | DeviceOk | Error | Goodbye


class MalformedError(InputError):
    """Not a frame at all: no JSON, or no object."""


class _Identified(msgspec.Struct, frozen=True):
    id: RequestId | None = None


_frames: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)
_credentials = msgspec.json.Decoder(Credentials)
_identified = msgspec.json.Decoder(_Identified)
_encoder = msgspec.json.Encoder()


def decode(payload: bytes) -> Frame:
    """One frame. MalformedError: no JSON object; InputError: a field is wrong, the text names it."""
    return _decoded(_frames, payload)


def credentials(payload: bytes) -> Credentials:
    """Who sent a frame over HTTP; errors as for `decode`."""
    return _decoded(_credentials, payload)


def request_id(payload: bytes) -> int | None:
    """The id in a frame that did not decode, for the error that answers it."""
    try:
        return _identified.decode(payload).id
    except (ValueError, RecursionError):
        return None


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer)


def registration(appkey: str, token: str, platform: "Platform.ValueType", frame: Hello) -> DeviceCommand:
    """The command that makes a device out of its hello."""
    attributes = frame.device.to_proto() if frame.device else None
    return DeviceCommand(appkey=appkey, token=token, register=RegisterDevice(platform=platform, attributes=attributes))


def command(frame: Frame, appkey: str, token: str) -> DeviceCommand | None:
    """The command that follows from a known device's frame; None when nothing about the device changes.

    A hello of a known device changes its attributes, if it names any.
    """
    made = DeviceCommand(appkey=appkey, token=token)
    match frame:
        case SetAliasRequest(alias=alias):
            made.set_alias.CopyFrom(SetAlias(alias=alias))
        case ClearAliasRequest():
            made.clear_alias.CopyFrom(ClearAlias())
        case AddTagsRequest(tags=tags):
            made.add_tags.CopyFrom(AddTags(tags=tags))
        case RemoveTagsRequest(tags=tags):
            made.remove_tags.CopyFrom(RemoveTags(tags=tags))
        case AddStagsRequest(stags=stags):
            made.add_stags.CopyFrom(AddStags(stags=stags))
        case RemoveStagsRequest(stags=stags):
            made.remove_stags.CopyFrom(RemoveStags(stags=stags))
        case SetAttributesRequest(device=device):
            made.set_attributes.CopyFrom(SetAttributes(attributes=device.to_proto()))
        case Hello(device=DeviceAttributes() as device) if device != DeviceAttributes():
            made.set_attributes.CopyFrom(SetAttributes(attributes=device.to_proto()))
        case Hello() | Ack() | Report() | Activity() | Ping() | GetDeviceRequest():
            return None
        case _:
            assert_never(frame)
    return made


def report_kind(event: ReportEvent) -> "OutcomeKind.ValueType":
    """What delivery records for a report; an ack is OUTCOME_KIND_RECEIVED."""
    match event:
        case "shown":
            return OutcomeKind.OUTCOME_KIND_SHOWN
        case "clicked":
            return OutcomeKind.OUTCOME_KIND_CLICKED
        case "dismissed":
            return OutcomeKind.OUTCOME_KIND_DISMISSED
        case _:
            assert_never(event)


def activity_kind(event: ActivityEvent) -> "SessionEventKind.ValueType":
    """What the session fact says for an activity."""
    match event:
        case "open":
            return SessionEventKind.SESSION_EVENT_KIND_APP_OPENED
        case "login":
            return SessionEventKind.SESSION_EVENT_KIND_LOGGED_IN
        case "logout":
            return SessionEventKind.SESSION_EVENT_KIND_LOGGED_OUT
        case _:
            assert_never(event)


def device_answer(request: int | None, device: Device) -> DeviceOk:
    """The answer to get_device from the registry's record."""
    known = {name: getattr(device.attributes, name) for name in DeviceAttributes.__struct_fields__}
    return DeviceOk(
        id=request,
        alias=device.alias if device.HasField("alias") else None,
        tags=list(device.tags),
        stags=list(device.stags),
        device=DeviceAttributes(**known),
    )


def error_answer(request: int | None, error: CarillonError) -> Error:
    """The caller's faults in full; of the service's own troubles only that the request may be repeated."""
    desc = str(error) if error.result < 500 else "the service could not finish this; repeat the request"
    return Error(code=error.result, desc=desc, id=request)


def _check_name(field: str, name: str) -> None:
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise ValueError(f"{field} must have 1 to {MAX_NAME_BYTES} bytes, but one has {size}")
    if "\0" in name:
        raise ValueError(f"{field} must not contain NUL")


def _check_stags(stags: list[str]) -> None:
    for stag in stags:
        _check_name("stags", stag)


def _decoded(decoder: "msgspec.json.Decoder[Decoded]", payload: bytes) -> Decoded:
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedError("input error: the frame is not JSON") from None


def _refusal(error: msgspec.ValidationError) -> InputError:
    problem, _, path = str(error).partition(" - at `$")
    field = path.strip("`.")
    problem = problem[0].lower() + problem[1:]
    if not field and problem.startswith("expected `object`"):
        return MalformedError(f"input error: the frame: {problem}")
    return InputError(f"input error: {field}: {problem}" if field else f"input error: {problem}")
