"""Users, teams and API tokens: what administrators change, as facts in the log with their actor."""

import re
from collections.abc import Sequence

import pytest

from protos.accounts.v1.accounts_pb2 import AccountFact, ApprovalRules
from protos.accounts.v1.service_pb2 import ListChangesRequest, ListUsersRequest, UpdateTeamRequest
from services.domain.topics import ACCOUNTS, decode
from services.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.console.conftest import OPERATOR, PASSWORD, Browser, ConsoleInstallation, text_of

SHOWN = re.compile(r'data-copy="([^"]+)"')


async def facts(console: ConsoleInstallation) -> Sequence[AccountFact]:
    """Return every fact of the topic `accounts`."""
    return [decode(record) for record in await records_of(console.log, Partition(ACCOUNTS.name, 0))]


def shown_once(page: str) -> str:
    found = SHOWN.search(page)
    assert found is not None, page
    return found[1]


async def root_of(console: ConsoleInstallation) -> Browser:
    await console.user("root", administrator=True)
    return await console.logged_in("root")


async def test_the_link_of_a_user_who_cannot_be_added_to_the_team_is_shown(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    team_id = await console.team("News")
    root = await root_of(console)
    await root.get("/users/new")
    monkeypatch.delitem(console.servers["accounts"]._handlers, "/protos.accounts.v1.AccountsService/SetMember")
    made = await root.post("/users/new", login="alice", team_id=team_id, role="sender")
    page = await root.get(made.headers["location"])
    assert "The user is created, but may not belong to the team yet" in text_of(page)
    assert "/link?token=link_" in shown_once(page.text)


async def test_while_accounts_is_away_a_link_is_answered_with_503(console: ConsoleInstallation) -> None:
    browser = console.browser()
    await browser.get("/log-in")
    with console.servers["accounts"].away():
        answer = await browser.post("/link", token="link_x", password=PASSWORD, repeated=PASSWORD)
    assert answer.status_code == 503


async def test_an_invited_user_logs_in_with_the_link_and_sees_the_team(console: ConsoleInstallation) -> None:
    team_id = await console.team("News & <more>")
    await console.app(team_id=team_id)
    root = await root_of(console)
    await root.get("/users/new")
    form = {"login": "al ice", "display_name": "Alice <A>", "team_id": team_id, "role": "sender"}
    refused = await root.post("/users/new", **form)
    assert (refused.status_code, "Alice &lt;A&gt;" in refused.text) == (400, True)
    made = await root.post("/users/new", **{**form, "login": "alice"})
    page = await root.get(made.headers["location"])
    assert "News & <more> (sender)" in text_of(page)
    link = shown_once(page.text)
    assert link.startswith("http://127.0.0.1:8080/link?token=link_")
    assert link not in (await root.get(made.headers["location"])).text
    assert "Alice <A> off – invited" in text_of(await root.get("/users"))

    alice = console.browser()
    token = link.partition("token=")[2]
    await alice.get(f"/link?token={token}")
    assert (await alice.post("/link", token=token, password=PASSWORD, repeated=PASSWORD)).status_code == 303
    assert "News & <more> 1 1 none sender" in text_of(await alice.get("/teams"))
    assert "Set the role" not in text_of(await alice.get(f"/teams/{team_id}"))
    twice = await root.post("/users/new", **{**form, "login": "ALICE"})
    assert "There is a user ALICE already" in text_of(twice)
    lost = await root.post("/users/new", **{**form, "login": "bob", "team_id": "gone"})
    page = await root.get(lost.headers["location"])
    assert "The user is created." in text_of(page)
    assert shown_once(page.text).startswith("http://127.0.0.1:8080/link?token=link_")


async def test_an_administrator_changes_users_and_the_log_names_the_actor(console: ConsoleInstallation) -> None:
    root = await root_of(console)
    user_id = await console.user("alice")
    alice = await console.logged_in("alice")
    path = f"/users/{user_id}"
    await root.get(path)
    assert (await root.post(path, change="explode")).status_code == 400
    assert (await root.post(path, change="end-sessions")).headers["location"] == path
    assert (await alice.get("/account")).headers["location"].startswith("/log-in")
    await alice.log_in("alice")
    await root.post(path, change="disable")
    assert (await alice.get("/account")).status_code == 303
    assert "disabled" in text_of(await root.get(path))
    refused = await root.post(path, change="new-link")
    assert "alice is disabled. Enable the user first." in text_of(refused)
    await root.post(path, change="enable")
    await root.post(path, change="make-administrator")
    await root.post(path, change="no-administrator")
    await root.post(path, change="new-link")
    assert "/link?token=link_" in shown_once((await root.get(path)).text)
    own = f"/users/{root_id(await facts(console))}"
    assert "No administrator would be left" in text_of(await root.post(own, change="disable"))
    assert (await root.get("/users/no-user")).status_code == 404
    by_root = [fact for fact in await facts(console) if fact.meta.origin.actor == own.replace("/users", "user")]
    settings = [setting for fact in by_root for setting in fact.user.settings]
    assert settings == [
        "sessions ended",
        "disabled on",
        "sessions ended",
        "disabled off",
        "administrator on",
        "administrator off",
    ]
    assert {fact.meta.origin.interface for fact in by_root} == {"console"}


def root_id(known: Sequence[AccountFact]) -> str:
    return next(fact.user.user.user_id for fact in known if fact.user.user.login == "root")


async def test_a_team_gets_members_apps_and_approval_rules(console: ConsoleInstallation) -> None:
    root = await root_of(console)
    await console.user("alice")
    appkey = await console.app("Weather")
    await root.get("/teams/new")
    assert (await root.post("/teams/new", name=" ")).status_code == 400
    path = (await root.post("/teams/new", name="Forecast")).headers["location"]
    await root.get(path)
    unknown = await root.post(f"{path}/members", login="mallory", role="viewer")
    assert (unknown.status_code, "log-in name mallory" in text_of(unknown)) == (400, True)
    await root.post(f"{path}/members", login="Alice", role="administrator")
    await root.post(f"{path}/apps", appkey=appkey)
    await root.post(f"{path}/settings", name="Forecasts", broadcasts="on", above_devices="500")
    refused = await root.post(f"{path}/settings", name="Forecasts", above_devices="many")
    assert (refused.status_code, 'value="many"' in refused.text) == (400, True)

    alice = await console.logged_in("alice")
    words = text_of(await alice.get("/teams"))
    assert "Forecasts 1 1 broadcasts (to 50 % of the devices or more), more than 500 devices administrator" in words
    assert "Weather" in text_of(await alice.get("/apps"))
    page = await alice.get(path)
    assert "Add to this team" not in page.text
    await alice.post(f"{path}/settings", name="Forecasts", broadcasts="on", above_devices="400")
    assert "more than 400 devices" in text_of(await alice.get("/teams"))
    left = await alice.post(f"{path}/members", login="alice")
    assert left.headers["location"] == "/teams"
    assert "No team yet" in text_of(await alice.get("/teams"))
    await root.post(f"{path}/apps", appkey=appkey, change="take")
    assert "it waits until another administrator" in text_of(await root.get(path))
    none = UpdateTeamRequest(team_id=path.rpartition("/")[2], rules=ApprovalRules(), origin=OPERATOR)
    await console.accounts.UpdateTeam(none)
    await root.post(f"{path}/apps", appkey=appkey, change="take")
    assert "No app belongs to the team." in text_of(await root.get(path))
    assert "no such app any more" in text_of(await root.post(f"{path}/apps", appkey=appkey, change="take"))
    gone = await root.post("/teams/no-team/members", login="alice", role="viewer")
    assert gone.status_code == 404


async def test_an_api_token_is_shown_once_kept_as_a_hash_and_revoked(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", head="administrator", sender="sender")
    other_id = await console.team("Others", other="administrator")
    head = await console.logged_in("head")
    path = f"/teams/{team_id}"
    await head.get(path)
    made = await head.post(f"{path}/tokens", token_name="nightly", token_role="sender", expires="30d")
    page = await head.get(made.headers["location"])
    text = shown_once(page.text)
    assert text.startswith("carillon_")
    assert "nightly sender head never 2026-10-21 22:13:20" in text_of(page)
    again = await head.post(f"{path}/tokens", token_name="nightly", token_role="root", expires="30d")
    assert (again.status_code, text in again.text, 'value="nightly"' in again.text) == (400, False, True)
    assert text.encode() not in b"".join(fact.SerializeToString() for fact in await facts(console))
    assert "nightly" not in text_of(await (await console.logged_in("sender")).get(path))

    token_id = text.split("_")[1]
    other = await console.logged_in("other")
    await other.get(f"/teams/{other_id}")
    foreign = await other.post(f"/teams/{other_id}/tokens/{token_id}/revoke")
    assert (foreign.status_code, "no such API token" in text_of(foreign)) == (400, True)
    assert (await head.post(f"{path}/tokens/{token_id}/revoke")).headers["location"] == path
    assert "The team has no API tokens." in text_of(await head.get(path))
    revoked = [fact for fact in await facts(console) if fact.WhichOneof("fact") == "token_revoked"]
    assert [fact.meta.origin.actor for fact in revoked] == [(await facts(console))[-1].meta.origin.actor]


async def test_looser_rules_are_confirmed_by_another_administrator_on_the_page_of_the_team(
    console: ConsoleInstallation,
) -> None:
    team_id = await console.team("News", head="administrator", other="administrator", sender="sender")
    rules = ApprovalRules(broadcasts=True, above_devices=10)
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))
    path = f"/teams/{team_id}"
    head, other, sender = [await console.logged_in(login) for login in ("head", "other", "sender")]
    await head.get(path)
    assert (await head.post(f"{path}/settings", name="News", above_devices="10", share_percent="50")).status_code == 303
    page = await head.get(path)
    words = text_of(page)
    assert "it waits until another administrator of the team or of the installation confirms it" in words
    assert ("Waiting for another administrator" in words, "Take back" in words) == (True, True)
    assert ">Confirm<" not in page.text
    change = re.findall(r'name="change_id" value="([0-9a-f]+)"', page.text)[0]
    assert (await head.post(f"{path}/changes", change_id=change, decision="confirm")).status_code == 403
    assert (await sender.post(f"{path}/changes", change_id=change, decision="confirm")).status_code == 403
    assert "Waiting for another administrator" not in text_of(await sender.get(path))
    shown = await other.get(path)
    assert "What needs a second person: more than 10 devices head" in text_of(shown)
    await other.post(f"{path}/changes", change_id=change, decision="confirm")
    assert "The change is confirmed and made." in text_of(await other.get(path))
    assert "News 3 0 more than 10 devices" in text_of(await other.get("/teams"))
    await other.post(f"{path}/changes", change_id=change, decision="confirm")
    assert "does not wait any more" in text_of(await other.get(path))


async def test_a_second_administrator_and_a_new_link_of_an_approver_are_confirmed_on_the_page_of_users(
    console: ConsoleInstallation,
) -> None:
    root = await root_of(console)
    await console.user("root2", administrator=True)
    other = await console.logged_in("root2")
    team_id = await console.team("News", approver="approver", sender="sender")
    rules = ApprovalRules(broadcasts=True)
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))
    people = {user.login: user.user_id for user in (await console.accounts.ListUsers(ListUsersRequest())).users}
    await root.get("/users")
    await root.post(f"/users/{people['sender']}", change="make-administrator")
    await root.post(f"/users/{people['approver']}", change="new-link")
    page = await root.get(f"/users/{people['approver']}")
    assert ("it waits until another administrator" in text_of(page), "link_" in page.text) == (True, False)
    listed = await other.get("/users")
    assert "sender becomes an administrator of the installation" in text_of(listed)
    shown = []
    for change in re.findall(r'name="change_id" value="([0-9a-f]+)"', listed.text):
        answer = await other.post("/users/changes", change_id=change, decision="confirm")
        shown.append((answer.headers["location"], (await other.get(answer.headers["location"])).text))
    assert [path for path, text in shown if "link_" in text] == [f"/users/{people['approver']}"]
    assert list((await console.accounts.ListChanges(ListChangesRequest())).changes) == []
    users = (await console.accounts.ListUsers(ListUsersRequest())).users
    assert [user.login for user in users if user.administrator] == ["admin", "root", "root2", "sender"]
