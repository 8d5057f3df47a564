"""Commands from elsewhere, against the console of a running installation."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from carillon.main import main
from testkit.installation.sample import SampleService
from testkit.waiting import blocking_until

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def token_file(service: SampleService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the text of a sender's token of the team that has the Android app."""
    run = service.installation.carillon
    run("team", "add", "Commands")
    run("team", "give-app", "Commands", service.android.appkey)
    made = json.loads(run("token", "create", "Commands", "nightly", "--role", "sender", "--json"))
    path = tmp_path_factory.mktemp("token") / "token.txt"
    path.write_text(f"{made['token']}\n")
    return path


@pytest.fixture
def run(service: SampleService, token_file: Path) -> Run:
    def command(*arguments: str, stdin: str | None = None) -> Result:
        given = ["--url", service.installation.console_url(), "--token-file", str(token_file), *arguments]
        done = CliRunner().invoke(main, given, input=stdin, env={"CARILLON_DATA_DIR": "/nonexistent"})
        assert token_file.read_text().strip() not in done.output
        return done

    return command


@pytest.mark.long
def test_a_push_is_sent_explained_and_audited_from_elsewhere(service: SampleService, run: Run) -> None:
    appkey = service.android.appkey
    target = {"appkey": {"android": appkey}, "userScope": 1}
    text = json.dumps({"sendTo": target, "msgStyle": {"basic": {"content": "Storm", "is_notif": 0}}})
    assert "1 device would get it now" in run("push", "estimate", appkey, "-", stdin=text).output
    refused = run("push", "send", appkey, "-", "--at-most", "0", stdin=text)
    assert refused.exit_code == 1
    assert "would go to more devices (1) than it may (0)" in refused.output
    sent = [run("push", "send", appkey, "-", "--key", "storm", "--json", stdin=text) for _ in range(2)]
    assert "Accepted for 1 device;" in run("push", "send", appkey, "-", "--key", "storm", stdin=text).output
    (msgid,) = {json.loads(done.stdout)["msgids"][appkey] for done in sent}
    audit = service.audit(msgid)
    found = _answered(run, "audit", "push", str(msgid), "--json", "--allow-behind")
    assert (found.keys(), found["request_json"]) == (audit.keys(), audit["request_json"])
    why = _answered(run, "push", "why", appkey, "alice", str(msgid), "--json")
    assert [device["token"] for device in why["devices"]] == [service.device["token"]]
    device = run("audit", "device", appkey, service.device["token"], "--json", "--allow-behind")
    assert "registered" in {entry["event"] for entry in json.loads(device.stdout)["timeline"]}
    assert str(msgid) in run("push", "list").output
    (count,) = found["states"]
    state = [count["state"], "--reason", count["reason"]]
    listed = _answered(run, "push", "devices", appkey, str(msgid), *state, "--json")
    assert (listed["devices"], listed["next"]) == ([{"msgid": msgid, "token": service.device["token"]}], "")
    assert service.device["token"] in run("push", "devices", appkey, str(msgid), *state).output
    divided = _answered(run, "push", "states", appkey, str(msgid), "--by", "region", "--json")
    assert [value["states"][0]["devices"] for value in divided["values"]] == [1]
    assert count["state"] in run("push", "states", appkey, str(msgid), "--by", "region").output
    assert "cancelled" in run("push", "cancel", appkey, str(msgid)).output


def _answered(run: Run, *arguments: str) -> dict[str, Any]:
    """Return what a command prints once analytics has read of the push."""
    done = blocking_until(lambda: done if (done := run(*arguments)).exit_code == 0 else None)
    assert done is not None
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_the_owner_of_a_token_is_shown(service: SampleService, run: Run) -> None:
    own = json.loads(run("token", "whoami", "--json").output)
    assert (own["name"], own["team"], own["role"]) == ("nightly", "Commands", "sender")
    listed = json.loads(service.installation.carillon("token", "list", "--team", "Commands", "--json"))
    assert {name: listed[name] for name in ("token_id", "expires_ms")} == {
        name: own[name] for name in ("token_id", "expires_ms")
    }
    said = run("token", "whoami").output
    assert said.startswith(f"API token nightly ({own['token_id']}), valid until 20")
    assert said.endswith(": sender of team Commands.\n")


def test_a_command_beyond_the_rights_of_a_token_fails_with_the_reason(service: SampleService, run: Run) -> None:
    done = run("push", "cancel", service.ios[0].appkey, "1")
    assert done.exit_code == 1
    assert "role in the team does not allow this" in done.output
    assert "role in the team does not allow this" in run("app", "pause", service.android.appkey).output
    target = {"appkey": {"android": service.android.appkey}, "userScope": 1}
    text = json.dumps({"sendTo": target, "msgStyle": {"basic": {"content": "Storm", "is_notif": 0}}})
    no_task = run("push", "send", service.android.appkey, "-", "--replaces", "no-task", stdin=text)
    assert (no_task.exit_code, "task" in no_task.output) == (1, True), no_task.output
    listed = json.loads(run("push", "list", "--limit", "1", "--json").stdout)
    assert listed.keys() == {"pushes", "next", "records_behind"}


def test_addresses_that_devices_set_are_listed_without_what_they_are(service: SampleService, run: Run) -> None:
    appkey, token = service.android.appkey, service.device["token"]
    frame = {"type": "set_address", "id": 1, "channel": "fcm", "address": "secret-part"}
    known = {"appkey": appkey, "token": token, "key": service.device["key"]}
    assert service.send("v2", "POST", "/device/v1", {**frame, **known}).json() == {"type": "ok", "id": 1}
    listed = run("address", "list", "--app", appkey, "--json")
    (one,) = json.loads(listed.stdout)["addresses"]
    assert (one["token"], one["channel"], one["dead_ms"]) == (token, "fcm", None)
    shown = run("address", "list", "--app", appkey)
    assert (token in shown.output, one["fingerprint"] in shown.output) == (True, True)
    assert "secret-part" not in listed.output + shown.output
    assert "No address of the app is dead." in run("address", "list", "--app", appkey, "--dead").output
    clear = {"type": "clear_address", "id": 2, "channel": "fcm"}
    assert service.send("v2", "POST", "/device/v1", {**clear, **known}).json() == {"type": "ok", "id": 2}
    assert "No device of the app has an address." in run("address", "list", "--app", appkey, "--channel", "fcm").output


def test_the_values_that_an_audience_can_name_are_listed(service: SampleService, run: Run) -> None:
    appkey = service.android.appkey
    listed = json.loads(run("audience", "values", appkey, "region", "--json").stdout)
    assert listed.keys() == {"values", "has_more", "devices"}
    assert "No audience is saved." in run("audience", "list", appkey).output
    definition = {"userScope": 6, "stag": [["vip"]]}
    assert "is saved" in run("audience", "save", appkey, "vip", "-", stdin=json.dumps(definition)).output
    (saved,) = json.loads(run("audience", "list", appkey, "--json").stdout)["audiences"]
    assert (saved["name"], saved["send_to"]) == ("vip", definition)
    again = run("audience", "save", appkey, "vip", "-", "--new", stdin=json.dumps(definition))
    assert (again.exit_code, "already" in again.output) == (1, True), again.output
    assert "is removed" in run("audience", "remove", appkey, "vip").output
    assert "No device has such a value." in run("audience", "values", appkey, "stag", "--words", "nowhere").output


@pytest.mark.long
def test_everything_of_the_team_is_seen_from_elsewhere_as_on_the_machine(service: SampleService, run: Run) -> None:
    appkey, on_machine = service.android.appkey, service.installation.carillon
    assert json.loads(run("app", "show", appkey, "--json").stdout) == json.loads(
        on_machine("app", "show", appkey, "--json")
    )
    assert [json.loads(line)["appkey"] for line in run("app", "list", "--json").stdout.splitlines()] == [appkey]
    (team,) = [json.loads(line) for line in run("team", "list", "--json").stdout.splitlines()]
    assert (team["name"], team["apps"]) == ("Commands", [appkey])
    found = json.loads(run("device", "find", appkey, "alice", "--json").stdout)
    assert [device["token"] for device in found["devices"]] == [service.device["token"]]
    assert service.device["token"] in run("device", "find", appkey, "alice").output
    assert _answered(run, "statistics", appkey, "--kind", "users", "--json")["kind"] == "users"
    assert run("statistics", appkey, "--kind", "users").output.startswith("day")
    entries = [json.loads(line) for line in run("audit", "app", appkey, "--allow-behind", "--json").stdout.splitlines()]
    assert all(entry.keys() == {"first_ms", "last_ms", "event", "count", "detail"} for entry in entries)
    assert json.loads(run("audit", "actions", "--subject", "data", "--json").stdout).keys() >= {"actions", "next"}
    for names in (("task", "list"), ("draft", "list"), ("audit", "actions"), ("app", "list"), ("team", "list")):
        assert run(*names).exit_code == 0
    assert run("task", "cancel", appkey, "no-such-task").exit_code == 1


@pytest.mark.long
def test_everything_that_is_held_about_a_person_is_exported(service: SampleService, run: Run, tmp_path: Path) -> None:
    """A push, its content and its outcome are in the export of the person; who may not export is told so."""
    appkey, text = service.android.appkey, '{"sendTo":{"appkey":{"android":"%s"},"userScope":4,"alias":["alice"]},%s}'
    push = text % (appkey, '"msgStyle":{"basic":{"content":"For alice alone","is_notif":0}}')
    (msgid,) = json.loads(run("push", "send", appkey, "-", "--json", stdin=push).stdout)["msgids"].values()
    export = ("person", "export", "--app", appkey, "--alias", "alice")
    assert "role in the team does not allow this" in run(*export).output
    made = service.installation.carillon("token", "create", "Commands", "privacy", "--role", "administrator", "--json")
    (file := tmp_path / "token.txt").write_text(json.loads(made)["token"])

    def exported(*arguments: str) -> str:
        return run("--token-file", str(file), *arguments).stdout

    def whole() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(exported(*export, "--json") or "{}")
        return found if any(event["msgid"] == msgid and event["push"] for event in found.get("history", [])) else None

    found = blocking_until(whole)
    assert found is not None
    assert [device["token"] for device in found["devices"]] == [service.device["token"]]
    (sent,) = (event["push"] for event in found["history"] if event["msgid"] == msgid and event["push"])
    assert json.loads(sent["content_json"])["msgStyle"]["basic"]["content"] == "For alice alone"
    assert found["history"][-1]["event"] == "registered"
    by_token = exported("person", "export", "--app", appkey, "--token", service.device["token"])
    assert service.device["token"] in by_token
    assert "no device with this alias" in run("--token-file", str(file), *export[:-1], "nobody").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--url", "http://push.example.org", "--token-file", "FILE", "push", "list"], "use https://"),
        (["--url", "ftp://push.example.org", "--token-file", "FILE", "push", "list"], "no address of a console"),
        (["--url", "https://push.example.org", "push", "list"], "name a file with an API token"),
        (["--token-file", "FILE", "push", "list"], "name the console"),
        (["--url", "https://push.example.org", "--token-file", "/none", "push", "list"], "cannot be read"),
        (["--url", "https://push.example.org", "--token-file", "FILE", "user", "list"], "on the machine alone"),
        (["--url", "https://push.example.org", "--token-file", "FILE", "app", "revoke-keys", "1"], "machine alone"),
        (["--url", "https://push.example.org", "--token-file", "FILE", "app", "pause", "--all"], "machine alone"),
        (["--url", "https://push.example.org", "--token-file", "FILE", "status"], "the console's overview shows it"),
        (["--url", "https://push.example.org", "--token-file", "FILE", "token", "list"], "works on the machine alone"),
        (["token", "whoami"], "name the console"),
        (["--url", "https://push.example.org", "device", "run", "--appkey", "1"], "at its own --url"),
        (["--url", "https://push.example.org", "app", "list"], "name a file with an API token"),
        (["push", "list"], "name the console"),
        (["task", "list"], "name the console"),
        (["statistics", "1"], "name the console"),
    ],
)
def test_what_is_missing_or_unsafe_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("carillon_0000000000000000_secret")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code != 0
    assert words in done.output


def test_a_token_in_the_environment_is_never_used_with_the_machine_itself(tmp_path: Path) -> None:
    env = {"CARILLON_API_TOKEN": "secret-text", "CARILLON_DATA_DIR": str(tmp_path)}
    for arguments, words in (
        (["app", "revoke-keys", "1"], "on the machine alone"),
        (["status"], "the console's overview shows it"),
        (["app", "list"], "name the console"),
    ):
        done = CliRunner().invoke(main, arguments, env=env)
        assert (done.exit_code, words in done.output) == (2, True), done.output
        assert "secret-text" not in done.output
