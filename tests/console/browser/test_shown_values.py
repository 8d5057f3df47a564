"""A form that lay open saves what its reader changed, and nothing that others have changed meanwhile."""

import re
from html import unescape

import httpx

from protos.accounts.v1.accounts_pb2 import ApprovalRules, Team
from protos.accounts.v1.service_pb2 import ListChangesRequest, ListTeamsRequest
from protos.registry.v1.apps_pb2 import APNS_ENVIRONMENT_SANDBOX, PLATFORM_IOS, App, Quotas
from protos.registry.v1.registry_pb2 import ApnsKeyChange, UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.apns.keys import KEY_ID, TEAM_ID, pem
from tests.console.conftest import OPERATOR, ConsoleInstallation, text_of


def shown_of(page: httpx.Response) -> str:
    """Return the values that the form of a page was shown with, as it sends them."""
    found = re.search(r'name="shown" value="([^"]*)"', page.text)
    assert found is not None
    return unescape(found[1])


def app_of(console: ConsoleInstallation, appkey: str) -> App:
    app = console.context.apps.get(appkey)
    assert app is not None
    return app


async def team_of(console: ConsoleInstallation, team_id: str) -> Team:
    found = await console.accounts.ListTeams(ListTeamsRequest())
    (team,) = [summary.team for summary in found.teams if summary.team.team_id == team_id]
    assert isinstance(team, Team)
    return team


async def test_a_new_name_of_a_team_keeps_the_rules_that_others_have_set(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", ann="administrator", bob="administrator")
    ann, bob = await console.logged_in("ann"), await console.logged_in("bob")
    path = f"/teams/{team_id}"
    shown = shown_of(await ann.get(path))
    await bob.get(path)
    await bob.post(f"{path}/settings", name="News", broadcasts="on", above_devices="", shown=shown)
    refused = await ann.post(f"{path}/settings", name="News & more", above_devices="many", shown=shown)
    assert (refused.status_code, shown_of(refused)) == (400, shown)
    await ann.post(f"{path}/settings", name="News & more", above_devices="500", shown=shown)
    team = await team_of(console, team_id)
    assert (team.name, team.rules) == ("News & more", ApprovalRules(broadcasts=True, above_devices=500))
    await bob.post(f"{path}/settings", name="News", above_devices="", shown=shown_of(await bob.get(path)))
    assert (await team_of(console, team_id)).rules == team.rules, "looser rules wait for another administrator"
    (change,) = (await console.accounts.ListChanges(ListChangesRequest(team_ids=[team_id]))).changes
    await ann.get(path)
    await ann.post(f"{path}/changes", change_id=change.change_id, decision="confirm")
    assert (await team_of(console, team_id)).rules == ApprovalRules()


async def test_a_new_name_of_an_app_keeps_the_networks_quotas_and_key_that_others_have_set(
    console: ConsoleInstallation,
) -> None:
    appkey = await console.app(team_id=await console.team("News", head="administrator"), platform=PLATFORM_IOS)
    registry = RegistryServiceStub(console.peers.all("registry")[0])
    key = ApnsKeyChange(pem=pem(), key_id=KEY_ID, team_id=TEAM_ID)
    await registry.UpdateApp(UpdateAppRequest(appkey=appkey, apns=key, origin=OPERATOR))
    await console.user("root", administrator=True)
    head, root = await console.logged_in("head"), await console.logged_in("root")
    path = f"/apps/{appkey}/settings"
    form = {"name": "News", "period": "1", "period_unit": "d", "topic": "org.example.news", "environment": "production"}
    form |= {"key_id": KEY_ID, "apple_team": TEAM_ID}
    shown, shown_to_root = shown_of(await head.get(path)), shown_of(await root.get(path))
    limits = {"allow_from": "192.0.2.0/24", "devices": "7", "environment": "sandbox"}
    assert (await root.post(path, **{**form, **limits}, shown=shown_to_root)).status_code == 303
    refused = await head.post(path, **{**form, "name": "News & more", "period": "x"}, shown=shown)
    assert (refused.status_code, shown_of(refused)) == (400, shown)
    assert (await head.post(path, **{**form, "name": "News & more"}, shown=shown)).status_code == 303
    assert "News & more" in text_of(await head.get(f"/apps/{appkey}"))
    assert (await root.post(path, **{**form, "targets_per_s": "9"}, shown=shown_to_root)).status_code == 303
    app = app_of(console, appkey)
    assert (app.name, list(app.allow_from)) == ("News & more", ["192.0.2.0/24"])
    assert app.quotas == Quotas(devices=7, targets_per_s=9)
    assert app.apns.environment == APNS_ENVIRONMENT_SANDBOX
    cleared = {**form, "name": "News", "allow_from": "", "environment": "sandbox"}
    assert (await head.post(path, **cleared, shown=shown_of(await head.get(path)))).status_code == 303
    app = app_of(console, appkey)
    assert (app.name, list(app.allow_from), app.quotas.devices) == ("News", [], 7)
