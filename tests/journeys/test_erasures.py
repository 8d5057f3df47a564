"""`carillon person erase` on an installation in use: no value of the person is left, and states equal their replays."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from carillon.roles import REPLAYABLE
from testkit.installation.processes import Installation
from testkit.waiting import until
from tests.journeys.test_sealing import found, marked, sealed_since, use


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_of_an_erased_person_nothing_is_left_and_replays_are_equal(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "data", None)
    installation.env["CARILLON_ERASURE_BATCH_S"] = "1"
    with contextlib.closing(installation):
        await asyncio.to_thread(installation.start)
        app = await asyncio.to_thread(installation.create_app)
        await asyncio.to_thread(sealed_since, installation)
        values, other = marked(), marked()
        device = await use(installation, app, values)
        values["token"] = str(device.token)
        await device.close()
        kept = await use(installation, app, other)
        await kept.close()
        person = ("--app", app.appkey, "--alias", values["alias"], "--yes", "--json")
        done = json.loads(await asyncio.to_thread(installation.carillon, "person", "erase", *person))
        assert done["devices"] == 1

        async def is_erased() -> bool:
            again = await asyncio.to_thread(installation.carillon, "person", "erase", *person, check=False)
            return "erasure_id" not in again

        await until(is_erased)
        await asyncio.to_thread(installation.carillon, "team", "add", "News")
        await asyncio.to_thread(installation.carillon, "team", "give-app", "News", app.appkey)
        of_token = ("token", "create", "News", "officer", "--role", "administrator", "--json")
        made = json.loads(await asyncio.to_thread(installation.carillon, *of_token))
        token_file = tmp_path / "token"
        token_file.write_text(made["token"])
        elsewhere = ("--url", installation.console_url(), "--token-file", str(token_file))
        listing = (*elsewhere, "person", "erasures", "--app", app.appkey, "--json")

        async def is_done() -> bool:
            (erasure,) = (await asyncio.to_thread(installation.carillon, *listing)).splitlines()
            return bool(json.loads(erasure)["state"] == "done")

        await until(is_done, 120)
        await asyncio.to_thread(installation.stop)
        for role in REPLAYABLE:
            assert "equal" in await asyncio.to_thread(installation.carillon, "replay", role, "--verify"), role
        data = installation.data
        states = [each for each in data.iterdir() if each.is_dir() and each.name not in ("analytics", "clickhouse")]
        for directory in states:
            assert found(directory, values) <= {"everyone"}, directory
