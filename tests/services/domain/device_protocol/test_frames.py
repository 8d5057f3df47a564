"""The device protocol: frames to commands, answers to JSON; every wrong frame raises InputError."""

import codecs
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import (
    REGISTRATION_AUTHORITY_KEY,
    REGISTRATION_AUTHORITY_TOKEN,
    Attributes,
    Device,
)
from services.domain.device_protocol.answers import (
    DeviceOk,
    Error,
    Goodbye,
    Ok,
    Welcome,
    device_answer,
    encode,
    error_answer,
)
from services.domain.device_protocol.commands import command, registration
from services.domain.device_protocol.frames import (
    DeviceAttributes,
    Hello,
    MalformedError,
    credentials,
    decode_frame,
    ignored_attributes,
    request_id,
)
from services.errors import ConflictError, InputError, UnavailableError

TYPES = [
    "hello", "ack", "report", "activity", "set_alias", "clear_alias", "add_tags", "remove_tags", "add_stags",
    "remove_stags", "set_attributes", "set_address", "clear_address", "get_device", "x",
]  # fmt: skip
FIELDS = [
    "id",
    "appkey",
    "token",
    "key",
    "device",
    "msgids",
    "event",
    "msgid",
    "alias",
    "tags",
    "stags",
    "channel",
    "address",
    "keys",
]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner), max_leaves=5
)
frames = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional=dict.fromkeys(FIELDS, values),
)


@given(st.binary() | frames.map(lambda frame: json.dumps(frame).encode()))
def test_any_payload_is_decoded_or_raises_input_error(payload: bytes) -> None:
    request_id(payload)
    with suppress(InputError):
        credentials(payload)
    with suppress(InputError):
        command(decode_frame(payload), "1", "t")


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ({"type": "set_alias", "id": 1, "alias": "a"}, "set_alias"),
        ({"type": "clear_alias", "id": 1}, "clear_alias"),
        ({"type": "add_tags", "id": 1, "tags": [-1]}, "add_tags"),
        ({"type": "remove_tags", "id": 1, "tags": [1]}, "remove_tags"),
        ({"type": "add_stags", "id": 1, "stags": ["s"]}, "add_stags"),
        ({"type": "remove_stags", "id": 1, "stags": ["s"]}, "remove_stags"),
        ({"type": "set_attributes", "id": 1, "device": {"brand": "b"}}, "set_attributes"),
        ({"type": "set_address", "id": 1, "channel": "fcm", "address": "a"}, "set_address"),
        ({"type": "clear_address", "id": 1, "channel": "fcm"}, "clear_address"),
        ({"type": "hello", "appkey": 1, "device": {"brand": "b"}}, "set_attributes"),
        ({"type": "hello", "appkey": 1, "device": {}}, None),
        ({"type": "hello", "appkey": "1"}, None),
        ({"type": "get_device", "id": 1}, None),
        ({"type": "ack", "msgids": [1]}, None),
        ({"type": "report", "event": "shown", "msgid": 1}, None),
        ({"type": "activity", "event": "open"}, None),
    ],
)
def test_each_frame_maps_to_its_command(frame: dict[str, Any], field: str | None) -> None:
    made = command(decode_frame(json.dumps(frame).encode()), "1", "t")
    assert (made and made.WhichOneof("command")) == field
    if made:
        assert (made.appkey, made.token) == ("1", "t")


@pytest.mark.parametrize(
    ("device", "stored", "ignored"),
    [
        ({"model": None, "brand": "b"}, {"brand": "b"}, ()),
        ({"os_version": 34, "app_version": 1.5}, {"os_version": "34", "app_version": "1.5"}, ()),
        ({"model": "a" * 100}, {"model": "a" * 100}, ()),
        (
            {"model": "a" * 101, "brand": "b"},
            {"brand": "b"},
            ("device.model: expected `str` of length <= 100",),
        ),
        ({"model": True, "brand": {"b": 1}}, {}, ("device.brand: expected `str`", "device.model: expected `str`")),
        ({"model": "a\0", "unknown": [1]}, {}, ("device.model must not contain NUL",)),
        ([], {}, ()),
        (None, {}, ()),
        ("Redmi", {}, ("device: expected `object`",)),
        ([1], {}, ("device: expected `object`",)),
    ],
)
def test_a_hello_is_decoded_without_its_odd_attributes(
    device: object, stored: dict[str, str], ignored: tuple[str, ...]
) -> None:
    body = msgspec.json.encode({"type": "hello", "appkey": 1, "heartbeat": 60, "device": device})
    for payload in (body, codecs.BOM_UTF8 + body):
        hello = decode_frame(payload)
        assert isinstance(hello, Hello)
        assert (hello.app, hello.heartbeat) == ("1", 60)
        assert (hello.device or DeviceAttributes()) == DeviceAttributes(**stored)
        assert ignored_attributes(hello) == ignored


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ({"type": "set_attributes", "device": {"model": "a" * 101}}, "device.model: expected `str` of length <= 100"),
        ({"type": "hello", "appkey": [], "device": {"model": 1}}, "appkey"),
        ({"type": "hello", "appkey": "1\0", "device": {"model": None}}, "appkey must not contain NUL"),
        ({"type": "hello", "appkey": "1", "heartbeat": "x", "device": {"model": None}}, "heartbeat"),
    ],
)
def test_other_wrong_fields_are_refused(frame: object, problem: str) -> None:
    with pytest.raises(InputError, match=f"^input error: {problem}"):
        decode_frame(msgspec.json.encode(frame))


def test_a_registration_carries_platform_and_attributes() -> None:
    hello = decode_frame(b'{"type":"hello","appkey":"1","device":{"brand":"b","unknown":[1]}}')
    assert isinstance(hello, Hello)
    made = registration("1", "t", Platform.PLATFORM_IOS, hello, REGISTRATION_AUTHORITY_KEY, 7)
    assert made.register.platform == Platform.PLATFORM_IOS
    assert made.register.attributes == Attributes(brand="b")
    assert (made.register.authority, made.register.proven_number) == (REGISTRATION_AUTHORITY_KEY, 7)
    bare = registration("1", "t", Platform.PLATFORM_IOS, Hello(appkey="1"), REGISTRATION_AUTHORITY_TOKEN)
    assert not bare.register.HasField("attributes")


def test_credentials_are_read_from_any_frame() -> None:
    found = credentials(b'{"type":"get_device","appkey":1000000001,"token":"t","key":"k"}')
    assert (found.app, found.token, found.key) == ("1000000001", "t", "k")
    with pytest.raises(InputError, match="appkey"):
        credentials(b"{}")
    with pytest.raises(MalformedError):
        credentials(b"[]")


def test_answers_have_exactly_the_documented_fields() -> None:
    device = Device(alias="a", tags=[1], stags=["s"], attributes=Attributes(model="m"))
    answers: dict[Welcome | Goodbye | Ok | Error | DeviceOk, dict[str, Any]] = {
        Welcome("t", "k", 240, True): {"type": "welcome", "token": "t", "key": "k", "heartbeat": 240, "new": True},
        Goodbye("idle"): {"type": "goodbye", "reason": "idle", "retry_after_ms": 0},
        Ok(0): {"type": "ok", "id": 0},
        Ok(): {"type": "ok"},
        Error(400, "d", 1): {"type": "error", "id": 1, "code": 400, "desc": "d"},
        error_answer(None, ConflictError("too late")): {"type": "error", "code": 400, "desc": "too late"},
    }
    for answer, expected in answers.items():
        assert json.loads(encode(answer)) == expected
    assert json.loads(encode(device_answer(1, device))) == {
        "type": "ok", "id": 1, "alias": "a", "tags": [1], "stags": ["s"], "device": {"model": "m"},
    }  # fmt: skip
    assert "secret" not in error_answer(1, UnavailableError("secret")).desc


def test_a_number_out_of_range_beside_nul_is_a_wrong_field() -> None:
    with pytest.raises(InputError):
        decode_frame(b'{"type":"ping","unknown":["\\u0000",1e999]}')
