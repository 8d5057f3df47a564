"""An app's credentials at Honor, Xiaomi, OPPO and vivo: checked, sealed, opened, shown without the secret."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import CHANNEL_HONOR, CHANNEL_OPPO, CHANNEL_VIVO, CHANNEL_XIAOMI, App, Channel
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.domain.channel_credentials.honor import open_honor
from services.domain.channel_credentials.oppo import open_oppo
from services.domain.channel_credentials.stored import settings_of
from services.domain.channel_credentials.vivo import open_vivo
from services.domain.channel_credentials.xiaomi import open_xiaomi
from services.domain.channel_receipts.receipts import Callback, ReceiptTags, is_receipt_token
from services.domain.master_key import Keys, MasterKey
from services.errors import CarillonError, InputError
from testkit.apns.keys import files_containing
from testkit.delivery.vendors import SECRET, VENDORS
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry

PUBLIC = "https://push.example.org"


class Vendor(NamedTuple):
    channel: "Channel.ValueType"
    open: Callable[[App, Keys], Any]
    secret: str
    shown: Mapping[str, str]


OF: Mapping[str, Vendor] = {
    "honor": Vendor(CHANNEL_HONOR, open_honor, "client_secret", {"app_id": "104562917", "client_id": "220099"}),
    "xiaomi": Vendor(
        CHANNEL_XIAOMI,
        open_xiaomi,
        "app_secret",
        {"package": "org.example.weather", "channels": "IM=104235,MARKETING=104234"},
    ),
    "oppo": Vendor(
        CHANNEL_OPPO,
        open_oppo,
        "master_secret",
        {"app_key": "c5c8aa64", "categories": "IM,ORDER", "channels": "IM=chat"},
    ),
    "vivo": Vendor(
        CHANNEL_VIVO,
        open_vivo,
        "app_secret",
        {"app_id": "10004", "app_key": "25509283-3767", "categories": "IM,ORDER"},
    ),
}


async def change(registry: RunningRegistry, app: App, channel: "Channel.ValueType", fields: Mapping[str, str]) -> App:
    request = UpdateAppRequest(appkey=app.appkey, channels=[ChannelChange(channel=channel, fields=fields)])
    changed: App = (await registry.stub.UpdateApp(request)).app
    return changed


@pytest.mark.parametrize("name", OF)
async def test_credentials_are_sealed_and_opened_for_their_app_alone(registry: RunningRegistry, name: str) -> None:
    vendor, case = OF[name], VENDORS[name]
    app = await registry.app()
    assert vendor.open(app, registry.keys) is None
    changed = await change(registry, app, vendor.channel, {**case.fields, vendor.secret: f" {SECRET}\r\n"})
    opened = vendor.open(changed, registry.keys)
    assert opened == case.account
    for part in ("categories", "channels"):
        assert getattr(opened, part, None) == getattr(case.account, part, None)
    assert settings_of(changed, vendor.channel) == vendor.shown
    assert SECRET.encode() not in changed.SerializeToString()
    assert SECRET not in repr(opened)
    assert hash(opened) == hash(replace(opened, **{vendor.secret: SECRET}))
    with pytest.raises(CarillonError, match="another master key"):
        vendor.open(changed, MasterKey(bytes(31) + b"x"))


@pytest.mark.parametrize("name", OF)
async def test_first_credentials_are_whole_and_wrong_ones_change_nothing(registry: RunningRegistry, name: str) -> None:
    vendor, fields = OF[name], VENDORS[name].fields
    app = await registry.app()
    needed = [each for each in fields if each != "categories" and (name, each) != ("oppo", "channels")]
    for missing in needed:
        given = {each: value for each, value in fields.items() if each != missing}
        with pytest.raises(InputError, match=f"{name}_{missing} is missing"):
            await change(registry, app, vendor.channel, given)
    for wrong in ("", "a\nb", "x" * 201):
        with pytest.raises(InputError, match=f"{name}_{vendor.secret}") as refused:
            await change(registry, app, vendor.channel, {**fields, vendor.secret: wrong})
        assert SECRET not in str(refused.value)
    assert registry.apps.get(app.appkey) == app


@pytest.mark.parametrize(
    ("channels", "told"),
    [
        ("IM=1", "name a channel for MARKETING"),
        ("", "name a channel for MARKETING"),
        ("MARKETING", "one CATEGORY=ID"),
        ("MARKETING=1,MARKETING=2", "one CATEGORY=ID"),
        ("MARKETING=1,im=2", "one CATEGORY=ID"),
        (",".join(f"{'ABCDEFGH'[i // 4]}{'ABCD'[i % 4]}=1" for i in range(31)), "30"),
    ],
)
async def test_wrong_notification_channels_are_refused(registry: RunningRegistry, channels: str, told: str) -> None:
    app = await registry.app()
    with pytest.raises(InputError, match=told):
        await change(registry, app, CHANNEL_XIAOMI, {**VENDORS["xiaomi"].fields, "channels": channels})


async def test_a_message_goes_by_the_notification_channel_of_its_category(registry: RunningRegistry) -> None:
    changed = await change(registry, await registry.app(), CHANNEL_XIAOMI, VENDORS["xiaomi"].fields)
    opened = open_xiaomi(changed, registry.keys)
    assert opened is not None
    assert [opened.channel(each) for each in ("IM", "ORDER", "")] == ["104235", "104234", "104234"]


@pytest.mark.parametrize("name", ["xiaomi", "oppo"])
async def test_receipts_are_asked_for_at_the_address_of_this_service(registry: RunningRegistry, name: str) -> None:
    vendor = OF[name]
    app = await registry.app()
    changed = await change(registry, app, vendor.channel, VENDORS[name].fields)
    assert vendor.open(changed, registry.keys).callback is None
    changed = await change(registry, app, vendor.channel, {"receipts_url": f"{PUBLIC}/"})
    token = settings_of(changed, vendor.channel)["receipts"]
    url = f"{PUBLIC}/channels/v1/receipt/{name}/{app.appkey}/{token}"
    tags = ReceiptTags(app.appkey, vendor.channel, registry.keys)
    assert vendor.open(changed, registry.keys).callback == Callback(url, tags)
    assert len(url) <= 200
    assert is_receipt_token(changed, vendor.channel, token)
    changed = await change(registry, app, vendor.channel, {"receipts_url": ""})
    assert vendor.open(changed, registry.keys).callback is None
    for wrong in ("http://push.example.org", "push.example.org", f"{PUBLIC}/?a=b", f"https://{'x' * 100}.example.org"):
        with pytest.raises(InputError, match="https:// and a host"):
            await change(registry, app, vendor.channel, {"receipts_url": wrong})


async def test_the_command_sets_and_shows_credentials(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app, file = await registry.app(), tmp_path.parent / f"{tmp_path.name}-secret"
    file.write_text(f"{SECRET}\n")
    given = ("--xiaomi-package", "org.example.weather", "--xiaomi-channels", "MARKETING=104234")
    with capture_logs() as logs:
        outcome = await carillon("set", app.appkey, *given, "--xiaomi-app-secret", str(file), "--json")
    file.unlink()
    shown = outcome.lines[0]["channels"]
    assert shown == {"xiaomi": {"package": "org.example.weather", "channels": "MARKETING=104234"}}
    assert SECRET not in f"{outcome.out}{outcome.err}{logs}"
    assert files_containing(tmp_path, [SECRET.encode()]) == []
