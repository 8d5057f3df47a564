"""`carillon app set` with an app's APNs key, run as a process: it is shown nowhere."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.domain.apns_credentials import ApnsCredentials, Environment, open_credentials
from testkit.apns.keys import KEY_ID, TEAM_ID, canaries, files_containing, pem
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry


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


@pytest.mark.long
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
    assert files_containing(tmp_path, words) == []
    (tmp_path / "planted").write_text(text)
    assert files_containing(tmp_path, words) == [tmp_path / "planted"]
