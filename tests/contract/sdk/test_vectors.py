"""The shared vectors of clicks and of Apple's payloads: the service makes what the SDKs' tests read from them."""

import json
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import ParseDict

from edge.android.bodies import AndroidPushBody
from edge.android.requests import message_of
from edge.core.parsing.typed import decode
from edge.v2.push.style import LAST_ACTION
from protos.push.v1.push_pb2 import Message
from services.domain.apns_payload import payload, with_msgid
from services.domain.device_protocol.pushes import PushText, push_fields
from testkit.edge.push_rules import android, read
from tests.contract.sdk.driven_device import vectors

CLICKS = vectors("clicks")
OF_LEGACY = {0, 1, 2, 3, 8}


def action_of(click: dict[str, Any] | None) -> int:
    return 0 if click is None else click["action"]


def click_of(message: Message) -> dict[str, Any] | None:
    """Return the click in the frame of a message."""
    click: dict[str, Any] | None = msgspec.json.decode(PushText(push_fields(message, 1)).text(7)).get("click")
    return click


def test_every_click_action_of_every_interface_is_among_them() -> None:
    made = {name: {action_of(each["click"]) for each in CLICKS if name in each} for name in ("v2", "legacy")}
    assert made == {"v2": {*range(LAST_ACTION + 1)}, "legacy": OF_LEGACY}
    assert len({each["what"] for each in CLICKS}) == len(CLICKS)


@pytest.mark.parametrize("vector", CLICKS, ids=lambda vector: str(vector["what"]))
def test_the_interfaces_make_the_click_of_a_frame(vector: dict[str, Any]) -> None:
    for fields in vector.get("v2", []):
        (push,) = read(android(**fields)).pushes
        assert click_of(push.message) == vector["click"], fields
    for fields in vector.get("legacy", []):
        raw = json.dumps({"appkey": "1111111111", "sign": "", "message": "m", "is_notif": 1, **fields}).encode()
        assert click_of(message_of(raw, decode(AndroidPushBody, raw), "Test")) == vector["click"], fields


MADE = [vector for vector in vectors("apple_payloads") if "message" in vector]


@pytest.mark.parametrize("vector", MADE, ids=lambda vector: str(vector["what"]))
def test_the_service_makes_the_payload_for_an_iphone(vector: dict[str, Any]) -> None:
    made = payload(ParseDict(vector["message"], Message()))
    if "msgid" in vector:
        made = with_msgid(made, vector["msgid"])
    assert json.loads(made) == vector["payload"]
