"""The pages of the SDKs: each function stands in a program, and the programs for Python and JavaScript run."""

import asyncio
import inspect
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carillon_device import FINAL, Device
from testkit.edge.scripted_endpoint import ScriptedEndpoint
from testkit.gateway.role import IOS, RunningGateway
from testkit.gateway.scripted_gateway import Json, ScriptedConnection, ScriptedGateway
from testkit.gateway.websocket import BOUND_S
from testkit.kotlin_sdk import SOURCES
from testkit.programs import needed
from testkit.repository import ROOT
from tests.contract.sdk.test_packages import for_gateway, shows_a_push, snippet

HERE = Path(__file__).parent
URL_OF_PROOFS = re.compile(r"https://app\.example\.org/proof")
ANSWER = {"type": "ok", "alias": "alice", "tags": [7], "stags": ["news"], "device": {}}
SENT = {
    *(
        "set_alias",
        "clear_alias",
        "add_tags",
        "remove_tags",
        "add_stags",
        "remove_stags",
        "set_attributes",
        "get_device",
    ),
    *("set_address", "clear_address", "report", "activity", "heartbeat"),
}
"""By the programs of a page, all frames of a device but hello and acknowledgements."""


def programs(language: str, page: str = "") -> list[str]:
    """Return the programs of the page of an SDK."""
    text = (ROOT / f"docs/{page or language}-sdk.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def of_python() -> set[str]:
    return {name for name in vars(Device) if not name.startswith("_")}


def of_javascript() -> set[str]:
    device = (ROOT / "sdk/carillon-device.d.ts").read_text().partition("export class Device {")[2]
    worker = (ROOT / "sdk/carillon-webpush.d.ts").read_text().partition("export interface WebPush {")[2]
    return {*re.findall(r"^  (?:get )?(\w+)[(:]", device + worker, re.MULTILINE)} - {"constructor"}


def of_kotlin(file: str) -> Callable[[], set[str]]:
    return lambda: {*re.findall(r"^    public fun (\w+)", (SOURCES / file).read_text(), re.MULTILINE)}


_ANDROID = "android/src/main/kotlin/dev/carillon/android"


@pytest.mark.parametrize(
    ("language", "page", "functions"),
    [
        ("python", "python", of_python),
        ("(?:javascript|js)", "javascript", of_javascript),
        ("kotlin", "kotlin", of_kotlin("device/src/main/kotlin/dev/carillon/device/CarillonDevice.kt")),
        ("kotlin", "android", of_kotlin(f"{_ANDROID}/Carillon.kt")),
        ("kotlin", "android", of_kotlin(f"{_ANDROID}/PushHandler.kt")),
    ],
    ids=["python", "javascript", "jvm", "android", "android-handler"],
)
def test_every_function_stands_in_a_program(language: str, page: str, functions: Callable[[], set[str]]) -> None:
    found = functions()
    assert len(found) > 1
    text = "".join(programs(language, page))
    elsewhere = {"database"} if page == "javascript" else set()  # a name that the page's text explains
    assert {name for name in found if not re.search(rf"\b{name}\b", text)} == elsewhere


async def answered(connection: ScriptedConnection) -> set[str]:
    """Answer the frames of a device until it closes; return their types."""
    types = set()

    async def answer() -> None:
        while True:
            frame = await connection.frames.get()
            types.add(frame["type"])
            if "id" in frame:
                connection.send({**ANSWER, "id": frame["id"]})

    answering = asyncio.create_task(answer())
    await connection.closed()
    answering.cancel()
    return types | {frame["type"] for frame in _left(connection)}


def _left(connection: ScriptedConnection) -> Iterator[Json]:
    while not connection.frames.empty():
        yield connection.frames.get_nowait()


async def test_the_python_programs_call_what_they_name(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Proof:
        def read(self) -> bytes:
            return b"a proof"

    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: Proof())
    device = Device(gateway.url, "1000000001")
    connecting = asyncio.create_task(device.connect())
    types = asyncio.create_task(answered(await gateway.welcome_next()))
    await connecting
    for program in programs("python")[1:]:
        names: dict[str, Any] = {}
        exec(compile(program, "python-sdk.md", "exec"), names)
        arguments = {"device": device, "msgid": 7, "session": "s"}
        for function in [value for value in names.values() if inspect.isfunction(value)]:
            called = function(**{name: arguments[name] for name in inspect.signature(function).parameters})
            if inspect.isawaitable(called):
                await called
    await device.close()
    assert await types == SENT
    assert "t-1 alice [7] ['news']" in capsys.readouterr().out


async def test_the_javascript_programs_call_what_they_name(gateway: ScriptedGateway, tmp_path: Path) -> None:
    found = [text for text in programs("javascript")[1:] if 'webpush";' not in text]
    for number, text in enumerate(found):
        (tmp_path / f"snippet{number}.mjs").write_text(text)
    calls = (
        'import { Device } from "carillon-device";\n'
        'globalThis.fetch = async () => ({ ok: true, text: async () => "a proof" });\n'
        'const subscription = { toJSON: () => ({ endpoint: "https://push.example.org/1", keys: {} }) };\n'
        f"const device = new Device({json.dumps(gateway.url)}, '1000000001');\n"
        "await device.connect();\n"
        f"for (let number = 0; number < {len(found)}; number++)\n"
        "  for (const called of Object.values(await import(`./snippet${number}.mjs`)))\n"
        "    await called(device, called.length > 1 ? (called.name === 'reports' ? 7 : subscription) : undefined);\n"
        "await device.close();\n"
    )
    program = await asyncio.create_subprocess_exec(*node_command(tmp_path, calls), cwd=tmp_path, stdout=PIPE)
    types = await answered(await gateway.welcome_next())
    async with asyncio.timeout(BOUND_S):
        printed, _ = await program.communicate()
    assert program.returncode == 0
    assert types == SENT
    assert b"t-1 alice [ 7 ] [ 'news' ]" in printed


async def test_the_programs_for_web_push_run(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    (page,) = [text for text in programs("javascript") if 'webpush";' in text]
    page, replaced = re.subn(r"https://push\.example\.org/device/v1", endpoint.url, page)
    assert replaced == 1
    (tmp_path / "page.mjs").write_text(page.replace("1234567890", "1000000001"))
    worker = [text for text in programs("js", "javascript") if "notification" in text]
    calls = (
        f'import {{ dispatch, pushManager, shown }} from "{HERE}/fake_browser.mjs";\n'
        'const page = await import("./page.mjs");\n'
        f"{worker[0]}"
        "const serviceWorker = { ready: { pushManager }, register: async () => serviceWorker.ready };\n"
        'Object.defineProperty(globalThis, "navigator", { value: { serviceWorker } });\n'
        "Notification.requestPermission = async () => 'granted';\n"
        "await page.subscribe();\n"
        "for (const [msgid, is_notif] of [[7, 0], [8, 1]]) {\n"
        '  const push = { type: "push", msgid, is_notif, content: `content ${msgid}` };\n'
        '  await dispatch("push", { data: { json: () => push } });\n'
        "}\n"
        "const taken = [];\n"
        "await page.takePushes((push) => taken.push(push.msgid));\n"
        "for (const msgid of [7, 9]) await page.onPush({ msgid }, (push) => taken.push(push.msgid));\n"
        "await page.unsubscribe();\n"
        "console.log(JSON.stringify({ taken, shown }));\n"
    )
    program = await asyncio.create_subprocess_exec(*node_command(tmp_path, calls), cwd=tmp_path, stdout=PIPE)
    hello = await endpoint.next("hello")
    hello.answer({"type": "welcome", "token": "t-1", "key": "k-1", "heartbeat": 240, "new": True})
    for kind in ("set_address", "ack", "ack", "report", "clear_address"):
        (await endpoint.next(kind)).ok()
    async with asyncio.timeout(BOUND_S):
        printed, _ = await program.communicate()
    shown = ["News", {"body": "content 8", "icon": "/icon.png"}]
    assert json.loads(printed)["taken"] == [7, 9]
    assert [[title, {name: options[name] for name in shown[1]}] for title, options in json.loads(printed)["shown"]] == [
        shown
    ]


async def test_the_python_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    python = programs("python")[0]
    await shows_a_push(python_command(tmp_path, for_gateway(real_gateway, python)), real_gateway, tmp_path, {})


async def test_the_javascript_program_runs(real_gateway: RunningGateway, tmp_path: Path) -> None:
    javascript = programs("javascript")[0]
    await shows_a_push(node_command(tmp_path, for_gateway(real_gateway, javascript)), real_gateway, tmp_path, {})


@pytest.mark.parametrize("language", ["python", "javascript"])
@pytest.mark.parametrize("page", ["docs", "README"])
async def test_a_program_that_is_refused_says_why_and_ends(
    real_gateway: RunningGateway, tmp_path: Path, page: str, language: str
) -> None:
    text = programs(language)[0] if page == "docs" else snippet(language)
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
    text = programs("python")[0] if page == "docs" else snippet("python")
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
