"""An iOS app's APNs key: checks, sealing, and that it never appears unsealed."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import (
    APNS_ENVIRONMENT_BOTH,
    APNS_ENVIRONMENT_PRODUCTION,
    APNS_ENVIRONMENT_SANDBOX,
    PLATFORM_IOS,
    App,
)
from protos.registry.v1.registry_pb2 import ApnsKeyChange, CreateAppRequest, GetAppRequest, UpdateAppRequest
from services.domain.apns_credentials import ApnsCredentials, Environment, open_credentials
from services.domain.master_key import MasterKey
from services.domain.topics import APPS
from services.errors import CarillonError, InputError
from services.log.port import Partition
from testkit.apns.keys import KEY_ID, TEAM_ID, canaries, pem
from tests.services.registry.conftest import RunningRegistry


async def ios_app(registry: RunningRegistry, package: str = "com.example.weather") -> App:
    request = CreateAppRequest(platform=PLATFORM_IOS, name="n", package=package)
    app: App = (await registry.stub.CreateApp(request)).app
    return app


async def change(registry: RunningRegistry, app: App, change: ApnsKeyChange) -> App:
    changed: App = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, apns=change))).app
    return changed


def first(text: str) -> ApnsKeyChange:
    return ApnsKeyChange(pem=text, key_id=KEY_ID, team_id=TEAM_ID)


async def test_a_key_is_stored_sealed_and_opened_with_its_ids_and_topic(registry: RunningRegistry) -> None:
    app, text = await ios_app(registry), pem()
    assert open_credentials(app, registry.keys) is None
    changed = await change(registry, app, first(text))
    assert open_credentials(changed, registry.keys) == ApnsCredentials(KEY_ID, TEAM_ID, "com.example.weather", text)
    assert registry.apps.get(app.appkey) == changed
    record = await registry.log.last(Partition(APPS.name, 0))
    assert record is not None
    assert not [word for word in canaries(text) if word in record.value]


async def test_a_key_opens_only_for_its_app_and_master_key(registry: RunningRegistry) -> None:
    app = await change(registry, await ios_app(registry), first(pem()))
    other = await ios_app(registry)
    other.apns.CopyFrom(app.apns)
    swapped = App()
    swapped.CopyFrom(app)
    swapped.apns.sealed_pem = app.sealed_secret
    for stolen, keys in ((other, registry.keys), (swapped, registry.keys), (app, MasterKey(bytes(31) + b"x"))):
        with pytest.raises(CarillonError, match="another master key"):
            open_credentials(stolen, keys)


@pytest.mark.parametrize(
    ("given", "now"),
    [
        (ApnsKeyChange(key_id="ZZZZZZZZZ1"), {"key_id": "ZZZZZZZZZ1"}),
        (ApnsKeyChange(team_id="ZZZZZZZZZ2"), {"team_id": "ZZZZZZZZZ2"}),
        (ApnsKeyChange(topic="org.example.Other-2"), {"topic": "org.example.Other-2"}),
        (ApnsKeyChange(environment=APNS_ENVIRONMENT_BOTH), {"environment": Environment.BOTH}),
        (ApnsKeyChange(environment=APNS_ENVIRONMENT_SANDBOX), {"environment": Environment.SANDBOX}),
        (ApnsKeyChange(environment=APNS_ENVIRONMENT_PRODUCTION), {"environment": Environment.PRODUCTION}),
    ],
)
async def test_each_field_can_be_changed_alone_later(
    registry: RunningRegistry, given: ApnsKeyChange, now: dict[str, object]
) -> None:
    text = pem()
    start = first(text)
    start.environment = APNS_ENVIRONMENT_SANDBOX
    app = await change(registry, await ios_app(registry), start)
    changed = open_credentials(await change(registry, app, given), registry.keys)
    before = {"key_id": KEY_ID, "team_id": TEAM_ID, "topic": app.package, "environment": Environment.SANDBOX}
    assert changed == ApnsCredentials(key_pem=text, **{**before, **now})  # type: ignore[arg-type]


async def test_a_new_key_replaces_the_old_one_and_a_removal_leaves_none(registry: RunningRegistry) -> None:
    app = await change(registry, await ios_app(registry), first(pem()))
    text = pem()
    found = open_credentials(await change(registry, app, ApnsKeyChange(pem=text)), registry.keys)
    assert found == ApnsCredentials(KEY_ID, TEAM_ID, app.package, text)
    assert text not in repr(found)
    gone = await change(registry, app, ApnsKeyChange(remove=True))
    assert open_credentials(gone, registry.keys) is None
    assert (await registry.stub.GetApp(GetAppRequest(appkey=app.appkey))).app == gone


async def test_text_around_the_pem_block_is_not_stored(registry: RunningRegistry) -> None:
    text = pem()
    given = first(f"Subject: a mail\r\n\r\n{text.replace(chr(10), chr(13) + chr(10))}\r\nBest regards\r\n")
    found = open_credentials(await change(registry, await ios_app(registry), given), registry.keys)
    assert found is not None
    assert found.key_pem == text


GOOD = pem()
BAD_KEYS = [
    ("is no private key in PEM form", ""),
    ("is no private key in PEM form", "hello"),
    ("is no private key in PEM form", GOOD[:80]),
    ("is no private key in PEM form", GOOD.replace("PRIVATE", "PUBLIC")),
    ("is no private key in PEM form", GOOD.replace("M", "*")),
    ("is not on the curve P-256", pem(ec.generate_private_key(ec.SECP384R1()))),
    ("is not on the curve P-256", pem(rsa.generate_private_key(65537, 2048))),
    ("is encrypted", pem(None, serialization.BestAvailableEncryption(b"secret"))),
]


@pytest.mark.parametrize(("reason", "text"), BAD_KEYS, ids=range(len(BAD_KEYS)))
async def test_an_invalid_key_is_refused_without_revealing_it(
    registry: RunningRegistry, reason: str, text: str
) -> None:
    app = await ios_app(registry)
    with capture_logs() as logs, pytest.raises(InputError, match=reason) as refused:
        await change(registry, app, first(text))
    assert registry.apps.get(app.appkey) == app
    told = f"{refused.value!r} {refused.value.__cause__!r} {refused.value.__context__!r} {logs}".encode()
    assert not [word for word in canaries(text) if word in told]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("key id", {"key_id": "ABC123DEF"}),
        ("key id", {"key_id": "ABC123DEFGH"}),
        ("key id", {"key_id": "abc123defg"}),
        ("key id", {"key_id": ""}),
        ("team id", {"team_id": "TEAM45678é"}),
        ("team id", {"team_id": "TEAM456789\n"}),
        ("topic", {"topic": ""}),
        ("topic", {"topic": "com.example.app\r\napns-id: 1"}),
        ("topic", {"topic": "com..app"}),
        ("topic", {"topic": "com." + "a" * 125}),
        ("environment", {"environment": 7}),
        ("environment", {"environment": 0}),
    ],
)
async def test_the_fields_beside_the_key_are_checked(
    registry: RunningRegistry, field: str, given: dict[str, object]
) -> None:
    app = await ios_app(registry)
    wrong = first(GOOD)
    for name, value in given.items():
        setattr(wrong, name, value)
    with pytest.raises(InputError, match=field):
        await change(registry, app, wrong)
    assert registry.apps.get(app.appkey) == app


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (ApnsKeyChange(pem=GOOD), "its key id, the team id"),
        (ApnsKeyChange(key_id=KEY_ID, team_id=TEAM_ID), "the key"),
        (ApnsKeyChange(topic="com.example.app"), "the key, its key id, the team id"),
    ],
    ids=range(3),
)
async def test_the_first_change_needs_the_key_and_both_ids(
    registry: RunningRegistry, given: ApnsKeyChange, missing: str
) -> None:
    with pytest.raises(InputError, match=f"at first give {missing} too"):
        await change(registry, await ios_app(registry), given)


async def test_a_package_that_is_no_bundle_id_requires_a_topic(registry: RunningRegistry) -> None:
    app = await ios_app(registry, "weather")
    with pytest.raises(InputError, match="topic"):
        await change(registry, app, first(GOOD))
    given = first(GOOD)
    given.topic = "com.example.weather"
    assert (await change(registry, app, given)).apns.topic == "com.example.weather"


async def test_android_apps_are_refused_and_a_removal_excludes_other_fields(registry: RunningRegistry) -> None:
    with pytest.raises(InputError, match="no iOS app"):
        await change(registry, await registry.app(), first(GOOD))
    with pytest.raises(InputError, match="removed whole"):
        await change(registry, await ios_app(registry), ApnsKeyChange(remove=True, key_id=KEY_ID))
