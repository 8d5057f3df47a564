"""An app's Web Push key: made, shown, replaced, removed, never unsealed anywhere; contact and hosts."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import CHANNEL_SOCKETS, CHANNEL_WEBPUSH, PLATFORM_IOS, App
from protos.registry.v1.registry_pb2 import ChannelChange, UpdateAppRequest
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.domain.channel_credentials.stored import CredentialsCache, settings_of
from services.domain.channel_credentials.webpush import checked_contact, open_web_push, public_key_of
from services.domain.master_key import MasterKey
from services.errors import CarillonError, InputError
from services.process.clock import ManualClock
from testkit.apns.keys import canaries, files_containing
from tests.services.registry.command import Carillon
from tests.services.registry.conftest import RunningRegistry

CONTACT = "mailto:push@example.org"


async def change(registry: RunningRegistry, app: App, **fields: str) -> App:
    return await changed_by(registry, app, ChannelChange(channel=CHANNEL_WEBPUSH, fields=fields))


async def changed_by(registry: RunningRegistry, app: App, change: ChannelChange) -> App:
    changed: App = (await registry.stub.UpdateApp(UpdateAppRequest(appkey=app.appkey, channels=[change]))).app
    return changed


async def test_a_key_is_made_sealed_and_opened_for_its_app_alone(registry: RunningRegistry) -> None:
    app = await registry.app()
    assert open_web_push(app, registry.keys) is None
    changed = await change(registry, app, key="new", contact=CONTACT)
    opened = open_web_push(changed, registry.keys)
    assert opened is not None
    assert (opened.contact, opened.public_key_text) == (CONTACT, public_key_of(changed))
    header = VapidHeaders(opened, ManualClock(1_800_000_000_000)).header("https://push.example.org")
    assert header.endswith(f"k={opened.public_key_text}")
    assert "PRIVATE" not in repr(opened)

    other = await registry.app()
    other.channels.extend(changed.channels)
    swapped = App()
    swapped.CopyFrom(changed)
    swapped.channels[0].sealed_secret = changed.sealed_secret
    for stolen, keys in ((other, registry.keys), (swapped, registry.keys), (changed, MasterKey(bytes(31) + b"x"))):
        with pytest.raises(CarillonError, match="another master key"):
            open_web_push(stolen, keys)
    cache = CredentialsCache(open_web_push, registry.keys)
    assert cache(changed) is cache(changed)
    with capture_logs() as logs:
        assert cache(other) is None
    assert logs[0]["appkey"] == other.appkey


async def test_settings_of_web_push_are_changed_alone(registry: RunningRegistry) -> None:
    app = await registry.app()

    async def shown(**fields: str) -> dict[str, str]:
        return settings_of(await change(registry, app, **fields), CHANNEL_WEBPUSH)

    first = await shown(key="new", contact=CONTACT)
    named = await shown(hosts="Push.Example.org, ntfy:8080")
    assert named == {**first, "hosts": "push.example.org,ntfy:8080"}
    moved = await shown(contact="https://example.org/push")
    assert moved == {**named, "contact": "https://example.org/push"}
    second = await shown(key="new")
    assert second["key"] != first["key"]
    assert second == {**moved, "key": second["key"]}
    assert "hosts" not in await shown(hosts="known")
    gone = await changed_by(registry, app, ChannelChange(channel=CHANNEL_WEBPUSH, remove=True))
    assert not gone.channels


async def test_wrong_changes_change_nothing(registry: RunningRegistry) -> None:
    app, ios = await registry.app(), await registry.app(PLATFORM_IOS)
    for wrong, told in (
        ({"key": "new"}, "webpush_contact is missing"),
        ({"contact": CONTACT}, "webpush_key is missing"),
        ({"key": "mine", "contact": CONTACT}, "webpush_key"),
        ({"key": "new", "contact": CONTACT, "hosts": "10.0.0.1"}, "webpush_hosts"),
        ({"key": "new", "contact": CONTACT, "colour": "red"}, "webpush_colour is not known"),
    ):
        with pytest.raises(InputError, match=told):
            await change(registry, app, **wrong)
    for channel, told in ((CHANNEL_WEBPUSH, "removed whole"), (CHANNEL_SOCKETS, "no credentials for the channel")):
        with pytest.raises(InputError, match=told):
            await changed_by(registry, app, ChannelChange(channel=channel, fields={"contact": CONTACT}, remove=True))
    with pytest.raises(InputError, match="iOS app"):
        await change(registry, ios, key="new", contact=CONTACT)
    assert registry.apps.get(app.appkey) == app


@pytest.mark.parametrize(
    "contact", [CONTACT, "mailto:a.b+c@xn--bcher-kva.example.com", "https://example.org", "https://a.example.org/x?y=1"]
)
def test_contacts_that_push_services_accept(contact: str) -> None:
    assert checked_contact(contact, "webpush_contact") == contact


@pytest.mark.parametrize(
    "contact",
    ["", "push@example.org", "mailto: push@example.org", "mailto:<push@example.org>", "mailto:push@localhost",
     "mailto:push@printer.local", "mailto:push@example", "http://example.org", "https://localhost/x", "https://10.0.0.1",
     "https://127.0.0.1/", "mailto:a@b@example.org", "https://example.org/ x", "https://user@example.org",
     "mailto:" + "a" * 65 + "@example.org", "https://example.org/" + "x" * 200, "mailto:x@-example.org", "tel:1"],
)  # fmt: skip
def test_contacts_that_push_services_refuse(contact: str) -> None:
    with pytest.raises(InputError, match="webpush_contact"):
        checked_contact(contact, "webpush_contact")


@pytest.mark.parametrize(
    "contact", ["mailto:" + "a." * 100_000, "mailto:a@" + "a." * 100_000, "https://" + "a-" * 100_000]
)
def test_a_long_contact_takes_no_time(contact: str) -> None:
    with pytest.raises(InputError):
        checked_contact(contact, "webpush_contact")


async def test_the_command_makes_shows_and_removes_a_key(
    registry: RunningRegistry, carillon: Carillon, tmp_path: Path
) -> None:
    app = await registry.app()
    with capture_logs() as logs:
        outcomes = [
            await carillon("set", app.appkey, "--webpush", "new"),
            await carillon(
                "set", app.appkey, "--webpush", "new", "--webpush-contact", CONTACT,
                "--webpush-hosts", "ntfy:80, a.example",
                "--web-origins", "https://example.org", "--json",
            ),
            await carillon("show", app.appkey),
        ]  # fmt: skip
    assert [outcome.code for outcome in outcomes] == [1, 0, 0]
    assert "contact" in outcomes[0].err
    known = registry.apps.get(app.appkey)
    assert known is not None
    opened = open_web_push(known, registry.keys)
    assert opened is not None
    (shown,) = outcomes[1].lines
    assert shown["channels"]["webpush"] == {
        "key": opened.public_key_text,
        "contact": CONTACT,
        "hosts": "ntfy:80,a.example",
    }
    assert shown["web_origins"] == ["https://example.org"]
    assert opened.public_key_text in outcomes[2].out
    assert "https://example.org" in outcomes[2].out
    told = "".join(f"{outcome.out}{outcome.err}" for outcome in outcomes) + str(logs)
    words = canaries(opened.key_pem)
    assert not [word for word in words if word.decode() in told]
    assert files_containing(tmp_path, words) == []

    gone = await carillon("set", app.appkey, "--webpush", "none", "--web-origins", "none", "--json")
    assert not {"channels", "web_origins"} & set(gone.lines[0])
    wrong = await carillon("set", app.appkey, "--webpush", "none", "--webpush-hosts", "known")
    assert (wrong.code, "stands alone" in wrong.err) == (2, True)
