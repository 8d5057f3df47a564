"""An installation goes back to an earlier version, and forward again: nothing that was answered is lost."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from testkit.device import VirtualDevice
from testkit.installation.app_server import AppServer
from testkit.installation.former_version import code_of, has_commit
from testkit.installation.processes import Installation
from tests.journeys.test_push import message, shown

FORMER = "2014e6ef"
"""A commit with the topics and states of a day before; the newest version must be able to go back to it."""

NEW_SETTINGS = {"CARILLON_SEAL_NEW": "false"}


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not has_commit(FORMER), reason="this clone has no history: git fetch --unshallow")
async def test_an_earlier_version_goes_on_with_the_directory_of_this_one(tmp_path: Path) -> None:
    former = await asyncio.to_thread(code_of, FORMER, tmp_path / "former")
    with contextlib.closing(Installation(tmp_path / "data", None)) as carillon:
        await asyncio.to_thread(carillon.start)
        app = await asyncio.to_thread(carillon.create_app)
        server = AppServer(carillon.v2_url)
        device = VirtualDevice(carillon.gateway_url, app.appkey)
        await device.connect()
        await device.request({"type": "set_alias", "alias": "alice"})
        await device.request({"type": "add_stags", "stags": ["news"]})
        for number, path in enumerate((former, None, former, None)):
            await device.close()
            kept = f"kept {number}"
            assert (await server.push(message(app, 4, kept, alias=["alice"]), app.secret_key))["result"] == 0
            await asyncio.to_thread(carillon.stop)
            if path is None:
                carillon.env.pop("PYTHONPATH")
                carillon.env |= NEW_SETTINGS | {"CARILLON_METRICS_PORT": str(carillon.metrics_port)}
            else:
                carillon.env["PYTHONPATH"] = str(path)
                for name in ("CARILLON_METRICS_PORT", *NEW_SETTINGS):  # which the former version does not know
                    del carillon.env[name]
            await asyncio.to_thread(carillon.start, seconds=180)
            device = VirtualDevice(carillon.gateway_url, app.appkey, token=device.token, key=device.key)
            await device.connect()
            assert (await shown(device))["content"] == kept
            pushed = await server.push(message(app, 6, f"new {number}", stag=[["news"]]), app.secret_key)
            assert pushed["result"] == 0
            assert (await shown(device))["content"] == f"new {number}"
        await device.close()
        await server.close()
        await asyncio.to_thread(carillon.stop)
        for role in ("registry", "targeting", "scheduling"):
            assert "equal" in await asyncio.to_thread(carillon.carillon, "replay", role, "--verify")
