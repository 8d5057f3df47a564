"""Sessions with a real provider: renewals, leavers, outages, rotated keys, and log-outs on both sides."""

import asyncio

import pytest

from console.main import build
from testkit.oidc.running import RunningProvider
from testkit.services import running_services
from tests.console.conftest import ConsoleInstallation, text_of
from tests.console.oidc.conftest import CHECK_S, OUTAGE_S, Person, StartConsole, facts, users
from tests.console.oidc.test_log_ins import roles_in


async def logged_in_person(console: ConsoleInstallation, provider: RunningProvider, name: str, *groups: str) -> Person:
    """Return a person of these groups who has logged in."""
    provider.person(name, *(groups or ("news-desk",)))
    person = Person(console)
    assert (await person.log_in(name)).status_code == 303
    return person


async def test_a_leaver_is_out_within_five_minutes(console: ConsoleInstallation, provider: RunningProvider) -> None:
    person = await logged_in_person(console, provider, "lea")
    console.clock.move(CHECK_S - 1)
    provider.leave("sub-lea")
    assert (await person.console.get("/apps")).status_code == 200
    console.clock.move(1)
    stolen = person.console.http.cookies["carillon"]
    refused = await person.console.get("/apps")
    assert refused.headers["location"] == "/log-in?next=%2Fapps"
    assert "Your session has ended. Log in again." in text_of(await person.console.get("/log-in"))
    assert (await console.browser(Cookie=f"carillon={stolen}").get("/apps")).status_code == 303
    polling = await console.browser(Cookie=f"carillon={stolen}").get("/apps", **{"HX-Request": "true"})
    assert (polling.status_code, polling.headers["hx-redirect"]) == (401, "/log-in")


async def test_a_session_goes_on_with_tokens_that_are_valid_once(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    """The provider takes back everything when a refresh token comes a second time."""
    person = await logged_in_person(console, provider, "max")
    old = person.console.http.cookies["carillon"]
    before = [fact for fact in await facts(console, "log-ins") if fact.HasField("logged_in")]
    for _ in range(3):
        console.clock.move(CHECK_S)
        together = [console.browser(Cookie=f"carillon={person.console.http.cookies['carillon']}") for _ in range(5)]
        answers = await asyncio.gather(*(browser.get("/apps") for browser in together))
        assert {answer.status_code for answer in answers} == {200}
        assert (await person.console.get("/apps")).status_code == 200
    assert (await console.browser(Cookie=f"carillon={old}").get("/apps")).status_code == 200
    after = [fact for fact in await facts(console, "log-ins") if fact.HasField("logged_in")]
    assert len(after) == len(before) == 1
    assert (await person.console.get("/static/console.css")).headers.get("set-cookie") is None


async def test_several_consoles_share_sessions(console: ConsoleInstallation, provider: RunningProvider) -> None:
    person = await logged_in_person(console, provider, "nia")
    second = build(console.settings, console.context)
    async with running_services(second.services):
        there = type(person.console)(second.pages)
        console.browsers.append(there)
        for browser, other in ((there, person.console), (person.console, there)):
            console.clock.move(CHECK_S)
            browser.http.cookies = other.http.cookies
            assert (await browser.get("/apps")).status_code == 200
        provider.leave("sub-nia")
        console.clock.move(CHECK_S)
        assert (await there.get("/apps")).status_code == 303


async def test_roles_follow_the_groups_at_each_renewal(console: ConsoleInstallation, provider: RunningProvider) -> None:
    team_id = await console.team("News")
    person = await logged_in_person(console, provider, "oto", "news-heads", "push-admins")
    oto = (await users(console))["oto"]
    assert (await person.console.get("/users")).status_code == 200
    provider.person("oto", "news-desk")
    console.clock.move(CHECK_S)
    assert (await person.console.get("/users")).status_code == 403
    assert await roles_in(console, oto.user_id) == {"News": "sender"}
    assert (await person.console.get(f"/teams/{team_id}")).status_code == 200
    provider.person("oto", "cyclists")
    console.clock.move(CHECK_S)
    assert (await person.console.get("/apps")).status_code == 303
    assert await roles_in(console, oto.user_id) == {}
    assert (await facts(console, "log-ins"))[-1].failed.reason == "no group with a role"
    settings = [list(fact.user.settings) for fact in await facts(console, "accounts") if fact.HasField("user")]
    assert ["administrator off", "by the provider's groups"] in settings


async def test_sessions_outlive_an_outage_of_the_provider_for_a_while(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    person = await logged_in_person(console, provider, "pia")
    provider.refuse_tokens(True)
    try:
        console.clock.move(CHECK_S)
        assert (await person.console.get("/apps")).status_code == 200
        console.clock.move(OUTAGE_S - 1)
        assert (await person.console.get("/apps")).status_code == 200
        provider.refuse_tokens(False)
        assert (await person.console.get("/apps")).status_code == 200  # not asked again so soon
        console.clock.move(15)
        assert (await person.console.get("/apps")).status_code == 200
        provider.refuse_tokens(True)
        console.clock.move(CHECK_S + OUTAGE_S)
        assert (await person.console.get("/apps")).status_code == 303
        away = await person.console.get(await person.at_provider("pia"))
        assert (away.status_code, "Example does not answer as it should" in text_of(away)) == (503, True)
    finally:
        provider.refuse_tokens(False)


async def test_a_provider_that_is_down_says_so_and_passwords_go_on(
    start_console: StartConsole, provider: RunningProvider
) -> None:
    async with start_console(issuer="http://127.0.0.1:1", client_id="console") as console:
        await console.user("root", administrator=True)
        down = await console.browser().get("/log-in/provider")
        assert (down.status_code, "Example does not answer as it should" in text_of(down)) == (503, True)
        root = await console.logged_in("root")
        assert (await root.get("/apps")).status_code == 200


async def test_a_new_signing_key_is_fetched_once_it_is_used(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    person = await logged_in_person(console, provider, "quin")
    provider.rotate_key()
    console.clock.move(CHECK_S)
    assert (await person.console.get("/apps")).status_code == 200
    assert (await Person(console).log_in("quin")).status_code == 303


async def test_a_log_out_ends_the_session_on_both_sides(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    person = await logged_in_person(console, provider, "rosa")
    stolen = person.console.http.cookies["carillon"]
    leaving = await person.console.post("/log-out")
    assert leaving.status_code == 200
    seconds, _, url = leaving.headers["refresh"].partition("; url=")
    assert (seconds, url.startswith(f"{provider.issuer}/session/end?")) == ("0", True)
    assert (await person.console.get("/apps")).status_code == 303
    assert (await console.browser(Cookie=f"carillon={stolen}").get("/apps")).status_code == 303
    back = await person.log_out_of_provider(url)
    assert back.startswith("/log-in")
    assert "You are logged out." in text_of(await person.console.get("/log-in"))
    answer = await person.console.get("/log-in/provider")
    page = await person._follow(answer.headers["location"])
    assert not isinstance(page, str)
    assert "Test provider" in page.text


async def test_a_log_out_at_the_provider_ends_all_sessions_at_once(
    console: ConsoleInstallation, provider: RunningProvider
) -> None:
    person = await logged_in_person(console, provider, "sol")
    other = await logged_in_person(console, provider, "tom")
    elsewhere = Person(console)
    await elsewhere.log_in("sol")
    provider.log_out_tokens()
    leaving = await person.console.post("/log-out")
    await person.log_out_of_provider(leaving.headers["refresh"].partition("; url=")[2])
    (token,) = provider.log_out_tokens()
    server = console.browser()
    for wrong in ("", "x", token[:-4] + "AAAA", token + "x"):
        refused = await server.post("/log-out/provider", csrf="", logout_token=wrong)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_request")
    assert (await elsewhere.console.get("/apps")).status_code == 200
    taken = await server.post("/log-out/provider", csrf="", logout_token=token)
    assert (taken.status_code, taken.headers["cache-control"]) == (200, "no-store")
    assert (await elsewhere.console.get("/apps")).status_code == 303
    assert (await other.console.get("/apps")).status_code == 200
    changed = (await facts(console, "accounts"))[-1]
    assert list(changed.user.settings) == ["sessions ended", "logged out by the provider"]


async def test_without_refresh_tokens_people_go_through_the_provider_again(
    start_console: StartConsole, provider: RunningProvider
) -> None:
    provider.person("uma", "news-desk")
    async with start_console(client_id="short-console") as console:
        person = Person(console)
        await person.log_in("uma")
        console.clock.move(CHECK_S)
        asked = await person.console.get("/apps?x=1")
        assert asked.headers["location"] == "/log-in/provider?next=%2Fapps%3Fx%3D1"
        done = await person.log_in("", asked.headers["location"])  # nobody is asked for a name again
        assert (done.status_code, done.headers["location"]) == (303, "/apps?x=1")


@pytest.mark.parametrize("change", [{"issuer": "http://localhost:9"}, {"issuer": None}])
async def test_sessions_end_with_the_provider_of_the_settings(
    console: ConsoleInstallation, provider: RunningProvider, change: dict[str, str | None]
) -> None:
    person = await logged_in_person(console, provider, "vic")
    settings = {name: getattr(console.settings, name) for name in console.settings.__struct_fields__}
    settings |= {f"oidc_{name}": value for name, value in change.items()}
    changed = build(type(console.settings)(**settings), console.context)
    async with running_services(changed.services):
        there = type(person.console)(changed.pages)
        console.browsers.append(there)
        there.http.cookies = person.console.http.cookies
        assert (await there.get("/apps")).status_code == 303
