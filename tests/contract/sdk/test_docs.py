"""docs/devices.md agrees with the service: frames, close codes and examples."""

import asyncio
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import jsonschema_rs
import pytest

from carillon_device import FINAL
from edge.openapi.documents import DOCUMENTS
from services.domain.device_protocol import frames
from services.domain.device_protocol.answers import CLOSE_CODES
from services.errors import InputError
from testkit.gateway.role import IOS, RunningGateway
from testkit.gateway.scripted_gateway import ScriptedGateway
from testkit.gateway.websocket import BOUND_S
from testkit.programs import needed
from testkit.repository import ROOT
from tests.contract.sdk.test_packages import for_gateway, shows_a_push, snippet

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


async def test_the_python_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    (python,) = blocks("python")
    await shows_a_push(python_command(tmp_path, for_gateway(real_gateway, python)), real_gateway, tmp_path, {})


async def test_the_javascript_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    (javascript,) = blocks("javascript")
    await shows_a_push(node_command(tmp_path, for_gateway(real_gateway, javascript)), real_gateway, tmp_path, {})


@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize("page", ["docs", "README"])
async def test_a_program_that_is_refused_says_why_and_ends(
    real_gateway: RunningGateway, tmp_path: Path, page: str, language: str
) -> None:
    (text,) = blocks(language) if page == "docs" else [snippet(language)]
    command = (python_command if language == "python" else node_command)(tmp_path, for_gateway(real_gateway, text, IOS))
    program = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(BOUND_S):
        printed, errors = await program.communicate()
    assert (program.returncode, errors) == (0, b"")
    assert printed.decode().splitlines()[-1].removeprefix("DeviceError: ") == FINAL["unauthorized"]


@pytest.mark.parametrize("page", ["docs", "README"])
async def test_ctrl_c_ends_the_python_program_and_closes_its_connection(
    gateway: ScriptedGateway, tmp_path: Path, page: str
) -> None:
    (text,) = blocks("python") if page == "docs" else [snippet("python")]
    command = python_command(tmp_path, re.sub(r"wss?://[\w.:]+/device/v1", gateway.url, text))
    program = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
    connection = await gateway.welcome_next()
    assert (await connection.next())["type"] == "set_alias"
    program.send_signal(signal.SIGINT)
    assert await connection.closed() == 1000
    async with asyncio.timeout(BOUND_S):
        told = await program.communicate()
    assert (program.returncode, *told) == (0, b"", b"")


def python_command(folder: Path, text: str) -> list[str]:
    program = folder / "app.py"
    program.write_text(text)
    return [sys.executable, "-u", str(program)]


def node_command(folder: Path, text: str) -> list[str]:
    """Return the command that runs a program in Node, with the two things of a browser that it uses."""
    program = folder / "app.mjs"
    program.write_text(text)
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "carillon-device").symlink_to(ROOT / "sdk")
    browser = folder / "browser.mjs"
    browser.write_text(
        "const items = new Map();\n"
        "const localStorage = { getItem: (key) => items.get(key), setItem: (key, text) => items.set(key, text) };\n"
        "const Notification = class { constructor(title, options) { console.log(options.body); } };\n"
        "for (const [name, value] of Object.entries({ localStorage, Notification }))\n"
        "  Object.defineProperty(globalThis, name, { value });\n"
    )
    return [needed("node"), "--no-warnings", "--experimental-websocket", "--import", str(browser), str(program)]
