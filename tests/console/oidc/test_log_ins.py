"""Log-ins with a real provider: the first one, groups and roles, refusals, and attacks."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from console.oidc.log_ins import verified_mail_address
from protos.accounts.v1.accounts_pb2 import LogInMethod, MemberRole
from protos.accounts.v1.service_pb2 import ListTeamsRequest, SetMemberRequest, UpdateUserRequest
from services.errors import ConflictError
from testkit.oidc.running import RunningProvider
from tests.console.conftest import OPERATOR, PASSWORD, ConsoleInstallation, text_of
from tests.console.oidc.conftest import Person, StartConsole, facts, users


async def roles_in(console: ConsoleInstallation, user_id: str) -> dict[str, str]:
    """Return the role of a user in each team, by the team's name."""
    teams = (await console.accounts.ListTeams(ListTeamsRequest())).teams
    return {
        each.team.name: MemberRole.Name(member.role).removeprefix("MEMBER_ROLE_").lower()
        for each in teams
        for member in each.team.members
        if member.user_id == user_id
    }


async def test_the_first_log_in_creates_the_user_with_the_roles_of_the_groups(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    team_id = await console.team("News")
    sub = provider.person("alice", "news-desk", "news-heads", "cyclists", full_name="Alice Liddell")
    person = Person(console)
    page = await person.console.get("/log-in?next=/teams")
    assert "Log in with Example" in text_of(page)
    assert 'href="/log-in/provider?next=/teams"' in page.text
    asked = await person.console.get("/log-in/provider")
    query = parse_qs(urlsplit(asked.headers["location"]).query)
    assert (query["code_challenge_method"], query["response_type"]) == (["S256"], ["code"])
    assert query["redirect_uri"] == ["http://console/log-in/provider/return"]
    before = person.console.csrf
    done = await person.log_in("alice", "/log-in/provider?next=/teams")
    assert (done.status_code, done.headers["location"]) == (303, "/teams")
    assert person.console.csrf != before
    alice = (await users(console))["alice"]
    assert (alice.display_name, alice.administrator, alice.has_password) == ("Alice Liddell", False, False)
    assert (alice.subject.issuer, alice.subject.subject) == (provider.issuer, sub)
    assert await roles_in(console, alice.user_id) == {"News": "approver"}
    assert (await person.console.get(f"/teams/{team_id}")).status_code == 200
    account = text_of(await person.console.get("/account"))
    assert "Logs in with Example" in account
    assert "Second factor" not in account
    (noted,) = [fact for fact in await facts(console, "log-ins") if fact.HasField("logged_in")]
    assert (noted.logged_in.method, noted.meta.origin.actor) == (
        LogInMethod.LOG_IN_METHOD_SUBJECT,
        f"user/{alice.user_id}",
    )
    changed = (await facts(console, "accounts"))[-1]
    assert list(changed.team.settings) == ["alice approver", "by the provider's groups"]
    assert changed.meta.origin.actor == f"user/{alice.user_id}"


async def test_a_user_is_known_by_the_subject_and_by_nothing_else(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    provider.person("bob", "push-admins")
    assert (await Person(console).log_in("bob")).status_code == 303
    provider.person("bobby", "news-desk", sub="sub-bob")  # renamed, and in other groups
    provider.person("bob", "news-desk", sub="sub-of-another-bob")
    assert (await Person(console).log_in("bobby")).status_code == 303
    assert (await Person(console).log_in("bob")).status_code == 303
    known = await users(console)
    assert {login: user.subject.subject for login, user in known.items() if user.HasField("subject")} == {
        "bob": "sub-bob",
        "bob-2": "sub-of-another-bob",
    }
    assert not known["bob"].administrator
    await console.user("carol")
    provider.person("carol", "news-desk")
    assert (await Person(console).log_in("carol")).status_code == 303
    known = await users(console)
    assert known["carol"].has_password
    assert known["carol-2"].subject.subject == "sub-carol"


async def test_roles_that_follow_from_groups_are_not_changed_by_hand(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    team_id = await console.team("News")
    provider.person("dora", "push-admins", "news-desk")
    person = Person(console)
    await person.log_in("dora")
    dora = (await users(console))["dora"]
    assert dora.administrator
    for asked in (
        console.accounts.SetMember(SetMemberRequest(team_id=team_id, user_id=dora.user_id, origin=OPERATOR)),
        console.accounts.UpdateUser(UpdateUserRequest(user_id=dora.user_id, administrator=False, origin=OPERATOR)),
    ):
        with pytest.raises(ConflictError, match="follow from the groups"):
            await asked
    page = await person.console.get(f"/users/{dora.user_id}")
    assert "Roles follow from the groups at the provider" in text_of(page)
    assert "make-administrator" not in page.text
    assert "no-administrator" not in page.text
    assert "new-link" not in page.text
    provider.person("dora", "news-heads")
    await Person(console).log_in("dora")
    assert not (await users(console))["dora"].administrator
    assert await roles_in(console, dora.user_id) == {"News": "approver"}


async def test_nobody_enters_without_a_group_or_disabled_or_refused_by_the_provider(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    provider.person("eve", "cyclists")
    refused = await Person(console).log_in("eve")
    assert (refused.status_code, "none of your groups has a role" in text_of(refused)) == (403, True)
    assert "eve" not in await users(console)
    provider.person("frank", "news-desk")
    await Person(console).log_in("frank")
    frank = (await users(console))["frank"]
    await console.accounts.UpdateUser(UpdateUserRequest(user_id=frank.user_id, disabled=True, origin=OPERATOR))
    assert (await Person(console).log_in("frank")).status_code == 403
    person = Person(console)
    denied = await person.console.get(await person.at_provider("frank", act="deny"))
    assert (denied.status_code, "Example refused the log-in" in text_of(denied)) == (403, True)
    reasons = [fact.failed.reason for fact in await facts(console, "log-ins") if fact.HasField("failed")]
    assert reasons == ["no group with a role", "disabled"]


async def test_the_return_from_the_provider_works_once_and_in_the_same_browser(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    provider.person("grace", "news-desk")
    person, thief = Person(console), Person(console)
    back = await person.at_provider("grace", "/log-in/provider?next=https://evil.example/")
    for path in (back, back.replace("state=", "state=x"), "/log-in/provider/return", f"{back}&state=x"):
        stale = await thief.console.get(path)
        assert (stale.status_code, "was begun in another window" in text_of(stale)) == (400, True)
    done = await person.console.get(back)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    again = await person.console.get(back)
    assert (again.status_code, "another window" in text_of(again)) == (400, True)
    late = Person(console)
    back = await late.at_provider("grace")
    console.clock.move(600)
    assert (await late.console.get(back)).status_code == 400


async def test_a_forged_return_from_the_provider_begins_no_session(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    """Another issuer (mix-up), another code, a code of another log-in (PKCE), a replay with the old cookie."""
    provider.person("heidi", "news-desk")

    async def tried(change: Any) -> tuple[int, str]:
        person = Person(console)
        answer = await person.console.get(change(await person.at_provider("heidi")))
        assert (await person.console.get("/account")).status_code == 303
        return answer.status_code, text_of(answer)

    issuer = f"iss={provider.issuer.replace(':', '%3A').replace('/', '%2F')}"
    other = await tried(lambda back: back.replace(issuer, "iss=https%3A%2F%2Fevil.example"))
    assert (other[0], "is not valid" in other[1]) == (400, True)
    assert (await tried(lambda back: back.replace(f"&{issuer}", "")))[0] == 400
    assert (await tried(lambda back: back.replace("code=", "code=x")))[0] == 403
    assert (await tried(lambda back: back.replace("code=", "kode=")))[0] == 400
    victim, person = Person(console), Person(console)
    stolen = parse_qs(urlsplit(await victim.at_provider("heidi")).query)["code"][0]
    own = await person.at_provider("heidi")
    mixed = own.replace(parse_qs(urlsplit(own).query)["code"][0], stolen)
    assert (await person.console.get(mixed)).status_code == 403
    replaying = Person(console)
    back = await replaying.at_provider("heidi")
    cookie = replaying.console.http.cookies["carillon"]
    assert (await replaying.console.get(back)).status_code == 303
    again = console.browser(Cookie=f"carillon={cookie}")
    assert (await again.get(back)).status_code == 403
    assert set(await users(console)) == {"admin", "heidi"}


async def test_passwords_may_be_left_to_administrators(start_console: StartConsole, provider: RunningProvider) -> None:
    async with start_console(passwords="administrators") as console:
        await console.user("root", administrator=True)
        await console.user("ivan")
        assert "Administrators: log in with a password" in text_of(await console.browser().get("/log-in"))
        refused = await console.browser().log_in("ivan")
        assert (refused.status_code, "name or the password is wrong" in text_of(refused)) == (400, True)
        root = await console.logged_in("root")
        invited = await root.get("/users/new")
        assert invited.status_code == 200
        made = await root.post("/users/new", login="judy")
        link = (await root.get(made.headers["location"])).text.split("/link?token=")[1].split('"')[0].split("<")[0]
        browser = console.browser()
        await browser.get("/log-in")
        for answer in (
            await browser.get(f"/link?token={link}"),
            await browser.post("/link", token=link, password=PASSWORD, repeated=PASSWORD),
        ):
            assert (answer.status_code, "Log in with Example." in text_of(answer)) == (403, True), text_of(answer)
        await console.accounts.UpdateUser(
            UpdateUserRequest(user_id=(await users(console))["ivan"].user_id, administrator=True, origin=OPERATOR)
        )
        ivan = await console.logged_in("ivan")
        await console.accounts.UpdateUser(
            UpdateUserRequest(user_id=(await users(console))["ivan"].user_id, administrator=False, origin=OPERATOR)
        )
        assert (await ivan.get("/apps")).status_code == 303


async def test_without_a_file_of_roles_they_are_given_by_hand(
    start_console: StartConsole, provider: RunningProvider
) -> None:
    provider.person("kim", "push-admins")
    async with start_console(roles_file=None, client_id="public-console", client_secret_file=None) as console:
        team_id = await console.team("News")
        person = Person(console)
        assert (await person.log_in("kim")).status_code == 303
        kim = (await users(console))["kim"]
        assert (kim.administrator, kim.roles_by_groups) == (False, False)
        member = SetMemberRequest(
            team_id=team_id, user_id=kim.user_id, role=MemberRole.MEMBER_ROLE_SENDER, origin=OPERATOR
        )
        await console.accounts.SetMember(member)
        await Person(console).log_in("kim")
        assert await roles_in(console, kim.user_id) == {"News": "sender"}


async def test_an_address_has_so_many_attempts(console: ConsoleInstallation) -> None:
    browser = console.browser()
    answers = [(await browser.get("/log-in/provider/return")).status_code for _ in range(51)]
    assert answers == [400] * 50 + [429]
    console.clock.move(5)
    assert (await browser.get("/log-in/provider/return")).status_code == 400


@pytest.mark.parametrize(
    ("claims", "address"),
    [
        ({"email": "alice@example.org", "email_verified": True}, "alice@example.org"),
        ({"email": "alice@example.org", "email_verified": False}, ""),
        ({"email": "alice@example.org", "email_verified": "true"}, ""),
        ({"email": "alice@example.org"}, ""),
        ({"email": ["alice@example.org"], "email_verified": True}, ""),
        ({}, ""),
    ],
)
def test_only_an_address_that_the_provider_has_verified_is_taken(claims: dict[str, Any], address: str) -> None:
    assert verified_mail_address(claims) == address
