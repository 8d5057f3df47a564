"""`carillon app` and `carillon device revoke`, run as processes against the running registry's socket."""

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from carillon.commands.app import app as app_commands
from protos.registry.v1.registry_pb2 import PauseAppsRequest
from protos.runtime.v1.log_pb2 import Origin
from testkit.proofs import ProofKey
from tests.services.registry.command import Carillon, run
from tests.services.registry.conftest import RunningRegistry, device_facts, register

QUOTAS = (
    "requests_per_s",
    "targets_per_s",
    "broadcasts_per_day",
    "devices",
    "stored_task_bytes",
    "registrations_per_minute",
)


CREATE = ("create", "--platform", "android", "--name", "天气", "--package", "com.example.weather")


async def test_an_app_is_created_listed_changed_and_shown(registry: RunningRegistry, carillon: Carillon) -> None:
    (made,) = (await carillon(*CREATE, "--account", "ACME", "--default-period", "7200", "--json")).lines
    assert list(made) == ["appkey", "secret_key", "platform", "name", "package"]
    known = registry.apps.get(made["appkey"])
    assert known is not None
    assert known.default_period_s == 7200
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
        "replay_safe_required": False,
        "quotas": dict.fromkeys(QUOTAS),
        "old_secret_until_ms": None,
        "identity": {"mode": "off", "keys": [], "tags": []},
        "channel_route": "auto",
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
    (demanding,) = (await carillon("set", app.appkey, "--replay-safe", "required", "--json")).lines
    assert demanding == {**limited, "replay_safe_required": True}
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


async def test_the_rate_of_registrations_is_lifted_or_the_installations_again(
    registry: RunningRegistry, carillon: Carillon
) -> None:
    app = await registry.app()

    async def rate(value: str) -> tuple[int | None, bool]:
        (shown,) = (await carillon("set", app.appkey, "--registrations-per-minute", value, "--json")).lines
        text = (await carillon("show", app.appkey)).out
        return shown["quotas"]["registrations_per_minute"], "registrations_per_minute" in text

    assert [await rate(value) for value in ("500", "off", "default")] == [(500, True), (0, True), (None, False)]
    assert app == registry.apps.get(app.appkey)


async def test_identity_is_set_with_public_keys_and_shown(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app = await registry.app()
    first, second = ProofKey(), ProofKey(ed25519=True)
    files = [tmp_path / name for name in ("first.pem", "second.pem", "private.pem", "other.pem")]
    for file, text in zip(files, (first.public_pem, second.public_pem, first.private_pem, "hello"), strict=True):
        file.write_text(text)
    one, two, private, other = map(str, files)
    both = ("--identity-key", one, "--identity-key", two, "--identity-tags", "user:*, 30000..32767")
    (shown,) = (await carillon("set", app.appkey, "--identity", "accept", *both, "--json")).lines
    assert shown["identity"]["mode"] == "accept"
    assert [name.split()[0] for name in shown["identity"]["keys"]] == ["ES256", "EdDSA"]
    assert shown["identity"]["tags"] == ["user:*", "30000..32767"]
    (rotated,) = (await carillon("set", app.appkey, "--identity-key", two, "--json")).lines
    assert rotated["identity"] == shown["identity"] | {"keys": shown["identity"]["keys"][1:]}
    text = (await carillon("show", app.appkey)).out
    assert "devices that have proven their alias come before all others" in " ".join(text.split())
    for arguments, told in (
        (("--identity-key", private), "this is a private key, which belongs on your server alone; give the public"),
        (("--identity-key", other), "this is no public key in PEM form"),
        (("--identity-key", "nowhere.pem"), "nowhere.pem: No such file or directory"),
        (("--identity-key", one, "--identity-key", "none"), "`none` stands alone"),
        (("--identity-key", "none"), "accept and require need a public key"),
        (("--identity-key", one) * 3, "at most 2 keys"),
        (("--identity-tags", "a*b*"), "names no tag"),
    ):
        refused = await carillon("set", app.appkey, *arguments)
        assert refused.code != 0
        assert told in " ".join(refused.err.split()), (arguments, refused)
    assert (await carillon("list", "--json")).lines == [rotated]
    removed = ("--identity", "off", "--identity-key", "", "--identity-tags", "none")
    (gone,) = (await carillon("set", app.appkey, *removed, "--json")).lines
    assert gone["identity"] == {"mode": "off", "keys": [], "tags": []}
    stored = registry.apps.get(app.appkey)
    assert stored is not None
    assert not stored.HasField("identity")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "1", "--requests-per-s", "-1"], "'-1' is no whole number; 0 or off removes the quota"),
        (["set", "1", "--devices", "many"], "'many' is no whole number"),
        (["rotate-secret", "1", "--keep-old", "tomorrow"], "'tomorrow' is no duration; write 24h, 30m, 7d"),
        (["set", "1", "--requests-per-s", "9999999999"], "a quota is too large: Value out of range: 9999999999"),
        (["rotate-secret", "1", "--keep-old", "99999d"], "'99999d' is too long: at most 4294967295 seconds"),
        (["set", "1", "--default-period", "59"], "'--default-period': 59 is not in the range 60<=x<=604800"),
        (["set", "1", "--default-period", "604801"], "604801 is not in the range"),
        (["set", "1"], "name a change: --ack-info, --default-period, --name, --replay-safe, --allow-from, a quota"),
    ],
)
def test_wrong_limits_are_refused_before_a_call(arguments: list[str], told: str) -> None:
    refused = CliRunner().invoke(app_commands, arguments)
    assert (refused.exit_code, told in " ".join(refused.output.split())) == (2, True), refused.output


@pytest.mark.long
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


@pytest.mark.long
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
    assert fact.meta.origin.interface == "cli"
    assert fact.device.removed_reason == f"revoked by {fact.meta.origin.address}"
    assert (await carillon("revoke-keys", app.appkey, "--json")).lines == [{"appkey": app.appkey, "revoked": True}]
    assert registry.apps.is_revoked(app.appkey, two.partition, two.number)
    assert "refused" in (await carillon("revoke-keys", app.appkey)).out
    unknown = await carillon("revoke", app.appkey, "three", group="device")
    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == f"Error: app {app.appkey} has no device with this token\n"


async def test_without_a_running_service_the_error_says_what_to_do(tmp_path: Any) -> None:
    outcome = await run(str(tmp_path), "list")
    assert outcome.code == 1
    assert "carillon up" in outcome.err
    assert "CARILLON_DATA_DIR" in outcome.err


async def test_a_pause_names_the_account_that_made_it(registry: RunningRegistry, carillon: Carillon) -> None:
    app = await registry.app()
    origin = Origin(interface="console", address="10.0.0.1", actor="token/4f2a")
    await registry.stub.PauseApps(PauseAppsRequest(appkey=app.appkey, reason="complaints", origin=origin))
    (shown,) = (await carillon("show", app.appkey, "--json")).lines
    assert (shown["paused"]["actor"], shown["paused"]["by"]) == ("token/4f2a", "10.0.0.1")
    text = " ".join((await carillon("show", app.appkey)).out.split())
    assert " by token/4f2a from 10.0.0.1: complaints" in text
