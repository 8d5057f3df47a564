"""docs/devices.md agrees with the service: frames, close codes and examples."""

import json
import re

import jsonschema_rs

from edge.openapi.documents import DOCUMENTS
from services.domain.device_protocol import frames
from services.domain.device_protocol.answers import CLOSE_CODES
from services.errors import InputError
from testkit.repository import ROOT

PAGE = (ROOT / "docs" / "devices.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def refused(text: str) -> str:
    """Return the error that a device's frame is answered with; "" for a valid frame."""
    try:
        frames.decode_frame(text.encode())
    except InputError as error:
        return str(error)
    return ""


def test_the_example_conversations_consist_of_valid_frames() -> None:
    document = DOCUMENTS["device"]()
    messages = [f"#/components/schemas/{name}" for name in document["components"]["messages"]]
    any_frame = {"oneOf": [{"$ref": name} for name in messages], "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(any_frame)
    shown = set()
    refusal = ""
    for line in "".join(blocks("text")).splitlines():
        sign, text = line[:2], line[2:]
        if sign == "# ":
            continue
        frame = json.loads(text)
        shown.add(frame["type"])
        if sign == "> ":
            refusal = refused(text)
        elif frame["type"] == "error":
            assert frame["desc"] == refusal
        if not refusal:
            validator.validate(frame)
    assert {"hello", "welcome", "push", "ack", "report", "ping", "pong", "ok", "error", "goodbye"} <= shown


def test_every_goodbye_is_documented_with_its_close_code() -> None:
    for reason, code in CLOSE_CODES.items():
        assert f"| {code} | `{reason}` |" in PAGE
        assert f"\n| `{reason}` | " in PAGE


def test_every_frame_of_a_device_is_documented() -> None:
    for name, message in DOCUMENTS["device"]()["components"]["messages"].items():
        assert f'"{message["examples"][0]["payload"]["type"]}"' in PAGE or name.startswith("Remove")
