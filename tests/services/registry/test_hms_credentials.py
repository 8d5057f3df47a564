"""An app's credentials at Huawei: checked, sealed, opened for its app alone, shown without the secret, and removed."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import CHANNEL_HMS, App
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.domain.channel_credentials.hms import HmsCredentials, open_hms
from services.domain.channel_credentials.stored import settings_of
from services.domain.channel_receipts.receipts import ReceiptTags, is_receipt_token
from services.domain.master_key import MasterKey
from services.errors import CarillonError, InputError
from testkit.apns.keys import files_containing
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry

SECRET = "canary-secret-of-huawei"  # looked for
FIRST = {"client_id": " 104520345 ", "client_secret": f"{SECRET}\r\n"}


async def change(registry: RunningRegistry, app: App, **fields: str) -> App:
    request = UpdateAppRequest(appkey=app.appkey, channels=[ChannelChange(channel=CHANNEL_HMS, fields=fields)])
    changed: App = (await registry.stub.UpdateApp(request)).app
    return changed


async def test_credentials_are_sealed_and_opened_for_their_app_alone(registry: RunningRegistry) -> None:
    app = await registry.app()
    assert open_hms(app, registry.keys) is None
    changed = await change(registry, app, **FIRST)
    opened = open_hms(changed, registry.keys)
    assert opened == HmsCredentials("104520345", SECRET)
    assert (opened.categories, opened.badge_class) == (frozenset(), "")
    assert SECRET.encode() not in changed.SerializeToString()
    assert SECRET not in repr(opened)
    with pytest.raises(CarillonError, match="another master key"):
        open_hms(changed, MasterKey(bytes(31) + b"x"))

    fields = {"project_id": "388421841", "categories": "WORK, IM,IM", "badge_class": "org.example.weather.Main$Inner"}
    opened = open_hms(await change(registry, app, **fields), registry.keys)
    assert opened is not None
    assert opened == HmsCredentials("104520345", SECRET, "388421841")
    assert (opened.categories, opened.badge_class) == (frozenset({"IM", "WORK"}), "org.example.weather.Main$Inner")
    opened = open_hms(await change(registry, app, project_id="", categories=" ", badge_class=""), registry.keys)
    assert opened == HmsCredentials("104520345", SECRET)
    assert (opened.categories, opened.badge_class) == (frozenset(), "")


async def test_receipts_are_switched_on_and_off(registry: RunningRegistry) -> None:
    app = await registry.app()
    opened = open_hms(await change(registry, app, **FIRST), registry.keys)
    assert opened is not None
    assert opened.receipts is None
    changed = await change(registry, app, receipts="on")
    opened = open_hms(changed, registry.keys)
    assert opened is not None
    assert opened.receipts == ReceiptTags(app.appkey, CHANNEL_HMS, registry.keys)
    assert "receipts_key" not in settings_of(changed, CHANNEL_HMS)
    assert is_receipt_token(changed, CHANNEL_HMS, settings_of(changed, CHANNEL_HMS)["receipts"])
    signed = settings_of(await change(registry, app, receipts="signed"), CHANNEL_HMS)
    kept = settings_of(await change(registry, app, receipts=signed["receipts"]), CHANNEL_HMS)
    assert kept["receipts_key"] == signed["receipts_key"]
    ended = await change(registry, app, receipts="off")
    opened = open_hms(ended, registry.keys)
    assert opened is not None
    assert opened.receipts is None
    assert settings_of(ended, CHANNEL_HMS).keys() == {"client_id"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"client_id": "1"}, "hms_client_secret is missing"),
        ({"client_secret": "s"}, "hms_client_id is missing"),
        (FIRST | {"client_id": "1 2"}, "hms_client_id must have 1 to 64"),
        (FIRST | {"client_id": ""}, "hms_client_id must have 1 to 64"),
        (FIRST | {"client_secret": f"{SECRET} {SECRET}"}, "hms_client_secret must have 1 to 200"),
        (FIRST | {"client_secret": SECRET * 20}, "hms_client_secret must have 1 to 200"),
        (FIRST | {"project_id": "a/b"}, "hms_project_id must have"),
        (FIRST | {"categories": "IM, marketing"}, "hms_categories"),
        (FIRST | {"categories": " ".join(f"A{'B' * n}" for n in range(31))}, "hms_categories must have at most 30"),
        (FIRST | {"badge_class": "Main"}, "hms_badge_class"),
        (FIRST | {"receipts": "yes"}, "hms_receipts must be on, signed or off"),
        (FIRST | {"badge_class": "a." + "b" * 200}, "hms_badge_class"),
    ],
)
async def test_wrong_fields_change_nothing(registry: RunningRegistry, fields: dict[str, str], told: str) -> None:
    app = await registry.app()
    with pytest.raises(InputError, match=told) as refused:
        await change(registry, app, **fields)
    assert SECRET not in str(refused.value)
    assert registry.apps.get(app.appkey) == app


async def test_the_command_sets_shows_and_removes_credentials(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app, file = await registry.app(), tmp_path.parent / f"{tmp_path.name}-secret.txt"
    file.write_text(f"{SECRET}\n")
    given = ("--hms-client-id", "104520345", "--hms-project-id", "388421841", "--hms-categories", "IM,WORK")
    with capture_logs() as logs:
        outcomes = [
            await carillon("set", app.appkey, *given, "--hms-client-secret", str(file), "--json"),
            await carillon("show", app.appkey),
        ]
    file.unlink()
    assert [outcome.code for outcome in outcomes] == [0, 0]
    (shown,) = outcomes[0].lines
    named = {"client_id": "104520345", "project_id": "388421841", "categories": "IM,WORK"}
    assert shown["channels"] == {"hms": named}
    assert "388421841" in outcomes[1].out
    told = "".join(f"{outcome.out}{outcome.err}" for outcome in outcomes) + str(logs)
    assert SECRET not in told
    assert files_containing(tmp_path, [SECRET.encode()]) == []
    gone = await carillon("set", app.appkey, "--hms-client-secret", "none", "--json")
    assert "channels" not in gone.lines[0]
