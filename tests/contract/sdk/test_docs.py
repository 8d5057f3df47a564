"""docs/devices.md agrees with the service: frames, close codes and examples."""

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest

from edge.openapi.documents import DOCUMENTS
from services.domain.device_protocol import frames
from services.domain.device_protocol.close_codes import CLOSE_CODES
from services.runtime.errors import InputError
from testkit.repository import ROOT

PAGE = (ROOT / "docs" / "devices.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def refused(text: str) -> str:
    """Return the error that a device's frame is answered with; "" for a valid frame."""
    try:
        frames.decode(text.encode())
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


def test_the_examples_compile(tmp_path: Path) -> None:
    (python,) = blocks("python")
    compile(python, "devices.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (node := shutil.which("node")) is None:
        pytest.fail("node is not on the path: install Node.js 20 or newer", pytrace=False)
    (javascript,) = blocks("javascript")
    program = tmp_path / "example.mjs"
    program.write_text(javascript)
    subprocess.run([node, "--check", program], check=True)
