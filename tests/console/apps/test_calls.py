"""Calls of `/console/v1` about apps, and the changes that `carillon app set` asks for with them."""

from typing import Any

import click
import pytest

from carillon.installation.remote import settings_body
from console.apps.calls import change_of
from protos.delivery.v1.delivery_pb2 import GetAppleStateResponse, MostlyBadTokens, RefusedKey
from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    CHANNEL_APNS,
    CHANNEL_FCM,
    CHANNEL_WEBPUSH,
    PLATFORM_IOS,
    ROUTE_OWN,
    Channel,
)
from protos.registry.v1.registry_pb2 import (
    AllowFromChange,
    ApnsKeyChange,
    ChannelChange,
    GetAppRequest,
    QuotasChange,
    UpdateAppRequest,
    WebOrigins,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.delivery.fcm import ACCOUNT, PROJECT, account_file
from tests.console.conftest import START_MS, ConsoleInstallation, Programs
from tests.console.shell.test_calls import SENT_TO_ALIAS, app_of_team, push

FILE = account_file(ACCOUNT).decode()


async def test_apps_are_listed_rotated_paused_and_resumed(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, head = await app_of_team(console, programs, "administrator", devices=0)
    await console.app("Of another team")
    (listed,) = (await head.get("/apps")).json()["apps"]
    assert (await head.get(f"/apps/{appkey}")).json() == listed
    assert (listed["appkey"], listed["platform"], listed["paused"]) == (appkey, "android", None)
    rotated = (await head.post(f"/apps/{appkey}/secret", {"keep_old_s": 60})).json()
    assert len(rotated["secret_key"]) == 64
    assert (await head.get(f"/apps/{appkey}")).json()["old_secret_until_ms"] == START_MS + 60_000
    changes = [(await head.post(f"/apps/{appkey}/pause", {"reason": "complaints"})).json() for _ in range(2)]
    assert [change["changed"] for change in changes] == [True, False]
    paused = (await head.get(f"/apps/{appkey}")).json()["paused"]
    actor = f"token/{(await head.get('/token')).json()['token_id']}"
    assert paused == {"since_ms": START_MS, "by": "192.0.2.9", "reason": "complaints", "actor": actor}
    refused = await head.post(f"/apps/{appkey}/pushes", push(appkey, SENT_TO_ALIAS))
    assert (refused.status_code, "paused" in refused.json()["detail"]) == (403, True)
    changes = [(await head.post(f"/apps/{appkey}/resume")).json() for _ in range(2)]
    assert [change["changed"] for change in changes] == [True, False]
    registry = RegistryServiceStub(console.peers.all("registry")[0])
    assert not (await registry.GetApp(GetAppRequest(appkey=appkey))).app.HasField("pause")


async def test_an_ios_app_tells_what_apples_answers_say_of_its_settings(
    console: ConsoleInstallation, programs: Programs
) -> None:
    team_id, _, head = await app_of_team(console, programs, "administrator", devices=0)
    ios = await console.app(team_id=team_id, platform=PLATFORM_IOS)
    assert (await head.get(f"/apps/{ios}")).json()["apple"] == []
    console.delivery.apple[ios] = GetAppleStateResponse(simulators=[CHANNEL_APNS, CHANNEL_WEBPUSH])
    assert (await head.get(f"/apps/{ios}")).json()["simulators"] == ["apns"]
    bad = MostlyBadTokens(since_ms=START_MS, last_ms=START_MS + 1, refused=50, reason="BadDeviceToken")
    key = RefusedKey(since_ms=START_MS, reason="InvalidProviderToken")
    console.delivery.apple[ios] = GetAppleStateResponse(bad_tokens=bad, refused_key=key)
    refused, tokens = (await head.get(f"/apps/{ios}")).json()["apple"]
    assert (refused["kind"], refused["since_ms"]) == ("refused_key", START_MS)
    assert "Apple has not accepted the app's key (InvalidProviderToken)" in refused.pop("text")
    assert tokens.pop("text").startswith(
        "Since 2026-09-21 14:13 UTC, Apple has refused the tokens of 50 of 50 pushes (BadDeviceToken), the last one at"
    )
    assert tokens == {
        "kind": "bad_tokens",
        "since_ms": START_MS,
        "last_ms": START_MS + 1,
        "refused": 50,
        "accepted": 0,
        "reason": "BadDeviceToken",
    }
    with console.servers["delivery"].away():
        assert (await head.get(f"/apps/{ios}")).json()["apple"] is None


async def test_settings_of_an_app_are_changed(console: ConsoleInstallation, programs: Programs) -> None:
    team_id, appkey, head = await app_of_team(console, programs, "administrator", devices=0)
    ios = await console.app(team_id=team_id, platform=PLATFORM_IOS)
    networks = {
        "allow_from": ["192.0.2.0/24"],
        "default_period_s": 7200,
        "ack_info": True,
        "channel_route": "vendor",
    }
    changed = (await head.post(f"/apps/{appkey}/settings", networks)).json()
    assert {name: changed[name] for name in networks} == networks
    assert (await head.get(f"/apps/{appkey}")).json() == changed
    assert (await head.post(f"/apps/{appkey}/settings", {"allow_from": []})).json()["allow_from"] is None
    refused: list[dict[str, Any]] = [
        {"default_period_s": 1},
        {"quotas": {}},
        {"allow_from": ["nowhere"]},
        {"channel_route": "fcm"},
        {"channels": {"pigeon": {}}},
        {"channels": {"fcm": {"colour": "red"}}},
        {"channels": {"webpush": {"contact": "mailto:push@example.org"}}},
    ]
    for wrong in (*refused, {"apns": {"key_id": KEY_ID}}, {"channel_route": "fcm"}):
        assert (await head.post(f"/apps/{appkey}/settings", wrong)).status_code == 400
    keys = {"webpush": {"key": "new", "contact": "mailto:push@example.org"}, "fcm": {"service_account": FILE}}
    shown = (await head.post(f"/apps/{appkey}/settings", {"channels": keys})).json()["channels"]
    assert shown["fcm"] == {"account": ACCOUNT.client_email, "project": PROJECT, "key_id": ACCOUNT.private_key_id}
    assert (set(shown["webpush"]), shown["webpush"]["contact"]) == ({"key", "contact"}, "mailto:push@example.org")
    gone = (await head.post(f"/apps/{appkey}/settings", {"channels": {"fcm": None}})).json()["channels"]
    assert gone == {"webpush": shown["webpush"]}
    key = {"pem": pem(), "key_id": KEY_ID, "team_id": TEAM_ID, "environment": "sandbox"}
    changed = (await head.post(f"/apps/{ios}/settings", {"apns": key})).json()["apns"]
    assert changed == {
        **{name: key[name] for name in ("key_id", "team_id", "environment")},
        "topic": "org.example.news",
    }
    assert (await head.post(f"/apps/{ios}/settings", {"apns": {"remove": True}})).json()["apns"] is None
    assert (await head.post(f"/apps/{ios}/settings", {"apns_reports": True})).json()["apns_reports"] is True


def _channel(channel: Channel.ValueType, **fields: str) -> ChannelChange:
    return ChannelChange(channel=channel, fields=fields)


@pytest.mark.parametrize(
    "change",
    [
        UpdateAppRequest(appkey="1", name="News", ack_info_enabled=False, default_period_s=60),
        UpdateAppRequest(appkey="1", allow_from=AllowFromChange(networks=["192.0.2.0/24"])),
        UpdateAppRequest(appkey="1", allow_from=AllowFromChange(), drop_old_secret=True),
        UpdateAppRequest(appkey="1", apns=ApnsKeyChange(pem="-", key_id="k", environment=APNS_ENVIRONMENT_BOTH)),
        UpdateAppRequest(appkey="1", apns=ApnsKeyChange(remove=True)),
        UpdateAppRequest(appkey="1", channel_route=ROUTE_OWN),
        UpdateAppRequest(appkey="1", apns_reports=False),
        UpdateAppRequest(appkey="1", channels=[_channel(CHANNEL_WEBPUSH, key="new", contact="mailto:a@example.org")]),
        UpdateAppRequest(
            appkey="1", channels=[_channel(CHANNEL_WEBPUSH, hosts=""), _channel(CHANNEL_FCM, service_account="{}")]
        ),
        UpdateAppRequest(
            appkey="1",
            channels=[ChannelChange(channel=CHANNEL_FCM, remove=True)],
            web_origins=WebOrigins(origins=["x"]),
        ),
    ],
)
def test_a_change_from_elsewhere_is_the_one_on_the_machine(change: UpdateAppRequest) -> None:
    assert change_of("1", settings_body(change)) == change


def test_quotas_are_not_set_from_elsewhere() -> None:
    with pytest.raises(click.UsageError, match="on the machine"):
        settings_body(UpdateAppRequest(appkey="1", quotas=QuotasChange(devices=5)))
