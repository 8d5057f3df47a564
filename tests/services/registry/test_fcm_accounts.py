"""An app's service account for FCM: sealed, opened for its app alone, shown without its key, replaced and removed."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.domain.channel_credentials.fcm import open_account
from services.domain.channel_credentials.fields import MAX_VALUE_LENGTH
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.master_key import MasterKey
from services.errors import CarillonError, InputError
from testkit.apns.keys import canaries, files_containing
from testkit.delivery.fcm import ACCOUNT, account_file
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry

FILE = account_file(ACCOUNT)


async def change(registry: RunningRegistry, app: App, file: bytes) -> App:
    given = ChannelChange(channel=CHANNEL_FCM, fields={"service_account": file.decode()})
    request = UpdateAppRequest(appkey=app.appkey, channels=[given])
    changed: App = (await registry.stub.UpdateApp(request)).app
    return changed


async def test_an_account_is_sealed_and_opened_for_its_app_alone(registry: RunningRegistry) -> None:
    app = await registry.app()
    assert open_account(app, registry.keys) is None
    changed = await change(registry, app, FILE)
    assert open_account(changed, registry.keys) == ACCOUNT
    assert ACCOUNT.private_key.encode() not in changed.SerializeToString()

    other = await registry.app()
    other.channels.extend(changed.channels)
    for stolen, keys in ((other, registry.keys), (changed, MasterKey(bytes(31) + b"x"))):
        with pytest.raises(CarillonError, match="another master key"):
            open_account(stolen, keys)
    cache = CredentialsCache(open_account, registry.keys)
    assert cache(changed) is cache(changed)
    with capture_logs() as logs:
        assert cache(other) is None
    assert logs[0]["appkey"] == other.appkey
    gone = UpdateAppRequest(appkey=app.appkey, channels=[ChannelChange(channel=CHANNEL_FCM, remove=True)])
    assert not (await registry.stub.UpdateApp(gone)).app.channels


async def test_wrong_files_change_nothing(registry: RunningRegistry) -> None:
    app, ios = await registry.app(), await registry.app(PLATFORM_IOS)
    for wrong, told in (
        (b"", "1 to 16384 bytes"),
        (b"{", "no JSON"),
        (b"{}", "lacks a field"),
        (FILE.replace(b"service_account", b"authorized_user"), "another type"),
        (FILE.replace(b"https://oauth2.googleapis.com/token", b"https://evil.example/token"), "token_uri"),
        (FILE + b" " * MAX_VALUE_LENGTH, "bytes"),
    ):
        with pytest.raises(InputError, match=told) as refused:
            await change(registry, app, wrong)
        assert not [word for word in canaries(ACCOUNT.private_key) if word.decode() in str(refused.value)]
    with pytest.raises(InputError, match="iOS app"):
        await change(registry, ios, FILE)
    assert registry.apps.get(app.appkey) == app


async def test_the_command_sets_shows_and_removes_an_account(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app, file = await registry.app(), tmp_path.parent / f"{tmp_path.name}-account.json"
    file.write_bytes(FILE)
    with capture_logs() as logs:
        outcomes = [
            await carillon("set", app.appkey, "--fcm-service-account", str(tmp_path / "none")),
            await carillon("set", app.appkey, "--fcm-service-account", str(file), "--json"),
            await carillon("show", app.appkey),
        ]
    file.unlink()
    assert [outcome.code for outcome in outcomes] == [2, 0, 0]
    (shown,) = outcomes[1].lines
    named = {"project": "weather-1", "account": ACCOUNT.client_email, "key_id": ACCOUNT.private_key_id}
    assert shown["channels"] == {"fcm": named}
    assert ACCOUNT.client_email in outcomes[2].out
    told = "".join(f"{outcome.out}{outcome.err}" for outcome in outcomes) + str(logs)
    words = canaries(ACCOUNT.private_key)
    assert not [word for word in words if word.decode() in told]
    assert files_containing(tmp_path, words) == []
    gone = await carillon("set", app.appkey, "--fcm-service-account", "none", "--json")
    assert "channels" not in gone.lines[0]
