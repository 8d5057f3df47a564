"""The packages of the device SDKs, built, installed where nothing of the service is, and used as their README says."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

from protos.push.v1.push_pb2 import Message
from testkit.edge.browser import running_browser
from testkit.gateway.role import ANDROID, RunningGateway
from testkit.gateway.websocket import BOUND_S
from testkit.npm_packages import npm_packages
from testkit.programs import needed
from testkit.repository import ROOT
from tests.contract.packaging.container_files import PROJECT
from tests.contract.sdk.site import Site

README = (ROOT / "sdk/README.md").read_text()
PYTHON_REQUIREMENTS = ("picows", "multidict", "python-socks", "aiofastnet")
SMALL_BYTES = 64 << 10


def snippet(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    source = tmp_path / "sdk"
    shutil.copytree(ROOT / "sdk", source, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=source, check=True, capture_output=True
    )
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture
def tarball(tmp_path: Path) -> Path:
    command = [needed("npm"), "pack", "--silent", "--pack-destination", str(tmp_path)]
    subprocess.run(command, cwd=ROOT / "sdk", check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tgz")
    assert built.stat().st_size < SMALL_BYTES
    return built


def test_make_leaves_out_what_it_has_no_program_for(tmp_path: Path) -> None:
    (tmp_path / "sdk").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
    (programs / "python").chmod(0o755)
    for name in ("mkdir", "sed"):
        (programs / name).symlink_to(needed(name))
    command = [needed("make"), "-s", "-f", str(ROOT / "Makefile"), "sdk", "PYTHON=python", "BIN=bin"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": str(programs)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            "sdk: the packages for npm are left out, because npm is not installed",
            "sdk: jar, AAR and APK are left out, because Maven is not installed",
        ],
    )
    assert "-m hatchling build -d ../dist" in (tmp_path / "called").read_text()


async def test_the_wheel_is_small_and_runs_as_its_readme_says(
    wheel: Path, real_gateway: RunningGateway, tmp_path: Path
) -> None:
    assert wheel.name == "carillon_device-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {"carillon_device", "carillon_device-0.1.0.dist-info"}
    assert "carillon_device/py.typed" in names

    site = tmp_path / "site"
    site.mkdir()
    _install(wheel, site)
    for name in PYTHON_REQUIREMENTS:
        for entry in {file.parts[0] for file in distribution(name).files or () if ".." not in file.parts}:
            (site / entry).symlink_to(Path(str(distribution(name).locate_file(entry))))
    program = tmp_path / "app.py"
    alone = "from importlib.util import find_spec\nassert find_spec('services') is None\n"
    program.write_text(alone + for_gateway(real_gateway, snippet("python")))
    # -S: without the packages of this environment, the service among them.
    await shows_a_push([sys.executable, "-S", "-u", str(program)], real_gateway, tmp_path, {"PYTHONPATH": str(site)})
    assert json.loads((tmp_path / "device.json").read_text())["token"]


async def test_the_npm_package_is_small_and_runs_as_its_readme_says(
    tarball: Path, real_gateway: RunningGateway, tmp_path: Path
) -> None:
    package = _unpack(tarball, tmp_path)
    files = {"package.json", "README.md", "carillon-device.js", "carillon-device.d.ts"}
    files |= {"carillon-webpush.js", "carillon-webpush.d.ts"}
    assert {path.name for path in package.iterdir()} == files
    assert "dependencies" not in json.loads((package / "package.json").read_text())
    program = tmp_path / "app.mjs"
    program.write_text(for_gateway(real_gateway, snippet("javascript")))
    await shows_a_push(["node", "--experimental-websocket", str(program)], real_gateway, tmp_path, {})


def test_without_a_websocket_class_the_device_says_what_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "old.mjs"
    program.write_text(
        f'import {{ Device }} from "{ROOT}/sdk/carillon-device.js";\n'
        "delete globalThis.WebSocket; // as in Node 20\n"
        'try { new Device("ws://h", "1"); } catch (error) { console.log(String(error)); }\n'
        'console.log(new Device("ws://h", "1", { WebSocket: class {} }).token);\n'
    )
    refused, given = subprocess.check_output([needed("node"), program], text=True).splitlines()
    told = "no WebSocket here: use Node 22, --experimental-websocket, or the option WebSocket"
    assert (refused, given) == (f"TypeError: {told}", "null")


def test_the_types_name_every_member_of_the_device(tmp_path: Path) -> None:
    script = (
        f'import {{ Device, DeviceError, FINAL }} from "{ROOT}/sdk/carillon-device.js";'
        'const device = new Device("ws://h", "1", { WebSocket: class {} });'
        "const own = Object.getOwnPropertyNames(device).filter((name) => device[name] instanceof Function);"
        "console.log(JSON.stringify({ members: [...Object.getOwnPropertyNames(Device.prototype), ...own],"
        " final: Object.keys(FINAL) }));"
    )
    program = tmp_path / "members.mjs"
    program.write_text(script)
    found = json.loads(subprocess.run([needed("node"), program], check=True, capture_output=True, text=True).stdout)
    text = (ROOT / "sdk/carillon-device.d.ts").read_text()
    device = text[text.index("export class Device {") :]
    declared = set(re.findall(r"^  (?:get )?(\w+)\(", device, re.MULTILINE))
    assert declared == {*found["members"]} - {"random", "WebSocket"}
    assert set(re.findall(r'"(\w+)"', re.findall(r"type FinalReason = (.*);", text)[0])) == {*found["final"]}


@pytest.mark.long
def test_the_types_are_right(tarball: Path, tmp_path: Path) -> None:
    _unpack(tarball, tmp_path)
    (tmp_path / "readme.mts").write_text(snippet("javascript"))
    (tmp_path / "uses.mts").write_text(
        'import { Device, DeviceError, FINAL, type DeviceEvent, type Push } from "carillon-device";\n'
        "const seen: number[] = [];\n"
        "const onPush = async (push: Push) => { seen.push(push.msgid, push.badge ?? 0); };\n"
        "const onEvent = (event: DeviceEvent) => {\n"
        '  if (event.type === "welcome") console.log(event.token, event.heartbeat + 1);\n'
        '  if (event.type === "ended") console.log(FINAL[event.reason]);\n'
        "};\n"
        'const device = new Device("wss://h", "1", { storage: localStorage, onPush, onEvent });\n'
        "await device.addTags([1]).catch((error) => {\n"
        '  if (error instanceof DeviceError) console.log(error.kind === "ended");\n'
        "});\n"
        "const read = await device.getDevice();\n"
        "console.log(read.tags[0] + 1, device.token?.length);\n"
        "// @ts-expect-error a tag is a number\n"
        'await device.addTags(["1"]);\n'
        "// @ts-expect-error no such event\n"
        'device.report("seen", 1);\n'
    )
    (tmp_path / "worker.mts").write_text(
        'import "carillon-device/webpush";\n'
        "CarillonWebPush.notification = (push) => [push.title ?? String(push.msgid + 1), { body: push.content }];\n"
        "// @ts-expect-error a push has no such field\n"
        "for (const push of await CarillonWebPush.takePushes()) console.log(push.body);\n"
    )
    options = ["--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"]
    for module, resolution in {"nodenext": "nodenext", "esnext": "bundler"}.items():
        kind = ["--module", module, "--moduleResolution", resolution]
        checked = _run_tool("typescript/bin/tsc", *options, *kind, "readme.mts", "uses.mts", "worker.mts", cwd=tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
def test_bundlers_node_and_typescript_resolve_what_the_npm_package_exports(tarball: Path, tmp_path: Path) -> None:
    linted = _run_tool("publint/src/cli.js", "run", str(_unpack(tarball, tmp_path)), "--strict", cwd=tmp_path)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    command = ("@arethetypeswrong/cli/dist/index.js", str(tarball), "--profile", "esm-only")
    resolved = _run_tool(*command, cwd=tmp_path)
    assert resolved.returncode == 0, resolved.stdout + resolved.stderr


@pytest.mark.long
async def test_a_page_and_a_worker_import_the_installed_npm_package(tarball: Path, tmp_path: Path) -> None:
    package = _unpack(tarball, tmp_path)
    exports = json.loads((package / "package.json").read_text())["exports"]
    paths = {f"carillon-device{name[1:]}": f"/{each['default'][2:]}" for name, each in exports.items()}
    (tmp_path / "page.html").write_text(f'<script type="importmap">{json.dumps({"imports": paths})}</script>')
    (tmp_path / "worker.js").write_text(f'import "{paths["carillon-device/webpush"]}";\n')
    files = {path: (package / path[1:], "text/javascript") for path in paths.values()}
    files["/"], files["/worker.js"] = (tmp_path / "page.html", "text/html"), (tmp_path / "worker.js", "text/javascript")
    site = Site(files)
    try:
        async with running_browser() as browser:
            page = await browser.new_page()
            await page.goto(site.url)
            imported = await page.evaluate(
                "async () => { const { Device } = await import('carillon-device');"
                " await import('carillon-device/webpush');"
                " await navigator.serviceWorker.register('worker.js', { type: 'module' });"
                " await navigator.serviceWorker.ready;"
                " return [new Device('wss://h', '1').token, typeof CarillonWebPush.subscribe]; }"
            )
            assert imported == [None, "function"]
            (worker,) = page.context.service_workers
            assert await worker.evaluate("typeof CarillonWebPush.takePushes") == "function"
    finally:
        await asyncio.to_thread(site.close)


def test_the_service_is_built_without_the_sdk_and_requires_it() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert not any(name.startswith("sdk") for name in packages)
    assert any(text.startswith("carillon-device>=0.1") for text in PROJECT["project"]["dependencies"])
    assert json.loads((ROOT / "sdk/package.json").read_text())["version"] == "0.1.0"


def for_gateway(gateway: RunningGateway, text: str, appkey: str = ANDROID) -> str:
    """Return the snippet with the address of this gateway and the appkey of an app in place of the printed ones."""
    url = f"ws://127.0.0.1:{gateway.port}/device/v1"
    text, replaced = re.subn(r"wss?://[\w.:]+/device/v1", url, text)
    assert replaced == 1
    return text.replace("1234567890", appkey)


async def shows_a_push(command: Sequence[str], gateway: RunningGateway, cwd: Path, env: dict[str, str]) -> None:
    """Run a program of an SDK until it has printed the content of a push that it was sent."""
    own = {"PATH": os.environ["PATH"], **env}
    program = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=own, stdout=subprocess.PIPE)
    assert program.stdout is not None
    try:
        (connection,) = await gateway.delivery.until(gateway.delivery.connections)
        gateway.delivery.send(Message(content="Hello"), [connection], [1])
        async with asyncio.timeout(BOUND_S):
            while (line := await program.stdout.readline()) != b"Hello\n":
                assert line, "the program has ended"
        await gateway.delivery.until(lambda: (1, 2) in [row[1:] for row in gateway.delivery.reports()])
    finally:
        program.kill()
        await program.wait()


def _install(wheel: Path, site: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True)


def _run_tool(program: str, *arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a program of npm's packages that judge the SDKs in JavaScript."""
    path = npm_packages(ROOT / "testkit/javascript") / "node_modules" / program
    return subprocess.run([needed("node"), path, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


def _unpack(tarball: Path, folder: Path) -> Path:
    """Install the tarball as npm does a package without dependencies; return its folder."""
    modules = folder / "node_modules"
    modules.mkdir()
    with tarfile.open(tarball) as archive:
        archive.extractall(modules, filter="data")
    return (modules / "package").rename(modules / "carillon-device")
