"""Frames that devices send: JSON objects, the same over WebSocket and over HTTP.

A device sends `Hello` first. `Ack` is not answered, `Report` and `Activity` only where they carry an id, `Ping` is
answered by `Pong`, and every other frame by an answer with its id.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec

from protos.registry.v1.devices_pb2 import Attributes
from services.domain.addresses import (
    CHANNELS,
    MAX_ADDRESS_LENGTH,
    SubscriptionKeys,
    check_address,
    named_channel,
    subscription_keys,
)
from services.domain.text import refuse_nul, without_byte_order_mark
from services.errors import InputError

SUBPROTOCOL = "carillon.device.v1"
HEARTBEAT_S = 240
MAX_FRAME_BYTES = 8 * 1024
MAX_PROOF_LENGTH = 4096
MAX_NAME_BYTES = 40
"""Maximum length of an alias or a string tag in UTF-8."""

_WITHOUT_NUL = {"pattern": r"^[^\u0000]*$"}
_NAME = {"minLength": 1, "x-maxBytes": MAX_NAME_BYTES, **_WITHOUT_NUL}


def described(text: str) -> msgspec.Meta:
    """Describe a field in the published documents, which are made from these types."""
    return msgspec.Meta(description=text)


RequestId = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
MessageId = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
_CONFIRMED = described("With an id the frame is answered by ok, once what it reports cannot be lost any more.")
Tag = Annotated[int, msgspec.Meta(ge=-32767, le=32767)]
Tags = Annotated[list[Tag], msgspec.Meta(min_length=1, max_length=100), described("Number tags.")]
Name = Annotated[str, msgspec.Meta(extra_json_schema=_NAME)]
"""An alias or a string tag, whose length `_check_name` checks."""

Stags = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=100), described("String tags.")]
Proof = Annotated[
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PROOF_LENGTH)] | None,
    described("A JWT of the app's server, which proves that the device may have this."),
]
ChannelName = Annotated[
    str,
    msgspec.Meta(extra_json_schema={"enum": list(CHANNELS)}),
    described("The channel: webpush is for browsers and UnifiedPush, any other for the SDK of that vendor."),
]
MAX_KEY_LENGTH = 100
SubscriptionKey = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_LENGTH)]
MAX_ATTRIBUTE_LENGTH = 100
AttributeText = Annotated[str, msgspec.Meta(max_length=MAX_ATTRIBUTE_LENGTH, extra_json_schema=_WITHOUT_NUL)]
DeviceToken = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
"""Long enough for an iOS token with the spaces and brackets of Apple's old printed form."""

Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
ReportEvent = Literal["shown", "clicked", "dismissed"]
ActivityEvent = Literal["open", "login", "logout"]
Decoded = TypeVar("Decoded")


class DeviceAttributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attributes that a device reports about itself; an empty string stands for no value."""

    region: Annotated[
        AttributeText,
        described("A region such as 北京市; other forms of it, such as 北京 or Beijing, become this one."),
    ] = ""
    carrier: Annotated[
        AttributeText, described("The carrier's name; those of the three main carriers become cm, ct, cu.")
    ] = ""
    channel: Annotated[AttributeText, described("The channel that the app was installed from.")] = ""
    sdk_version: Annotated[AttributeText, described("Version of the client library.")] = ""
    brand: Annotated[AttributeText, described("Brand.")] = ""
    model: Annotated[AttributeText, described("Model.")] = ""
    resolution: Annotated[AttributeText, described("Screen, as width x height.")] = ""
    os_version: Annotated[AttributeText, described("Version of the operating system.")] = ""
    app_version: Annotated[AttributeText, described("Version of the app.")] = ""

    def to_proto(self) -> Attributes:
        return Attributes(**{name: getattr(self, name) for name in self.__struct_fields__})


class Credentials(msgspec.Struct, frozen=True):
    """The sender of a frame. `key` proves that the device owns the token; an appkey may be a JSON number."""

    appkey: Annotated[
        str | int,
        msgspec.Meta(description="The app; a number is accepted too.", extra_json_schema={"format": "appkey"}),
    ]
    token: Annotated[
        DeviceToken | None,
        described("The device's token, on iOS the token from APNs. Without one a new Android device is registered."),
    ] = None
    key: Annotated[Secret | None, described("Proves that the token is the device's own.")] = None

    @property
    def app(self) -> str:
        return str(self.appkey)


class Hello(Credentials, frozen=True, tag_field="type", tag="hello"):
    """The first frame. Without a token it registers a new device. `heartbeat`: the interval it asks for, seconds."""

    device: Annotated[DeviceAttributes | None, described("The device's attributes.")] = None
    heartbeat: Annotated[
        int | None, described("The heartbeat interval it asks for, seconds; the welcome has the agreed one.")
    ] = None
    code: Annotated[
        Secret | None,
        described("iOS, in place of a lost key: the code that a silent push brought after a hello without it."),
    ] = None


class CleanedHello(Hello, frozen=True, tag_field="type", tag="hello"):
    """A hello without the attributes that cannot be stored; `ignored` names these, and says why."""

    ignored: tuple[str, ...] = ()


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack"):
    msgids: Annotated[
        list[MessageId],
        msgspec.Meta(min_length=1, max_length=1000),
        described("Messages that the device has stored or shown."),
    ]


class Report(msgspec.Struct, frozen=True, tag_field="type", tag="report"):
    event: Annotated[ReportEvent, described("The outcome of the notification.")]
    msgid: Annotated[MessageId, described("The message.")]
    id: Annotated[RequestId | None, _CONFIRMED] = None


class Activity(msgspec.Struct, frozen=True, tag_field="type", tag="activity"):
    event: Annotated[ActivityEvent, described("The app was opened, or its user logged in or out.")]
    id: Annotated[RequestId | None, _CONFIRMED] = None


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """A heartbeat of devices that cannot send WebSocket pings; it is answered by a pong."""


class Request(msgspec.Struct, frozen=True, tag_field="type", tag=False, kw_only=True):
    """A frame that is answered; the answer carries the id of the request."""

    id: Annotated[RequestId | None, described("The device's own number for the request, repeated in the answer.")] = (
        None
    )


class SetAliasRequest(Request, frozen=True, tag="set_alias"):
    alias: Annotated[
        Name,
        described("The new alias. The 11th device of an alias replaces the least recently active one."),
    ]
    proof: Proof = None

    def __post_init__(self) -> None:
        _check_name("alias", self.alias)


class ClearAliasRequest(Request, frozen=True, tag="clear_alias"):
    pass


class AddTagsRequest(Request, frozen=True, tag="add_tags"):
    tags: Tags
    proof: Proof = None


class RemoveTagsRequest(Request, frozen=True, tag="remove_tags"):
    tags: Tags


class AddStagsRequest(Request, frozen=True, tag="add_stags"):
    stags: Stags
    proof: Proof = None

    def __post_init__(self) -> None:
        _check_stags(self.stags)


class RemoveStagsRequest(Request, frozen=True, tag="remove_stags"):
    stags: Stags

    def __post_init__(self) -> None:
        _check_stags(self.stags)


class SetAttributesRequest(Request, frozen=True, tag="set_attributes"):
    device: Annotated[DeviceAttributes, described("Fields that are not empty replace the known ones.")]


class AddressKeys(msgspec.Struct, frozen=True):
    """The keys of a push subscription, as a browser's `PushSubscription.toJSON()` has them."""

    p256dh: Annotated[
        SubscriptionKey,
        msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_-]{87}=?$"}),
        described("Its public key: 65 bytes in base64url."),
    ]
    auth: Annotated[
        SubscriptionKey,
        msgspec.Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_-]{22}(==)?$"}),
        described("Its secret: 16 bytes in base64url."),
    ]

    def decoded(self) -> SubscriptionKeys:
        """Return the keys as bytes. ValueError: they are no keys of a subscription."""
        return subscription_keys(self.p256dh, self.auth)


class SetAddressRequest(Request, frozen=True, tag="set_address"):
    """The text of an address or of its keys is in no error, because errors are logged."""

    channel: ChannelName
    address: Annotated[
        str,
        msgspec.Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_ADDRESS_LENGTH, "pattern": "^[!-~]+$"}),
        described(
            "Where the channel reaches the device: the vendor's token, or the endpoint of the push subscription. It"
            " replaces the device's former address on the channel, and another device of the app that has it loses it."
        ),
    ]
    keys: Annotated[
        AddressKeys | None, described("The keys of the push subscription: needed for webpush, and for no other.")
    ] = None

    def __post_init__(self) -> None:
        channel = named_channel(self.channel)
        check_address(channel, self.address)
        if self.channel == "webpush":
            if self.keys is None:
                raise ValueError("keys are missing: send the p256dh and auth of the push subscription")
            self.keys.decoded()
        elif self.keys is not None:
            raise ValueError("keys belong to the channel webpush alone; leave them out")


class ClearAddressRequest(Request, frozen=True, tag="clear_address"):
    channel: ChannelName

    def __post_init__(self) -> None:
        named_channel(self.channel)


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
    | SetAddressRequest
    | ClearAddressRequest
)
Frame: TypeAlias = Hello | Ack | Report | Activity | Ping | Change | GetDeviceRequest


class MalformedError(InputError):
    """The payload is no JSON object."""


class _Identified(msgspec.Struct, frozen=True):
    id: RequestId | None = None


_frames: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)
_credentials = msgspec.json.Decoder(Credentials)
_identified = msgspec.json.Decoder(_Identified)
_WITH_ATTRIBUTES = ("hello", "set_attributes")
_values: msgspec.json.Decoder[object] = msgspec.json.Decoder()


def decode_frame(payload: bytes) -> Frame:
    """Decode one frame. MalformedError: no JSON object; InputError: a field is wrong, the text names it.

    An attribute may be a number or null too. A hello is decoded without the attributes that cannot be stored.
    """
    payload = without_byte_order_mark(payload)
    try:
        frame = _decoded(_frames, payload)
        if b"\\u0000" in payload:
            _refuse_nul(_decoded(_values, payload))
    except MalformedError:
        raise
    except InputError:
        return _cleaned(payload)
    return frame


def ignored_attributes(frame: Frame) -> tuple[str, ...]:
    """Return why attributes of a hello were left out; empty for any other frame."""
    return frame.ignored if isinstance(frame, CleanedHello) else ()


def _cleaned(payload: bytes) -> Frame:
    """Decode a frame again without the attributes that cannot be stored. InputError: something else is wrong."""
    value = _decoded(_values, payload)
    assert isinstance(value, dict)
    ignored: list[str] = []
    if value.get("type") in _WITH_ATTRIBUTES and value.get("device") is not None:
        value["device"], ignored = _usable(value["device"])
    if ignored and value["type"] != "hello":
        raise InputError(f"input error: {ignored[0]}")
    _refuse_nul(value)
    try:
        frame: Frame = msgspec.convert(value, Frame)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    if not ignored:
        return frame
    return CleanedHello(**{**msgspec.structs.asdict(frame), "ignored": tuple(ignored)})


def _usable(device: object) -> tuple[dict[str, str], list[str]]:
    """Return the attributes that can be stored, and what is wrong with the others."""
    if device == []:
        return {}, []
    if not isinstance(device, dict):
        return {}, ["device: expected `object`"]
    usable: dict[str, str] = {}
    ignored: list[str] = []
    for name in DeviceAttributes.__struct_fields__:
        given = device.get(name)
        if given is None:
            continue
        text = str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given
        if not isinstance(text, str):
            ignored.append(f"device.{name}: expected `str`")
        elif len(text) > MAX_ATTRIBUTE_LENGTH:
            ignored.append(f"device.{name}: expected `str` of length <= {MAX_ATTRIBUTE_LENGTH}")
        elif "\0" in text:
            ignored.append(f"device.{name} must not contain NUL")
        else:
            usable[name] = text
    return usable, ignored


def credentials(payload: bytes) -> Credentials:
    """Decode the identity of the sender of a frame over HTTP; errors as for `decode`."""
    return _decoded(_credentials, payload)


def named_app(payload: bytes) -> str:
    """Return the app that a frame over HTTP names; "" if it names none."""
    try:
        return credentials(payload).app
    except InputError:
        return ""


def request_id(payload: bytes) -> int | None:
    """Return the id of a frame that could not be decoded, for the error answer."""
    try:
        return _identified.decode(payload).id
    except (ValueError, RecursionError):
        return None


def _check_name(field: str, name: str) -> None:
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise ValueError(f"{field} must have 1 to {MAX_NAME_BYTES} bytes, but one has {size}")


def _check_stags(stags: list[str]) -> None:
    for stag in stags:
        _check_name("stags", stag)


def _refuse_nul(value: object) -> None:
    try:
        refuse_nul(value)
    except InputError as error:
        raise InputError(f"input error: {error}") from None


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
