"""An app's service account for HarmonyOS: checked, sealed, opened for its app alone, shown without the key."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import CHANNEL_HARMONY, App
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.domain.channel_credentials.harmony import HarmonyAccount, open_harmony
from services.domain.channel_receipts.receipts import ReceiptTags
from services.domain.master_key import MasterKey
from services.errors import CarillonError, InputError
from services.hms_simulator.harmony import new_key
from testkit.apns.keys import files_containing
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry

NAMED: dict[str, Any] = {"project_id": "3884", "key_id": "k1", "sub_account": "1045", "token_uri": "https://x.example"}


@pytest.fixture(scope="module")
def pem() -> str:
    return new_key()


def file_of(pem: str, **changes: Any) -> str:
    """Return the file of an account. Changes to None leave a field out."""
    fields = NAMED | {"private_key": pem} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None})


async def change(registry: RunningRegistry, app: App, **fields: str) -> App:
    changes = [ChannelChange(channel=CHANNEL_HARMONY, fields=fields)]
    return (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, channels=changes))).app


async def test_an_account_is_sealed_and_opened(registry: RunningRegistry, pem: str) -> None:
    app = await registry.app()
    assert open_harmony(app, registry.keys) is None
    changed = await change(registry, app, service_account=file_of(pem), categories="IM, WORK", receipts="on")
    opened = open_harmony(changed, registry.keys)
    assert opened == HarmonyAccount("3884", "k1", "1045", pem)
    assert opened.categories == frozenset({"IM", "WORK"})
    assert opened.receipts == ReceiptTags(app.appkey, CHANNEL_HARMONY, registry.keys)
    line = pem.split("\n")[1]
    assert line.encode() not in changed.SerializeToString()
    assert line not in repr(opened)
    with pytest.raises(CarillonError, match="another master key"):
        open_harmony(changed, MasterKey(bytes(31) + b"x"))


@pytest.mark.parametrize("content", ["", "[]", "[" * 10_000, json.dumps(NAMED)], ids=lambda content: content[:9])
async def test_what_is_no_file_of_an_account_changes_nothing(registry: RunningRegistry, content: str) -> None:
    app = await registry.app()
    with pytest.raises(InputError, match="JSON file of a service account"):
        await change(registry, app, service_account=content)
    assert registry.apps.get(app.appkey) == app


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        *(({name: None}, "JSON file of a service account") for name in ("project_id", "key_id", "sub_account")),
        ({"key_id": ""}, "1 to 200 printable characters"),
        ({"project_id": "a\nb"}, "1 to 200 printable characters"),
        ({"private_key": "-----BEGIN PRIVATE KEY-----"}, "RSA key of 2048 bits"),
    ],
)
async def test_a_wrong_file_changes_nothing(
    registry: RunningRegistry, pem: str, changes: dict[str, Any], told: str
) -> None:
    app = await registry.app()
    with pytest.raises(InputError, match=told) as refused:
        await change(registry, app, service_account=file_of(pem, **changes))
    assert pem.split("\n")[1] not in str(refused.value)
    assert registry.apps.get(app.appkey) == app


async def test_the_command_sets_and_shows_an_account(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path, pem: str
) -> None:
    app, file = await registry.app(), tmp_path.parent / f"{tmp_path.name}-account.json"
    file.write_text(file_of(pem))
    given = ("--harmony-service-account", str(file), "--harmony-categories", "IM")
    with capture_logs() as logs:
        outcome = await carillon("set", app.appkey, *given, "--json")
    file.unlink()
    shown = outcome.lines[0]["channels"]
    assert shown == {"harmony": {"account": "1045", "project": "3884", "key_id": "k1", "categories": "IM"}}
    line = pem.split("\n")[1]
    assert line not in f"{outcome.out}{outcome.err}{logs}"
    assert files_containing(tmp_path, [line.encode()]) == []
