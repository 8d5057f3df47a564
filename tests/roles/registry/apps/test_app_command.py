"""`carillon app` and `carillon device revoke`, run as processes against the running registry's socket."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from carillon.commands.app.group import app as app_commands
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.registry_pb2 import PauseAppsRequest
from services.domain.apns.credentials import ApnsCredentials, Environment, open_credentials
from services.runtime.rpc.listener import RpcListener
from services.runtime.rpc.server import serve
from services.runtime.rpc.user_socket import UserSocket
from testkit.apns_keys import KEY_ID, TEAM_ID, canaries, holding, pem
from testkit.services import running_services
from tests.roles.registry.conftest import BOUND_S, RunningRegistry, device_facts, register


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


QUOTAS = ("requests_per_s", "targets_per_s", "broadcasts_per_day", "devices", "stored_task_bytes")
Carillon = Callable[..., Awaitable[Outcome]]


async def run(data_dir: str, *arguments: str, group: str = "app") -> Outcome:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CARILLON_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from carillon.main import main; main(prog_name='carillon')",
        group,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, "CARILLON_DATA_DIR": data_dir, "COLUMNS": "200", "LC_ALL": "C.UTF-8"},
    )
    out, err = await asyncio.wait_for(process.communicate(), BOUND_S)
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def carillon(registry: RunningRegistry) -> AsyncIterator[Carillon]:
    """Return a function that runs `carillon app` with its arguments."""
    user_socket = UserSocket("commands", registry.settings.data / "carillon.sock")
    server = serve([f"unix:{user_socket.inner}"], users=user_socket.users)
    for add in registry.role.servicers:
        add(server)

    async def call(*arguments: str, group: str = "app") -> Outcome:
        return await run(registry.settings.data_dir, *arguments, group=group)

    async with running_services([RpcListener("calls", server), user_socket]):
        yield call
    user_socket.close()


CREATE = ("create", "--platform", "android", "--name", "天气", "--package", "com.example.weather")


async def test_an_app_is_created_listed_changed_and_shown(registry: RunningRegistry, carillon: Carillon) -> None:
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
        "paused": None,
        "all_apps_paused": None,
        "allow_from": None,
        "quotas": dict.fromkeys(QUOTAS),
        "old_secret_until_ms": None,
    }
    assert (await carillon("list", "--json")).lines == [shown]
    (rotated,) = (await carillon("rotate-secret", known.appkey, "--json")).lines
    assert rotated["secret_key"] != made["secret_key"]
    assert rotated | {"secret_key": made["secret_key"]} == made


async def test_quotas_networks_and_the_old_secret_are_set_and_shown(
    registry: RunningRegistry, carillon: Carillon
) -> None:
    registry.clock.move(int(time.time()) - registry.clock.now_ms() // 1000)
    app = await registry.app()
    quotas = ("--requests-per-s", "50", "--targets-per-s", "off", "--devices", "0", "--stored-task-bytes", "1000000")
    networks = ("--allow-from", "192.0.2.0/24,::ffff:203.0.113.9")
    (limited,) = (await carillon("set", app.appkey, *quotas, *networks, "--json")).lines
    assert limited["quotas"] == {**dict.fromkeys(QUOTAS), "requests_per_s": 50, "stored_task_bytes": 1_000_000}
    assert limited["allow_from"] == ["192.0.2.0/24", "203.0.113.9/32"]
    until_ms = registry.clock.now_ms() + 86_400_000
    assert (await carillon("rotate-secret", app.appkey, "--keep-old", "24h")).code == 0
    shown = (await carillon("show", app.appkey)).out
    assert "requests_per_s 50, stored_task_bytes 1000000" in shown
    assert "192.0.2.0/24, 203.0.113.9/32" in shown
    assert "also signs until 20" in shown
    known = registry.apps.get(app.appkey)
    assert known is not None
    assert known.old_secret_until_ms == until_ms
    assert (await carillon("drop-old-secret", app.appkey, "--json")).lines[0]["old_secret_until_ms"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "1", "--requests-per-s", "-1"], "'-1' is no whole number; 0 or off removes the quota"),
        (["set", "1", "--devices", "many"], "'many' is no whole number"),
        (["rotate-secret", "1", "--keep-old", "tomorrow"], "'tomorrow' is no duration; write 24h, 30m, 7d"),
        (["set", "1"], "name a change: --ack-info, --default-period, --name, --allow-from, a quota"),
    ],
)
def test_wrong_limits_are_refused_before_a_call(arguments: list[str], told: str) -> None:
    refused = CliRunner().invoke(app_commands, arguments)
    assert (refused.exit_code, told in " ".join(refused.output.split())) == (2, True), refused.output


async def test_without_json_the_output_is_a_table(registry: RunningRegistry, carillon: Carillon) -> None:
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


async def test_one_app_and_all_apps_are_paused_and_resumed(registry: RunningRegistry, carillon: Carillon) -> None:
    app, other = await registry.app(), await registry.app()
    (paused,) = (await carillon("pause", app.appkey, "--reason", "complaints", "--json")).lines
    own = {"since_ms": registry.clock.now_ms(), "by": paused["paused"]["by"], "reason": "complaints"}
    assert "@" in own["by"]
    assert paused == {"appkey": app.appkey, "all": False, "changed": True, "paused": own, "unconfirmed": []}
    again = await carillon("pause", app.appkey)
    assert f"App {app.appkey} is paused already: since " in again.out
    assert f" by {own['by']}: complaints. Nothing changed." in again.out
    assert "`carillon app resume --all` goes on." in (await carillon("pause", "--all")).out

    listed = {one["appkey"]: one for one in (await carillon("list", "--json")).lines}
    assert (listed[app.appkey]["paused"], listed[other.appkey]["paused"]) == (own, None)
    assert listed[other.appkey]["all_apps_paused"]["by"] == own["by"]
    shown = (await carillon("show", app.appkey)).out
    assert f" by {own['by']}: complaints; all apps since " in " ".join(shown.split())
    resumed = await carillon("resume", app.appkey)
    assert f"App {app.appkey} goes on; it was paused since " in resumed.out
    assert "All apps are paused, this one too, until `carillon app resume --all`." in resumed.out
    await registry.stub.PauseApps(PauseAppsRequest(appkey=other.appkey))
    assert f"Still paused one by one: {other.appkey}." in (await carillon("resume", "--all")).out
    (unchanged,) = (await carillon("resume", "--all", "--json")).lines
    assert unchanged == {
        "appkey": None,
        "all": True,
        "changed": False,
        "still_paused": [other.appkey],
        "unconfirmed": [],
    }
    assert [registry.apps.is_paused(one.appkey) for one in (app, other)] == [False, True]


@pytest.mark.parametrize("arguments", [(), ("1", "--all")])
async def test_a_pause_needs_one_target(carillon: Carillon, arguments: tuple[str, ...]) -> None:
    outcome = await carillon("pause", *arguments)
    assert outcome.code == 2
    assert "name one APPKEY, or --all" in outcome.err


async def test_errors_are_one_sentence(carillon: Carillon) -> None:
    unknown = await carillon("show", "1")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == "Error: there is no app with appkey '1'\n"
    assert "package" in (await carillon(*CREATE[:-1], "two words")).err
    assert (await carillon("create", "--platform", "symbian", "--name", "n", "--package", "p")).code == 2
    assert (await carillon("set", "1")).code == 2


async def test_the_keys_of_one_device_and_of_all_are_revoked(registry: RunningRegistry, carillon: Carillon) -> None:
    app = await registry.app()
    await registry.apply(register(app, "one"), register(app, "two"))
    one, two = await registry.device(app.appkey, "one"), await registry.device(app.appkey, "two")
    assert one is not None
    assert two is not None
    revoked = await carillon("revoke", app.appkey, "one", "--json", group="device")
    assert revoked.lines == [{"appkey": app.appkey, "token": "one", "revoked": True}]
    assert registry.apps.is_revoked(app.appkey, one.partition, one.number)
    assert not registry.apps.is_revoked(app.appkey, two.partition, two.number)
    (fact,) = [fact for fact in await device_facts(registry.log) if fact.device.token == "one"]
    assert fact.meta.origin.door == "cli"
    assert fact.device.removed_reason == f"revoked by {fact.meta.origin.address}"
    assert (await carillon("revoke-keys", app.appkey, "--json")).lines == [{"appkey": app.appkey, "revoked": True}]
    assert registry.apps.is_revoked(app.appkey, two.partition, two.number)
    assert "refused" in (await carillon("revoke-keys", app.appkey)).out
    unknown = await carillon("revoke", app.appkey, "three", group="device")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == f"Error: app {app.appkey} has no device with this token\n"


async def test_an_apns_key_is_set_shown_changed_and_removed(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app, text = await registry.app(PLATFORM_IOS), pem()
    file = tmp_path / "AuthKey_ABC123DEFG.p8"
    file.write_text(text)
    own = ("--apns-key", str(file), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
    (shown,) = (await carillon("set", app.appkey, *own, "--apns-environment", "both", "--json")).lines
    expected = {"key_id": KEY_ID, "team_id": TEAM_ID, "topic": app.package, "environment": "both"}
    assert shown["apns"] == expected
    known = registry.apps.get(app.appkey)
    assert known is not None
    assert open_credentials(known, registry.keys) == ApnsCredentials(
        KEY_ID, TEAM_ID, app.package, text, Environment.BOTH
    )

    changed = await carillon("set", app.appkey, "--apns-topic", "com.example.other")
    assert f"key {KEY_ID} of team {TEAM_ID} for com.example.other, both" in changed.out
    (gone,) = (await carillon("set", app.appkey, "--apns-key", "none", "--json")).lines
    assert gone["apns"] is None
    assert "no key" in (await carillon("show", app.appkey)).out


async def test_apns_key_errors_are_one_sentence(
    registry: RunningRegistry,
    carillon: Carillon,
    tmp_path: Path,
) -> None:
    app = await registry.app(PLATFORM_IOS)
    (tmp_path / "binary.p8").write_bytes(bytes(range(256)))
    ids = ("--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
    for given, code, told in (
        (("--apns-key", str(tmp_path / "missing.p8"), *ids), 2, "missing.p8: No such file"),
        (("--apns-key", str(tmp_path), *ids), 2, "Is a directory"),
        (("--apns-key", str(tmp_path / "binary.p8"), *ids), 2, "is no text in PEM form"),
        (("--apns-key", "none", *ids), 2, "stands alone"),
        (("--apns-environment", "test"), 2, "production"),
        (ids, 1, "at first give the key too"),
    ):
        outcome = await carillon("set", app.appkey, *given)
        assert (outcome.code, outcome.out, told in outcome.err) == (code, "", True), outcome.err
    assert registry.apps.get(app.appkey) == app


async def test_the_apns_key_is_in_no_file_output_or_log_line(
    registry: RunningRegistry,
    carillon: Carillon,
    tmp_path: Path,
) -> None:
    app, text = await registry.app(PLATFORM_IOS), pem()
    words = canaries(text)
    outside = tmp_path.with_suffix(".p8")
    outside.write_text(text)
    own = ("--apns-key", str(outside), "--apns-key-id", KEY_ID, "--apns-team", TEAM_ID)
    with capture_logs() as logs:
        outcomes = [
            await carillon("set", app.appkey, *own),
            await carillon("set", app.appkey, "--apns-key", str(outside), "--json"),
            await carillon("set", app.appkey, "--apns-key", str(outside), "--apns-key-id", "x"),
            await carillon("show", app.appkey, "--json"),
            await carillon("list"),
            await carillon("rotate-secret", app.appkey),
        ]
    told = "".join(f"{outcome.out}{outcome.err}" for outcome in outcomes) + str(logs)
    assert [outcome.code for outcome in outcomes] == [0, 0, 1, 0, 0, 0]
    assert not [word for word in words if word.decode() in told]
    assert holding(tmp_path, words) == []
    (tmp_path / "planted").write_text(text)
    assert holding(tmp_path, words) == [tmp_path / "planted"]


async def test_without_a_running_service_the_error_says_what_to_do(tmp_path: Any) -> None:
    outcome = await run(str(tmp_path), "list")
    assert outcome.code == 1
    assert "carillon up" in outcome.err
    assert "CARILLON_DATA_DIR" in outcome.err
