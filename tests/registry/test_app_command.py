"""`carillon app`, run as operators do: a process of its own against the running registry's socket."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from services.runtime.rpc import serve
from tests.registry.conftest import BOUND_S, Running


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Carillon = Callable[..., Awaitable[Outcome]]


async def run(data_dir: str, *arguments: str) -> Outcome:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from edge.cli.app import app; app(prog_name='carillon app')",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, "CARILLON_DATA_DIR": data_dir, "COLUMNS": "200", "LC_ALL": "C.UTF-8"},
    )
    out, err = await asyncio.wait_for(process.communicate(), BOUND_S)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def carillon(registry: Running) -> AsyncIterator[Carillon]:
    """Runs `carillon app` with these arguments."""
    server = serve([f"unix:{registry.settings.data}/carillon.sock"])
    for add in registry.role.servicers:
        add(server)
    await server.start()

    async def call(*arguments: str) -> Outcome:
        return await run(registry.settings.data_dir, *arguments)

    yield call
    await server.stop(None)


CREATE = ("create", "--platform", "android", "--name", "天气", "--package", "com.example.weather")


async def test_an_app_is_made_listed_changed_and_shown(registry: Running, carillon: Carillon) -> None:
    (made,) = (await carillon(*CREATE, "--account", "ACME", "--json")).lines
    assert list(made) == ["appkey", "secret_key", "platform", "name", "package"]
    known = registry.apps.get(made["appkey"])
    assert known is not None
    assert registry.keys.open(known.sealed_secret, known.appkey) == made["secret_key"]
    assert (made["platform"], made["name"], made["package"]) == ("android", "天气", "com.example.weather")

    changed = await carillon("set", known.appkey, "--ack-info", "on", "--default-period", "600", "--json")
    (shown,) = (await carillon("show", known.appkey, "--json")).lines
    assert changed.lines == [shown]
    assert shown == {
        "appkey": known.appkey,
        "platform": "android",
        "name": "天气",
        "package": "com.example.weather",
        "account": "ACME",
        "ack_info": True,
        "default_period_s": 600,
        "created_ms": known.created_ms,
    }
    assert (await carillon("list", "--json")).lines == [shown]
    (rotated,) = (await carillon("rotate-secret", known.appkey, "--json")).lines
    assert rotated["secret_key"] != made["secret_key"]
    assert rotated | {"secret_key": made["secret_key"]} == made


async def test_people_read_tables(registry: Running, carillon: Carillon) -> None:
    assert "no app yet" in (await carillon("list")).out
    made = await carillon(*CREATE)
    (app,) = registry.apps.all()
    secret = registry.keys.open(app.sealed_secret, app.appkey)
    assert app.appkey in made.out
    assert secret in made.out
    listed = (await carillon("list")).out
    assert "com.example.weather" in listed
    assert secret not in listed
    changed = await carillon("set", app.appkey, "--ack-info", "on", "--name", "[bold]N")
    assert "[bold]N" in changed.out
    assert "86400 s" in (await carillon("show", app.appkey)).out


async def test_mistakes_are_told_in_a_sentence(carillon: Carillon) -> None:
    unknown = await carillon("show", "1")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == "Error: there is no app with appkey '1'\n"
    assert "package" in (await carillon(*CREATE[:-1], "two words")).err
    assert (await carillon("create", "--platform", "symbian", "--name", "n", "--package", "p")).code == 2
    assert (await carillon("set", "1")).code == 2


async def test_without_a_service_it_says_what_to_do(tmp_path: Any) -> None:
    outcome = await run(str(tmp_path), "list")
    assert outcome.code == 1
    assert "carillon up" in outcome.err
    assert "CARILLON_DATA_DIR" in outcome.err
