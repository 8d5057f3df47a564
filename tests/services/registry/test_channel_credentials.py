"""Credentials of a further channel need its form alone: change, seal, audit, the console's form, calls and answers."""

from typing import Any

import pytest

from console.apps.answers import app_answer
from console.apps.calls import change_of
from console.apps.form import difference_of, form_of, secrets_emptied
from console.shell.requests import SettingsBody
from protos.registry.v1.apps_pb2 import CHANNEL_OPPO, App
from protos.registry.v1.registry_pb2 import UpdateAppRequest
from services.domain.channel_credentials import forms
from services.domain.channel_credentials.fields import (
    ChannelVendor,
    CredentialField,
    CredentialsForm,
    FieldKind,
    FieldValue,
)
from services.domain.channel_credentials.stored import OpenedCredentials, open_credentials, seal_channels_anew
from services.errors import InputError
from services.registry.app_settings import settings_changed
from tests.services.registry.conftest import RunningRegistry


def read_id(value: str, at: str) -> FieldValue:
    if not value.isalnum():
        raise InputError(f"{at} must be letters and digits")
    return FieldValue({"app_key": value})


OPPO = CredentialsForm(
    CHANNEL_OPPO,
    "OPPO",
    (
        CredentialField("app_key", FieldKind.TEXT, read_id, "App key", is_needed=True),
        CredentialField("master_secret", FieldKind.SECRET, lambda value, at: FieldValue({}, value), "Master secret"),
    ),
    {"app_key": "App key"},
    ChannelVendor("OPPO", "OPPO", "CARILLON_OPPO_URL=https://api.push.oppomobile.com sends to OPPO."),
)


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(forms._BY_CHANNEL, CHANNEL_OPPO, OPPO)


async def changed(registry: RunningRegistry, app: App, channels: dict[str, Any]) -> App:
    request = change_of(app.appkey, SettingsBody(channels=channels))
    after: App = (await registry.stub.UpdateApp(request)).app
    return after


async def test_a_further_channel_needs_its_form_alone(registry: RunningRegistry) -> None:
    app = await registry.app()
    for wrong, told in (
        ({"app_key": "k1"}, "oppo_master_secret is missing"),
        ({"master_secret": "s3cret"}, "oppo_app_key is missing"),
        ({"app_key": "-", "master_secret": "s3cret"}, "oppo_app_key must be"),
        ({"app_key": "k1", "master_secret": "s" * 16_385}, "oppo_master_secret must have 1 to 16384 bytes"),
    ):
        with pytest.raises(InputError, match=told):
            await changed(registry, app, {"oppo": wrong})
    first = await changed(registry, app, {"oppo": {"app_key": "k1", "master_secret": "s3cret"}})
    assert open_credentials(first, CHANNEL_OPPO, registry.keys) == OpenedCredentials("s3cret", {"app_key": "k1"})
    assert b"s3cret" not in first.SerializeToString()
    assert settings_changed(app, first) == ["oppo_app_key k1", "oppo_master_secret new"]
    assert app_answer(first, None, 0).channels == {"oppo": {"app_key": "k1"}}

    second = await changed(registry, app, {"oppo": {"master_secret": "other"}})
    assert settings_changed(first, second) == ["oppo_master_secret new"]
    sealed_anew = App()
    sealed_anew.CopyFrom(second)
    seal_channels_anew(sealed_anew, registry.keys)
    assert sealed_anew == second, "it is sealed with the key in force already"

    gone = await changed(registry, app, {"oppo": None})
    assert (list(gone.channels), settings_changed(second, gone)) == ([], ["oppo_app_key none"])


async def test_its_fields_are_in_the_form_and_its_secret_is_not(registry: RunningRegistry) -> None:
    app = await registry.app()
    shown = form_of(app)
    assert (shown["oppo_app_key"], shown["oppo_master_secret"]) == ("", "")
    assert not difference_of(app, {**shown, "oppo_app_key": "k1"}, shown, with_quotas=False).channels
    sent = {**shown, "oppo_app_key": "k1", "oppo_master_secret": "s3cret"}
    asked = difference_of(app, sent, shown, with_quotas=False)
    assert dict(asked.channels[0].fields) == {"app_key": "k1", "master_secret": "s3cret"}
    assert secrets_emptied(sent)["oppo_master_secret"] == ""
    app = (await registry.stub.UpdateApp(asked)).app
    shown = form_of(app)
    assert (shown["oppo_app_key"], shown["oppo_master_secret"]) == ("k1", "")
    same = UpdateAppRequest(appkey=app.appkey)
    assert difference_of(app, shown, shown, with_quotas=False) == same
    removed = difference_of(app, {**shown, "oppo_remove": "remove"}, shown, with_quotas=False)
    assert [each.remove for each in removed.channels] == [True]
