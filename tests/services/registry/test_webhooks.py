"""An app's webhooks: made, changed, rotated, removed; what is refused; no secret and no URL where others read."""

import base64
from typing import Any

import pytest

from protos.registry.v1.apps_pb2 import (
    EVENT_KIND_APP_PAUSED,
    EVENT_KIND_DEVICE_REMOVED,
    EVENT_KIND_MESSAGE_FAILED,
    WEBHOOK_FORM_SLACK,
    WEBHOOK_FORM_STANDARD,
    App,
    EventKind,
    Webhook,
)
from protos.registry.v1.registry_pb2 import (
    ChangeWebhookRequest,
    ChangeWebhookResponse,
    ListTeamWebhooksRequest,
    WebhookKinds,
    WebhookLabels,
    WebhookPushes,
)
from protos.runtime.v1.log_pb2 import Origin
from services.domain.master_key import MasterKey
from services.domain.topics import APPS, decode
from services.domain.webhooks import KIND_NAMES, KINDS, SECRET_PREFIX, secrets_in_force
from services.errors import CarillonError, InputError, NotFoundError
from services.registry.webhooks import MAX_WEBHOOKS
from tests.services.registry.conftest import RunningRegistry, records

URL = "https://hooks.example.org/in/canary-secret"
TEAM, OTHER_TEAM = "5e0f2c1d0f5f4c1e", "9a9b0c6a4e1d7b55"


async def change(registry: RunningRegistry, app: App, **fields: Any) -> ChangeWebhookResponse:
    answer: ChangeWebhookResponse = await registry.stub.ChangeWebhook(ChangeWebhookRequest(appkey=app.appkey, **fields))
    return answer


def stored(registry: RunningRegistry, app: App) -> list[Webhook]:
    known = registry.apps.get(app.appkey)
    assert known is not None
    return list(known.webhooks)


async def test_a_webhook_is_made_and_its_secret_opens_for_it_alone(registry: RunningRegistry) -> None:
    app, other = await registry.app(), await registry.app()
    made = await change(registry, app, url=URL)
    (webhook,) = stored(registry, app)
    assert webhook == made.webhook
    assert (webhook.url, webhook.form, list(webhook.kinds)) == (URL, WEBHOOK_FORM_STANDARD, [])
    assert len(base64.b64decode(made.secret.removeprefix(SECRET_PREFIX))) == 32
    assert secrets_in_force(webhook, app.appkey, registry.keys, 0) == [made.secret]
    second = (await change(registry, app, url=URL)).webhook
    swapped = Webhook()
    swapped.CopyFrom(second)
    swapped.sealed_secret = webhook.sealed_secret
    for stolen, appkey, keys in (
        (webhook, other.appkey, registry.keys),
        (swapped, app.appkey, registry.keys),
        (webhook, app.appkey, MasterKey(bytes(31) + b"x")),
    ):
        with pytest.raises(CarillonError, match="another master key"):
            secrets_in_force(stolen, appkey, keys, 0)


async def test_fields_are_changed_alone_and_a_webhook_is_removed(registry: RunningRegistry) -> None:
    app = await registry.app()
    first = (await change(registry, app, url=URL, kinds=WebhookKinds(kinds=[EVENT_KIND_DEVICE_REMOVED]))).webhook
    second = (await change(registry, app, url="https://b.example.org/")).webhook
    kinds = WebhookKinds(kinds=[EVENT_KIND_MESSAGE_FAILED, EVENT_KIND_APP_PAUSED, EVENT_KIND_MESSAGE_FAILED])
    changed = (await change(registry, app, webhook_id=first.webhook_id, kinds=kinds)).webhook
    assert (list(changed.kinds), changed.url) == ([EVENT_KIND_MESSAGE_FAILED, EVENT_KIND_APP_PAUSED], URL)
    pushes = WebhookPushes(msgids=[9, 7, 9])
    changed = (await change(registry, app, webhook_id=first.webhook_id, pushes=pushes, disabled=True)).webhook
    assert (list(changed.msgids), changed.disabled) == ([7, 9], True)
    labels = WebhookLabels(labels=["spring", "autumn", "spring"])
    labelled = (await change(registry, app, webhook_id=first.webhook_id, labels=labels)).webhook
    assert (list(labelled.labels), list(labelled.msgids)) == (["autumn", "spring"], [7, 9])
    assert (await change(registry, app, webhook_id=first.webhook_id, disabled=False)).webhook.disabled is False
    assert not (await change(registry, app, webhook_id=first.webhook_id, remove=True)).HasField("webhook")
    assert stored(registry, app) == [second]


async def test_both_secrets_sign_while_one_changes(registry: RunningRegistry) -> None:
    app = await registry.app()
    made = await change(registry, app, url=URL)
    rotated = await change(registry, app, webhook_id=made.webhook.webhook_id, rotate_keep_old_s=60)
    now_ms = registry.clock.now_ms()
    both = [rotated.secret, made.secret]
    assert secrets_in_force(rotated.webhook, app.appkey, registry.keys, now_ms + 59_999) == both
    assert secrets_in_force(rotated.webhook, app.appkey, registry.keys, now_ms + 60_000) == [rotated.secret]
    third = await change(registry, app, webhook_id=made.webhook.webhook_id, rotate_keep_old_s=0)
    assert secrets_in_force(third.webhook, app.appkey, registry.keys, now_ms) == [third.secret]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "needs a url"),
        ({"url": "http://hooks.example.org/"}, "by https and port 443 alone.*CARILLON_WEBHOOK_HOSTS=HOST:PORT"),
        ({"url": "https://hooks.example.org:8443/"}, "port 443"),
        ({"url": "https://169.254.169.254/latest/meta-data"}, "is an address"),
        ({"url": "https://user@hooks.example.org/"}, "plain https URL"),
        ({"url": "https://hooks.example.org"}, "with a host and a path"),
        ({"url": "https://0x7f.1/"}, "another form"),
        ({"url": URL, "form": WEBHOOK_FORM_SLACK}, "names the kinds"),
        ({"url": URL, "kinds": WebhookKinds(kinds=[EventKind.ValueType(0)])}, "kinds must be among push.accepted"),
        ({"url": URL, "kinds": WebhookKinds(kinds=[EventKind.ValueType(999)])}, "kinds must be among"),
        ({"url": URL, "pushes": WebhookPushes(msgids=range(101))}, "at most 100"),
        ({"url": URL, "labels": WebhookLabels(labels=map(str, range(21)))}, "at most 20"),
        ({"url": URL, "labels": WebhookLabels(labels=["a\nb"])}, "labels must have"),
        ({"url": URL, "resume": True}, "neither resumed"),
        ({"webhook_id": "0" * 16, "url": URL}, "has no webhook"),
        ({"webhook_id": "0" * 16, "remove": True}, "has no webhook"),
        ({"webhook_id": "0" * 16, "remove": True, "url": URL}, "removed whole"),
    ],
)
async def test_wrong_changes_change_nothing(registry: RunningRegistry, fields: dict[str, Any], told: str) -> None:
    app = await registry.app()
    with pytest.raises((InputError, NotFoundError), match=told):
        await change(registry, app, **fields)
    assert not stored(registry, app)


async def test_an_app_has_ten_webhooks_at_most(registry: RunningRegistry) -> None:
    app = await registry.app()
    for _ in range(MAX_WEBHOOKS):
        await change(registry, app, url=URL)
    with pytest.raises(InputError, match="at most 10"):
        await change(registry, app, url=URL)


async def test_the_audit_names_changes_and_neither_secrets_nor_paths(registry: RunningRegistry) -> None:
    app = await registry.app()
    alice = Origin(interface="cli", address="alice@ops")
    made = await change(registry, app, url=URL, origin=alice)
    webhook_id = made.webhook.webhook_id
    rotated = await change(registry, app, webhook_id=webhook_id, rotate_keep_old_s=60, origin=alice)
    await change(registry, app, webhook_id=webhook_id, url="https://hooks.example.org/in/canary-other")
    await change(registry, app, webhook_id=webhook_id, resume=True)
    await change(registry, app, webhook_id=webhook_id, remove=True, origin=alice)
    found = await records(registry.log, APPS.name)
    facts = [decode(record) for record in found]
    changes = [(f.changed.action, list(f.changed.settings)) for f in facts if f.HasField("changed")][1:]
    host = "host https://hooks.example.org"
    assert changes == [
        (
            "webhook made",
            [
                f"webhook {webhook_id}",
                host,
                "form standard",
                "kinds all",
                "pushes all",
                "labels all",
                "webhook_state on",
            ],
        ),
        ("webhook secret rotated", [f"webhook {webhook_id}"]),
        ("webhook set", [f"webhook {webhook_id}", "another url of this host"]),
        ("webhook resumed", [f"webhook {webhook_id}"]),
        ("webhook removed", [f"webhook {webhook_id}", host]),
    ]
    for secret in (made.secret, rotated.secret):
        assert not any(base64.b64decode(secret.removeprefix(SECRET_PREFIX)) in record.value for record in found)
        assert not any(secret.encode() in record.value for record in found)
    assert not any(b"canary" in record.value for record in found if decode(record).HasField("changed"))


async def test_a_team_has_webhooks_of_its_own(registry: RunningRegistry) -> None:
    app = await registry.app()

    async def change_of_team(team_id: str = TEAM, **fields: Any) -> ChangeWebhookResponse:
        request = ChangeWebhookRequest(team_id=team_id, **fields)
        answer: ChangeWebhookResponse = await registry.stub.ChangeWebhook(request)
        return answer

    async def of_team(team_id: str) -> list[Webhook]:
        return list((await registry.stub.ListTeamWebhooks(ListTeamWebhooksRequest(team_id=team_id))).webhooks)

    made = await change_of_team(url=URL)
    other = await change_of_team(OTHER_TEAM, url=URL)
    assert await of_team(TEAM) == [made.webhook]
    assert await of_team(OTHER_TEAM) == [other.webhook]
    assert not stored(registry, app)
    assert secrets_in_force(made.webhook, f"team/{TEAM}", registry.keys, 0) == [made.secret]
    with pytest.raises(CarillonError, match="another master key"):
        secrets_in_force(made.webhook, f"team/{OTHER_TEAM}", registry.keys, 0)
    webhook_id = made.webhook.webhook_id
    assert (await change_of_team(webhook_id=webhook_id, disabled=True)).webhook.disabled
    rotated = await change_of_team(webhook_id=webhook_id, rotate_keep_old_s=60)
    assert rotated.secret != made.secret
    for wrong, told in (
        (ChangeWebhookRequest(team_id=OTHER_TEAM, webhook_id=webhook_id, remove=True), f"team {OTHER_TEAM} has no"),
        (ChangeWebhookRequest(appkey=app.appkey, webhook_id=webhook_id, remove=True), f"app {app.appkey} has no"),
        (ChangeWebhookRequest(appkey=app.appkey, team_id=TEAM, url=URL), "either an app or a team"),
        (ChangeWebhookRequest(url=URL), "either an app or a team"),
        (ChangeWebhookRequest(appkey=f"team/{TEAM}", url=URL), "either an app or a team"),
        (ChangeWebhookRequest(team_id="../apps", url=URL), "16 hexadecimal digits"),
    ):
        with pytest.raises((InputError, NotFoundError), match=told):
            await registry.stub.ChangeWebhook(wrong)
    assert not (await change_of_team(webhook_id=webhook_id, remove=True)).HasField("webhook")
    assert await of_team(TEAM) == []
    assert await of_team(OTHER_TEAM) == [other.webhook]
    facts = [decode(record) for record in await records(registry.log, APPS.name)]
    changes = [(f.changed.team_id, f.changed.action) for f in facts if f.HasField("changed") and f.changed.team_id]
    assert changes == [
        (TEAM, "webhook made"),
        (OTHER_TEAM, "webhook made"),
        (TEAM, "webhook set"),
        (TEAM, "webhook secret rotated"),
        (TEAM, "webhook removed"),
    ]


def test_each_kind_has_a_name() -> None:
    assert set(KIND_NAMES) | {0} == set(EventKind.values())
    assert len(KINDS) == len(KIND_NAMES)
