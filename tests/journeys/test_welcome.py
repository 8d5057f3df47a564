"""The lines that `carillon up` prints: each command works when pasted into any shell."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from carillon.welcome import command_line
from protos.registry.v1.apps_pb2 import CHANNEL_WEBPUSH
from services.domain.channel_credentials.forms import FORMS
from testkit.certificates import Authority
from testkit.device import VirtualDevice
from testkit.installation.processes import CARILLON, Installation
from testkit.programs import needed
from testkit.waiting import once_available


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """`carillon up` without any app but the demo app, until a test creates one."""
    installation = Installation(tmp_path_factory.mktemp("welcome") / "data", None)
    installation.start()
    yield installation
    installation.close()


def _shell(line: str, cwd: Path) -> str:
    """Run a line in a shell without the service's settings and return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")}
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True, env=env, cwd=cwd).stdout


async def test_each_printed_command_works(installation: Installation, tmp_path: Path) -> None:
    needed("curl")
    lines = [line.strip() for line in installation.output().read_text().splitlines()]
    device_line = next(line for line in lines if " device run " in line)
    curl = next(line for line in lines if line.startswith("curl "))
    send = next(line for line in lines if " send --secret-file " in line)
    assert (installation.data / "demo-app.secret").read_text().strip() not in installation.output().read_text()
    audit = next(line for line in lines if line.endswith(" audit push ID"))
    told = [line for line in lines if line.startswith("A simulator answers ")]
    assert told == [
        "A simulator answers in the place of Apple's push service: what it accepts does not leave this installation."
        " CARILLON_APNS_URL=https://api.push.apple.com sends to Apple.",
        "A simulator answers in the place of the push services of Web Push: what it accepts does not leave this"
        " installation. CARILLON_WEBPUSH=internet sends to them.",
        *_of_vendors(),
    ]
    assert "4. For this push on a phone, start again with an address that it reaches instead of 127.0.0.1:" in lines
    assert "carillon://" not in installation.output().read_text()
    printed = lines.index("Carillon is ready."), next(n for n, line in enumerate(lines) if "/link?token=link_" in line)
    assert printed[0] < lines.index("3. Show what happened to the push; ID is the id in the answer:") < printed[1]
    assert [line for line in lines[printed[1] + 1 :] if line and not line.startswith("{")] == []
    health = next(line.split()[-1] for line in lines if line.startswith("health "))
    metrics = next(line.split()[-1] for line in lines if line.startswith("metrics "))
    assert (await asyncio.to_thread(httpx.get, health)).text == '{"status":"ready"}'
    assert "carillon_ready 1.0" in (await asyncio.to_thread(httpx.get, metrics)).text
    process = await asyncio.create_subprocess_shell(
        f"exec env {device_line} --json",
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")},
        cwd=tmp_path,
    )
    assert process.stdout is not None
    try:
        events = 0
        while events < 2:
            await asyncio.wait_for(process.stdout.readline(), 60)
            events += 1
        answers = [json.loads(await asyncio.to_thread(_shell, line, tmp_path)) for line in (curl, send)]
        assert [answer["result"] for answer in answers] == [0, 0]
        for answer in answers:
            push = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
            assert (push["type"], push["msgid"], push["content"]) == ("push", answer["id"], "Hello from Carillon")
        line = audit.replace("ID", str(answers[0]["id"]))
        report = await asyncio.to_thread(once_available, lambda: _shell(line, tmp_path))
        assert re.search(r"audience +everyone \(1 device\)", report)
    finally:
        process.terminate()
        await process.wait()


def test_the_files_of_the_service_are_accessible_to_their_owner_alone(installation: Installation) -> None:
    modes = {path.name: path.stat().st_mode & 0o077 for path in installation.data.rglob("*") if path.suffix != ".out"}
    assert "carillon.sock" in modes
    assert not {name for name, mode in modes.items() if mode}


@pytest.mark.long
async def test_further_starts_create_no_demo_app_and_print_no_secret_but_its(installation: Installation) -> None:
    assert " send --secret-file " in await asyncio.to_thread(_printed_by_the_next_start, installation)
    (demo,) = [json.loads(app) for app in installation.carillon("app", "list", "--json").splitlines()]
    assert demo["name"] == "Demo"
    device = VirtualDevice(installation.gateway_url, demo["appkey"])
    await device.connect()
    await device.close()

    create = ("app", "create", "--platform", "android", "--name", "Demo", "--package", "org.example.demo", "--json")
    own = json.loads(installation.carillon(*create))
    printed = await asyncio.to_thread(_printed_by_the_next_start, installation)
    assert demo["appkey"] in printed
    assert own["secret_key"] not in printed
    installation.carillon("app", "set", demo["appkey"], "--name", "Shop")
    printed = await asyncio.to_thread(_printed_by_the_next_start, installation)
    assert "--secret" not in printed
    assert not (installation.data / "demo-app.secret").exists()
    assert f"{installation.v2_url}/v2/push" in printed


def _printed_by_the_next_start(installation: Installation) -> str:
    installation.stop()
    before = len(installation.output().read_text())
    installation.start()
    return installation.output().read_text()[before:]


@pytest.mark.long
def test_with_tls_the_devices_url_is_secure(tmp_path: Path) -> None:
    tls = Authority(tmp_path / "tls").issue("gateway")
    installation = Installation(tmp_path / "data", None)
    installation.env |= {
        "CARILLON_GATEWAY_TLS_CERT": str(tls.certificate),
        "CARILLON_GATEWAY_TLS_KEY": str(tls.key),
        "CARILLON_CONSOLE_GATEWAY_URL": "wss://push.example.org/device/v1",
    }
    try:
        installation.start()
        printed = installation.output().read_text()
    finally:
        installation.close()
    url = installation.gateway_url.replace("ws:", "wss:")
    assert f"--url {url}\n" in printed
    assert printed.count(url) == 2
    assert "   carillon://connect?url=wss%3A%2F%2Fpush.example.org%2Fdevice%2Fv1&appkey=" in printed
    assert "█" not in printed


def test_the_program_is_named_without_its_path_only_if_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(CARILLON).parent))
    assert command_line(CARILLON, {}) == "carillon"
    monkeypatch.setenv("PATH", "/nowhere")
    assert command_line(CARILLON, {"CARILLON_DATA_DIR": "/my data"}) == f"CARILLON_DATA_DIR='/my data' {CARILLON}"


def _of_vendors() -> list[str]:
    """Return the line about the simulator of each vendor with a channel."""
    vendors = [form.vendor for channel, form in FORMS.items() if channel != CHANNEL_WEBPUSH]
    assert "CARILLON_FCM_URL=https://fcm.googleapis.com sends to Google." in [each.setting for each in vendors]
    return [
        f"A simulator answers in the place of {each.service}: what it accepts does not leave this installation."
        f" {each.setting}"
        for each in vendors
    ]
