"""Apps: registration, secrets that are shown once, and pauses."""

import asyncio
import re
from html import escape
from pathlib import Path

import httpx

from console.apps.form import form_of
from console.shell.page import shown_text
from console.shell.qr import qr_image
from protos.delivery.v1.delivery_pb2 import GetAppleStateResponse, MostlyBadTokens, RefusedKey, StoppedChannel
from protos.registry.v1.apps_pb2 import CHANNEL_APNS, CHANNEL_FCM, CHANNEL_WEBPUSH, PLATFORM_ANDROID, PLATFORM_IOS
from protos.registry.v1.registry_pb2 import (
    ChannelChange,
    QuotasChange,
    TakeBroadcastsRequest,
    UpdateAppRequest,
)
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from protos.runtime.v1.processes_pb2 import AppDevices
from services.net.http.device_link import device_link
from services.process.clock import ManualClock
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from testkit.delivery.fcm import ACCOUNT, account_file
from testkit.proofs import ProofKey
from tests.console.announcements import announce, status_of
from tests.console.conftest import OPERATOR, START_MS, Browser, ConsoleInstallation, running_console, text_of


def replaced_secret(page: httpx.Response) -> str:
    """Return the digest of the secret key that the form of the page replaces."""
    found = re.search(r'name="replaces" value="([0-9a-f]+)"', page.text)
    assert found is not None
    return found[1]


async def make_secret(browser: Browser, path: str, keep_old: str) -> httpx.Response:
    """Make another secret key of the app with this page."""
    shown = replaced_secret(await browser.get(f"{path}/secret"))
    return await browser.post(f"{path}/secret", keep_old=keep_old, replaces=shown)


async def test_an_app_is_registered_for_a_team_and_its_secret_is_shown_once(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    await root.get("/apps/new")
    form = {"name": "", "platform": "android", "package": "org.example.news", "team_id": team_id}
    refused = await root.post("/apps/new", **form)
    assert (refused.status_code, 'role="alert"' in refused.text, "org.example.news" in refused.text) == (
        400,
        True,
        True,
    )
    refused = await root.post("/apps/new", **{**form, "package": "no package"})
    assert set(re.findall('href="#f-([a-z_]+)"', refused.text)) == {"name", "package"}
    refused = await root.post("/apps/new", **{**form, "name": "News", "package": "no package"})
    assert re.findall(r'id="f-([a-z_]+)"[^>]* autofocus', refused.text) == ["package"]
    made = await root.post("/apps/new", **{**form, "name": "News & <more>"})
    page = await root.get(made.headers["location"])
    assert "News & <more>" in text_of(page)
    secret = re.search(r"<code[^>]*>([A-Za-z0-9]{64})</code>", page.text)
    assert secret is not None
    assert secret[1] not in (await root.get(made.headers["location"])).text
    viewer = await console.logged_in("viewer")
    assert "News & <more>" in text_of(await viewer.get("/apps"))
    assert "secret" not in (await viewer.get(made.headers["location"])).text.casefold().replace("former secret key", "")
    rotated = await make_secret(root, made.headers["location"], "24h")
    page = await root.get(rotated.headers["location"])
    assert "valid until 2026-09-22 22:13:20" in text_of(page)


async def test_an_app_is_paused_with_a_reason_and_sends_again(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", approver="approver"))
    browser = await console.logged_in("approver")
    path = f"/apps/{appkey}"
    await browser.get(path)
    assert (await browser.post(f"{path}/pause", change="pause", reason="x" * 300)).status_code == 400
    assert (await browser.post(f"{path}/pause", change="pause", reason="storm <1>")).headers["location"] == path
    paused = text_of(await browser.get(path))
    assert "Nothing of this app is sent at present: it is paused. storm <1>" in paused
    assert "Resume sending" in paused
    await browser.post(f"{path}/pause", change="resume")
    assert "The app is resumed: it sends again." in text_of(await browser.get(path))
    assert "Pause sending" in text_of(await browser.get(path))


async def test_an_ios_app_shows_what_apples_answers_say_of_its_settings(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", head="administrator")
    appkey = await console.app(team_id=team_id, platform=PLATFORM_IOS)
    head = await console.logged_in("head")
    assert 'class="alert' not in (await head.get(f"/apps/{appkey}")).text
    console.delivery.apple[appkey] = GetAppleStateResponse(simulators=[CHANNEL_APNS])
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert "A simulator answers in the place of Apple's push service: what it accepts does not leave" in page
    bad = MostlyBadTokens(
        since_ms=START_MS, last_ms=START_MS + 60_000, refused=48, accepted=1002, reason="BadDeviceToken"
    )
    key = RefusedKey(since_ms=START_MS, reason="InvalidProviderToken <1>")
    console.delivery.apple[appkey] = GetAppleStateResponse(bad_tokens=bad, refused_key=key)
    page = text_of(await head.get(f"/apps/{appkey}"))
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert "Since 2026-09-21 22:13:20 , Apple has refused the tokens of 48 of 1,050 pushes (BadDeviceToken)" in page
    assert "the last one at 2026-09-21 22:14:20 . The environment or the bundle id" in page
    assert "Apple has not accepted the app's key (InvalidProviderToken <1>), so its pushes wait" in page
    with console.servers["delivery"].away():
        page = text_of(await head.get(f"/apps/{appkey}"))
        assert "Whether Apple accepts the app's pushes is not known at present" in page


async def test_an_app_with_credentials_of_a_channel_shows_that_a_simulator_answers(
    console: ConsoleInstallation,
) -> None:
    """An app without them does not: none of its pushes leave by Web Push or FCM."""
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    channels = [CHANNEL_APNS, CHANNEL_WEBPUSH, CHANNEL_FCM]
    console.delivery.apple[appkey] = GetAppleStateResponse(simulators=channels)
    assert 'class="alert' not in (await head.get(f"/apps/{appkey}")).text
    key = ChannelChange(channel=CHANNEL_WEBPUSH, fields={"key": "new", "contact": "mailto:push@example.org"})
    registry = RegistryServiceStub(console.peers.all("registry")[0])
    account = ChannelChange(channel=CHANNEL_FCM, fields={"service_account": account_file(ACCOUNT).decode()})
    await registry.UpdateApp(UpdateAppRequest(appkey=appkey, channels=[key, account], origin=OPERATOR))
    await console.context.apps.refresh()
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert page.count("A simulator answers in the place of") == 2
    for service in ("Web Push", "Google's push service (FCM)"):
        assert f"A simulator answers in the place of {service}: what it accepts does not leave this" in page
    assert f"Service account for FCM {ACCOUNT.client_email} Firebase project {ACCOUNT.project_id}" in page
    stopped = StoppedChannel(channel=CHANNEL_FCM, since_ms=START_MS, reason="PERMISSION_DENIED")
    console.delivery.apple[appkey] = GetAppleStateResponse(stopped=[stopped])
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert "Since 2026-09-21 22:13:20 , Google's push service (FCM) has not accepted the app's credentials" in page
    assert "(PERMISSION_DENIED). Messages wait for the devices' own connections" in page


async def test_settings_are_changed_by_the_teams_administrator_and_quotas_by_the_installations(
    console: ConsoleInstallation,
) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    await console.user("root", administrator=True)
    head, root = await console.logged_in("head"), await console.logged_in("root")
    path = f"/apps/{appkey}/settings"
    form = {"name": "News & more", "period": "2", "period_unit": "h", "acks": "on", "channel_route": "vendor"}
    assert "Way to the devices own connection, or a channel" in text_of(await head.get(f"/apps/{appkey}"))
    shown = await head.get(path)
    assert 'name="devices"' not in shown.text
    for wrong in ({"period": "x"}, {"period": "8", "period_unit": "d"}, {"allow_from": "10.0.0.1 nowhere"}):
        refused = await head.post(path, **{**form, **wrong})
        assert (refused.status_code, "News &amp; more" in refused.text) == (400, True)
        assert 'role="alert"' in refused.text
    several = {"name": " ", "period": "x", "allow_from": "10.0.0.1 nowhere", "identity_keys": "no key"}
    refused = await head.post(path, **{**form, **several, "identity": "accept"})
    assert "4 fields must be corrected:" in text_of(refused), re.findall("alert bad.*", refused.text)
    assert set(re.findall('href="#f-([a-z_]+)"', refused.text)) == several.keys()
    unchanged = text_of(await head.get(f"/apps/{appkey}"))
    assert "Way to the devices own connection, or a channel" in unchanged, "a check changes nothing"
    changed = await head.post(path, **form, allow_from="192.0.2.7\n198.51.100.0/24", devices="5")
    page = text_of(await head.get(changed.headers["location"]))
    for words in (
        *("The settings are saved.", "News & more", "2 hours, unless", "Acknowledgements on"),
        *("192.0.2.7/32 198.51.100.0/24", "Way to the devices a channel first"),
    ):
        assert words in page, page
    assert "at most" not in page
    assert 'value="vendor" selected' in (await head.get(path)).text
    assert 'name="devices"' in (await root.get(path)).text
    await root.post(path, **form, devices="1,000")
    assert "Registered devices at most 1,000" in text_of(await root.get(f"/apps/{appkey}"))
    for given, words in (("0", "New devices a minute no limit"), ("70", "New devices a minute at most 70"), ("", "")):
        await root.post(path, **form, registrations_per_minute=given)
        text = text_of(await root.get(f"/apps/{appkey}"))
        assert words in text if words else "New devices a minute" not in text
    assert "Allowed addresses all" in text_of(await root.get(f"/apps/{appkey}"))


async def test_keys_for_web_push_and_fcm_are_made_and_set_in_the_form(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    path, file = f"/apps/{appkey}/settings", account_file(ACCOUNT).decode()

    async def saved(**fields: str) -> str:
        """Send the form as it is shown, with these changes; return the text of the app's page, or of the refusal."""
        await console.context.apps.refresh()
        app = console.context.apps.get(appkey)
        assert app is not None
        shown = form_of(app)
        answer = await head.post(path, shown=shown_text(shown), **{**shown, **fields})
        assert "PRIVATE KEY" not in answer.text
        return text_of(answer if answer.status_code == 400 else await head.get(answer.headers["location"]))

    page = await saved(webpush_contact="mailto:push@example.org")
    assert "Web Push key" not in page, "a contact alone makes no key"
    refused = await saved(web_origins="example.org")
    assert "Web pages that are devices: 'example.org' is no origin such as https://example.org" in refused
    contact = "Contact: Enter mailto:NAME@DOMAIN or https://DOMAIN/…, without spaces and brackets."
    assert contact in await saved(webpush_key="new", webpush_contact="push@localhost")
    origins = "https://example.org\nhttps://www.example.org"
    page = await saved(webpush_key="new", webpush_contact="mailto:push@example.org", web_origins=origins)
    for words in ("Web Push contact mailto:push@example.org", "https://example.org https://www.example.org"):
        assert words in page, page
    (key,) = re.findall("Web Push key (\\S{87}) ", page)
    assert key in await saved(webpush_hosts="push.example.org")
    assert "Further push services: '10.0.0.1' is no HOST" in await saved(webpush_hosts="10.0.0.1")
    assert "Further push services push.example.org" in await saved(name="News")
    page = await saved(webpush_key="new")
    assert ("Web Push contact mailto:push@example.org" in page, key in page) == (True, False), "the contact stays"
    assert "Web Push" not in await saved(webpush_key="remove", web_origins="")

    for wrong, told in (
        ("{", "Content of the service account's JSON file: This is no JSON."),
        (file.replace("service_account", "user"), "This is no file of a service account"),
        (file.replace("PRIVATE", "SECRET"), "The file has no RSA key of 2,048 bits or more."),
    ):
        assert told in await saved(fcm_service_account=wrong)
    account = f"Service account for FCM {ACCOUNT.client_email} Firebase project {ACCOUNT.project_id}"
    assert account in await saved(fcm_service_account=file)
    assert account in await saved(name="Weather")
    assert "It is stored; leave this empty to keep it." in text_of(await head.get(path))
    assert account not in await saved(fcm_remove="remove")


async def test_the_page_says_what_aliases_without_proofs_mean_and_the_form_demands_them(
    console: ConsoleInstallation,
) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    path, key, other = f"/apps/{appkey}/settings", ProofKey(), ProofKey(ed25519=True)
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert "Proof of aliases off Whoever has the app can set any alias, and gets its pushes." in page
    form = {"name": "News", "period": "1", "period_unit": "d", "identity": "require"}
    for keys, told in (
        (key.private_pem, "This is a private key, which belongs on your server alone. Give the public one."),
        ("hello", "Public keys of your server: Give a public key in PEM form."),
        ("", "Proofs are verified by a public key of your server: give one below."),
    ):
        refused = await head.post(path, **form, identity_keys=keys)
        assert (refused.status_code, told in text_of(refused)) == (400, True), text_of(refused)
        assert "PRIVATE KEY" not in refused.text
    wrong_tag = await head.post(path, **form, identity_keys=key.public_pem, identity_tags="a*b*")
    assert "a*b* is no string tag, no beginning such as user:*" in text_of(wrong_tag)
    pems = f"{key.public_pem}{other.public_pem}".replace("\n", "\r\n")
    assert (await head.post(path, **form, identity_keys=pems, identity_tags="user:*\n7")).status_code == 303
    page = text_of(await head.get(f"/apps/{appkey}"))
    for words in ("required: who has not proven an alias does not get it", "ES256 ", "EdDSA ", "user:* 7"):
        assert words in page, page
    shown = await head.get(path)
    assert shown.text.count("BEGIN PUBLIC KEY") >= 2
    assert (await head.post(path, **{**form, "identity": "accept"}, identity_keys=key.public_pem)).status_code == 303
    page = text_of(await head.get(f"/apps/{appkey}"))
    assert "accepted: devices that have proven an alias come before all others" in page
    assert "EdDSA" not in page


async def test_an_app_leads_to_its_pages_and_shows_what_is_used_of_its_quota_today(
    console: ConsoleInstallation,
) -> None:
    team_id = await console.team("News", viewer="viewer", sender="sender")
    appkey = await console.app("Weather", team_id)
    registry = RegistryServiceStub(console.peers.all("registry")[0])
    quotas = QuotasChange(broadcasts_per_day=9)
    await registry.UpdateApp(UpdateAppRequest(appkey=appkey, quotas=quotas, origin=OPERATOR))
    for _ in range(2):
        await registry.TakeBroadcasts(TakeBroadcastsRequest(appkeys=[appkey]))
    announce(console, gateway=status_of("gateway", devices=[AppDevices(appkey=appkey, count=41)]))
    sender, viewer = await console.logged_in("sender"), await console.logged_in("viewer")
    page = await sender.get(f"/apps/{appkey}")
    assert "Devices online 41" in text_of(page)
    assert "Broadcasts and multicasts per day at most 9; 2 used today" in text_of(page)
    test_devices = f"/apps/{appkey}/test-devices"
    paths = [f"/pushes?appkey={appkey}", f"/tasks?appkey={appkey}", f"/statistics?appkey={appkey}", f"/teams/{team_id}"]
    for path in (*paths, test_devices):
        assert f'href="{path}"' in page.text, path
        assert (await sender.get(path)).status_code == 200
    assert test_devices not in (await viewer.get(f"/apps/{appkey}")).text
    console.clock.move(86_400)
    assert "at most 9; 0 used today" in text_of(await (await console.logged_in("sender")).get(f"/apps/{appkey}"))


async def test_the_key_for_apple_is_stored_and_not_shown(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"), platform=PLATFORM_IOS)
    head = await console.logged_in("head")
    path = f"/apps/{appkey}/settings"
    form = {"name": "News", "period": "1", "period_unit": "d", "topic": "org.example.news", "environment": "sandbox"}
    await head.get(path)
    assert (await head.post(path, **form, key_id=KEY_ID)).status_code == 400
    wrong = await head.post(path, **form, key_id="ABC", apple_team=TEAM_ID, pem=pem())
    assert (wrong.status_code, "PRIVATE KEY" in wrong.text) == (400, False)
    await head.post(path, **form, key_id=KEY_ID, apple_team=TEAM_ID, pem=pem())
    assert f"Key for Apple {KEY_ID} for org.example.news" in text_of(await head.get(f"/apps/{appkey}"))
    shown = (await head.get(path)).text
    assert ("PRIVATE KEY" in shown, 'value="sandbox" selected' in shown) == (False, True)
    for given, told in (("on", "on"), ("off", "off")):
        await head.post(path, **form, apns_reports=given)
        assert f"Reports of iPhones {told}" in text_of(await head.get(f"/apps/{appkey}"))
        assert f'value="{given}" selected' in (await head.get(path)).text
    await head.post(path, **form, key_id=KEY_ID, apple_team=TEAM_ID, apns="remove")
    assert "Nothing reaches Apple without it." in text_of(await head.get(f"/apps/{appkey}"))


async def test_the_former_secret_key_is_ended_before_its_time(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    await make_secret(head, f"/apps/{appkey}", "7d")
    assert "Former secret key valid until" in text_of(await head.get(f"/apps/{appkey}"))
    await head.post(f"/apps/{appkey}/secret/end")
    assert "Former secret key none" in text_of(await head.get(f"/apps/{appkey}"))


async def test_a_secret_key_is_made_once_however_often_its_form_is_sent(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    path = f"/apps/{appkey}/secret"
    first = console.context.apps.get(appkey)
    assert first is not None
    shown = replaced_secret(await head.get(path))
    posts = (head.post(path, keep_old="24h", replaces=shown) for _ in range(2))
    answers = sorted(await asyncio.gather(*posts), key=lambda answer: answer.status_code)
    assert [answer.status_code for answer in answers] == [303, 400]
    assert "Another secret key was made meanwhile." in text_of(answers[1])
    assert "The former key is valid until 2026-09-22 22:13:20" in text_of(answers[1])
    present = console.context.apps.get(appkey)
    assert present is not None
    assert present.old_sealed_secret == first.sealed_secret


async def test_a_form_that_was_not_answered_is_not_said_to_be_without_effect(console: ConsoleInstallation) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"))
    head = await console.logged_in("head")
    with console.servers["registry"].away():
        posted = await head.post(f"/apps/{appkey}/pause", change="pause", reason="storm")
    assert (posted.status_code, "It may have been done all the same" in text_of(posted)) == (503, True)
    assert "Nothing is lost" not in text_of(posted)


async def test_an_app_that_cannot_be_given_to_its_team_is_registered_once_with_its_secret(
    console: ConsoleInstallation,
) -> None:
    team_id = await console.team("News")
    await console.user("root", administrator=True)
    root = await console.logged_in("root")
    await root.get("/apps/new")
    with console.servers["accounts"].away():
        form = {"name": "Weather", "platform": "android", "package": "org.example.news", "team_id": team_id}
        made = await root.post("/apps/new", **form)
    assert made.status_code == 303
    page = await root.get(made.headers["location"])
    assert "The app is registered, but it may not belong to the team yet: look at the page of the team." in text_of(
        page
    )
    assert re.search(r"<code[^>]*>[A-Za-z0-9]{64}</code>", page.text)
    assert len(console.context.apps.all()) == 1


async def test_the_page_of_an_app_shows_the_link_of_a_phone_as_text_and_code(tmp_path: Path) -> None:
    gateway_url, v2_url = "wss://gateway.example.org/device/v1", "https://push.example.org"
    clock = ManualClock(START_MS)
    async with running_console(tmp_path, clock, console_gateway_url=gateway_url, console_v2_url=v2_url) as console:
        team_id = await console.team("News", viewer="viewer")
        android = await console.app(team_id=team_id)
        iphone = await console.app(team_id=team_id, platform=PLATFORM_IOS)
        viewer = await console.logged_in("viewer")
        for appkey, url in ((android, gateway_url), (iphone, f"{v2_url}/device/v1")):
            page = await viewer.get(f"/apps/{appkey}")
            link = device_link(url, appkey)
            assert link in text_of(page)
            assert f'href="{escape(link)}"' in page.text
            assert f'<img class="qr" src="{qr_image(link)}" alt="QR code of the link below"' in page.text


async def test_no_link_is_shown_that_would_lead_a_phone_to_itself(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer")
    viewer = await console.logged_in("viewer")
    for platform, setting in ((PLATFORM_ANDROID, "GATEWAY_URL"), (PLATFORM_IOS, "V2_URL")):
        page = await viewer.get(f"/apps/{await console.app(team_id=team_id, platform=platform)}")
        assert "A phone cannot reach the service at 127.0.0.1" in text_of(page)
        assert f"CARILLON_CONSOLE_{setting}" in text_of(page)
        assert "carillon://" not in page.text
        assert 'class="qr"' not in page.text
