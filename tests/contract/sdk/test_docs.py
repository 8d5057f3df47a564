"""docs/devices.md agrees with the service: frames, close codes and examples."""

import json
import re
import sys
from pathlib import Path

import jsonschema_rs

from edge.openapi.documents import DOCUMENTS
from services.domain.device_protocol import frames
from services.domain.device_protocol.close_codes import CLOSE_CODES
from services.runtime.errors import InputError
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.repository import ROOT
from tests.contract.sdk.test_packages import shows_a_push

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


async def test_the_python_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    (python,) = blocks("python")
    program = tmp_path / "app.py"
    program.write_text(_for(real_gateway, python))
    await shows_a_push([sys.executable, "-u", str(program)], real_gateway, tmp_path, {})


async def test_the_javascript_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    """In Node, with the two things of a browser that it uses."""
    (javascript,) = blocks("javascript")
    program = tmp_path / "app.mjs"
    program.write_text(_for(real_gateway, javascript))
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "carillon-device").symlink_to(ROOT / "sdk")
    browser = tmp_path / "browser.mjs"
    browser.write_text(
        "const items = new Map();\n"
        "const localStorage = { getItem: (key) => items.get(key), setItem: (key, text) => items.set(key, text) };\n"
        "const Notification = class { constructor(title, options) { console.log(options.body); } };\n"
        "for (const [name, value] of Object.entries({ localStorage, Notification }))\n"
        "  Object.defineProperty(globalThis, name, { value });\n"
    )
    command = ["node", "--experimental-websocket", "--import", str(browser), str(program)]
    await shows_a_push(command, real_gateway, tmp_path, {})


def _for(gateway: RunningGateway, text: str) -> str:
    """Return the program with the address of this gateway and the appkey of its app in place of the printed ones."""
    assert "wss://push.example.org/" in text
    return text.replace("wss://push.example.org/", f"ws://127.0.0.1:{gateway.port}/").replace("1234567890", ANDROID)
