"""`carillon keys seal` on an installation in use, across kills: what is marked later is in no log and no backup."""

import asyncio
import contextlib
import json
import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from carillon.roles import REPLAYABLE
from testkit.device import VirtualDevice
from testkit.installation.app_server import AppCredentials, AppServer
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_crash_points import CrashingInstallation
from tests.journeys.test_push import message, shown


def marked() -> dict[str, str]:
    """Return marked values of a person."""
    return {kind: f"{kind}{secrets.token_hex(16)}" for kind in ("alias", "tag", "model", "content", "everyone")}


async def use(installation: Installation, app: AppCredentials, values: dict[str, str]) -> VirtualDevice:
    """Register a device with the values, and send it a push by its alias and one as a broadcast; return it."""
    device = VirtualDevice(installation.gateway_url, app.appkey, attributes={"model": values["model"]})
    await device.connect()
    await device.request({"type": "set_alias", "alias": values["alias"]})
    await device.request({"type": "add_stags", "stags": [values["tag"]]})
    server = AppServer(installation.v2_url)
    targets: list[tuple[int, str, dict[str, Any]]] = [
        (4, "content", {"alias": [values["alias"]]}),
        (1, "everyone", {}),
    ]
    for scope, content, target in targets:
        answer = await server.push(message(app, scope, values[content], **target), app.secret_key)
        assert answer["result"] == 0, answer
        while (await shown(device))["content"] != values[content]:
            pass
    await server.close()
    return device


def found(directory: Path, values: dict[str, str]) -> set[str]:
    """Return the kinds of the values that a file below the directory has."""
    stored = b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())
    return {kind for kind, value in values.items() if value.encode() in stored}


def sealed_since(installation: Installation) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(installation.carillon("keys", "seal", "--json"))
    return answer


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_nothing_marked_is_in_log_and_backup_and_a_restored_one_goes_on(tmp_path: Path) -> None:
    installation = CrashingInstallation(tmp_path / "data", None)
    with contextlib.closing(installation):
        await asyncio.to_thread(installation.start)
        app = await asyncio.to_thread(installation.create_app)
        before, after = marked(), marked()
        early = await use(installation, app, before)
        await early.close()
        for point in ("keys-made", "keys-seal"):
            await asyncio.to_thread(installation.stop)
            process = await installation.start_armed(point)

            async def killed(process: asyncio.subprocess.Process = process) -> bool:
                await asyncio.to_thread(installation.carillon, "keys", "seal", check=False)
                return process.returncode is not None

            await until(killed, 240)
            assert process.returncode == -signal.SIGKILL
            await asyncio.to_thread(installation.start)
        sealed = await asyncio.to_thread(sealed_since, installation)
        assert sealed["already_sealed"]
        assert not sealed["copied_ms"]
        late = await use(installation, app, after)
        after["token"] = str(late.token)
        await late.close()
        copy, backup = tmp_path / "persons.copy", tmp_path / "backup"
        await asyncio.to_thread(installation.carillon, "keys", "backup", str(copy))
        assert (await asyncio.to_thread(sealed_since, installation))["copied_ms"]
        await asyncio.to_thread(installation.carillon, "backup", str(backup))
        await asyncio.to_thread(installation.stop)
        for role in REPLAYABLE:
            assert "equal" in await asyncio.to_thread(installation.carillon, "replay", role, "--verify"), role
        for directory in (installation.data / "log", installation.data / "dead-letters", backup):
            assert found(directory, after) <= {"everyone"}, directory
        assert found(backup, after) == {"everyone"}
        assert found(backup, before) == set(before), "what was there stays as it is, but the record of the device"
    restored = Installation(tmp_path / "restored", None)
    restored.data.mkdir()
    (restored.data / "master.key").write_bytes((installation.data / "master.key").read_bytes())
    with contextlib.closing(restored):
        refused = await asyncio.to_thread(restored.carillon, "restore", str(backup), check=False)
        assert not (restored.data / "log").exists(), refused
        await asyncio.to_thread(restored.carillon, "keys", "restore", str(copy))
        await asyncio.to_thread(restored.carillon, "restore", str(backup))
        await asyncio.to_thread(restored.start)
        device = VirtualDevice(restored.gateway_url, app.appkey, token=late.token, key=late.key)
        await device.connect()
        server = AppServer(restored.v2_url)
        for values in (before, after):
            again = f"again {secrets.token_hex(4)}"
            answer = await server.push(message(app, 4, again, alias=[values["alias"]]), app.secret_key)
            assert answer["result"] == 0, "each alias is known"
        while (await shown(device))["content"] != again:
            pass
        await device.close()
        await server.close()
        await asyncio.to_thread(restored.stop)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_new_installation_has_sealed_everything(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "data", None)
    del installation.env["CARILLON_SEAL_NEW"]
    with contextlib.closing(installation):
        await asyncio.to_thread(installation.start)
        app = await asyncio.to_thread(installation.create_app)
        values = marked()
        device = await use(installation, app, values)
        values["token"] = str(device.token)
        await device.close()
        sealed = await asyncio.to_thread(sealed_since, installation)
        assert sealed["already_sealed"]
        await asyncio.to_thread(installation.carillon, "backup", str(tmp_path / "backup"))
        await asyncio.to_thread(installation.stop)
        for directory in (installation.data / "log", tmp_path / "backup"):
            assert found(directory, values) == {"everyone"}, directory
        for role in REPLAYABLE:
            assert "equal" in await asyncio.to_thread(installation.carillon, "replay", role, "--verify"), role
