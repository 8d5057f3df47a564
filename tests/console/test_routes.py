"""Permissions of all routes: each route and method is requested with every kind of account."""

import re

import pytest

from console.routes import ROUTES
from tests.console.conftest import Browser, ConsoleInstallation, text_of
from tests.console.event_stream import event_stream

EVERYBODY = {"nobody", "stranger", "viewer", "sender", "approver", "head", "administrator"}
LOGGED_IN = EVERYBODY - {"nobody"}
MEMBERS = LOGGED_IN - {"stranger"}
SENDERS = MEMBERS - {"viewer"}
HEADS = {"head", "administrator"}
ADMINISTRATOR = {"administrator"}

ALLOWED = {
    ("GET", "/"): LOGGED_IN,
    ("GET", "/live"): LOGGED_IN,
    ("GET", "/log-in"): EVERYBODY,
    ("POST", "/log-in"): EVERYBODY,
    ("POST", "/log-out"): EVERYBODY,
    ("GET", "/log-in/provider"): EVERYBODY,
    ("GET", "/log-in/provider/return"): EVERYBODY,
    ("POST", "/log-out/provider"): EVERYBODY,
    ("GET", "/link"): EVERYBODY,
    ("POST", "/link"): EVERYBODY,
    ("GET", "/account"): LOGGED_IN,
    ("POST", "/account"): LOGGED_IN,
    ("GET", "/account/password"): LOGGED_IN,
    ("POST", "/account/password"): LOGGED_IN,
    ("GET", "/account/second-factor"): LOGGED_IN,
    ("POST", "/account/second-factor"): LOGGED_IN,
    ("POST", "/account/sessions"): LOGGED_IN,
    ("GET", "/apps"): LOGGED_IN,
    ("GET", "/apps/new"): ADMINISTRATOR,
    ("POST", "/apps/new"): ADMINISTRATOR,
    ("GET", "/apps/{appkey}"): MEMBERS,
    ("GET", "/apps/{appkey}/phone"): SENDERS,
    ("GET", "/apps/{appkey}/phone/worker"): SENDERS,
    ("POST", "/apps/{appkey}/pause"): HEADS | {"approver"},
    ("GET", "/apps/{appkey}/settings"): HEADS,
    ("POST", "/apps/{appkey}/settings"): HEADS,
    ("POST", "/apps/{appkey}/secret/end"): HEADS,
    ("GET", "/apps/{appkey}/secret"): HEADS,
    ("POST", "/apps/{appkey}/secret"): HEADS,
    ("GET", "/teams/{team_id}/webhooks"): HEADS,
    ("POST", "/teams/{team_id}/webhooks"): HEADS,
    ("GET", "/apps/{appkey}/webhooks"): HEADS,
    ("POST", "/apps/{appkey}/webhooks"): HEADS,
    ("GET", "/send"): LOGGED_IN,
    ("GET", "/apps/{appkey}/send"): SENDERS,
    ("POST", "/apps/{appkey}/send"): SENDERS,
    ("POST", "/apps/{appkey}/send/typed"): SENDERS,
    ("POST", "/apps/{appkey}/send/size"): SENDERS,
    ("POST", "/apps/{appkey}/send/audience"): SENDERS,
    ("GET", "/apps/{appkey}/audiences"): SENDERS,
    ("POST", "/apps/{appkey}/audiences"): SENDERS,
    ("POST", "/apps/{appkey}/send/values"): SENDERS,
    ("POST", "/apps/{appkey}/send/now"): SENDERS,
    ("POST", "/apps/{appkey}/send/test"): SENDERS,
    ("GET", "/apps/{appkey}/test-devices"): SENDERS,
    ("POST", "/apps/{appkey}/test-devices"): SENDERS,
    ("GET", "/apps/{appkey}/sent/{msgid}"): MEMBERS,
    ("GET", "/drafts"): LOGGED_IN,
    ("GET", "/drafts/{team_id}/{draft_id}"): MEMBERS,
    ("POST", "/drafts/{team_id}/{draft_id}/approval"): HEADS | {"approver"},
    ("POST", "/drafts/{team_id}/{draft_id}/rejection"): HEADS | {"approver"},
    ("POST", "/drafts/{team_id}/{draft_id}/withdrawal"): SENDERS,
    ("GET", "/pushes"): LOGGED_IN,
    ("GET", "/pushes/live"): LOGGED_IN,
    ("GET", "/apps/{appkey}/pushes/{msgid}"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/live"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/speed"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/failures"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/devices"): MEMBERS,
    ("POST", "/apps/{appkey}/pushes/{msgid}/cancel"): SENDERS,
    ("GET", "/tasks"): LOGGED_IN,
    ("POST", "/apps/{appkey}/tasks/{task_key}/cancel"): SENDERS,
    ("GET", "/devices"): LOGGED_IN,
    ("GET", "/apps/{appkey}/device"): MEMBERS,
    ("GET", "/apps/{appkey}/person"): HEADS,
    ("GET", "/apps/{appkey}/erasures"): HEADS,
    ("POST", "/apps/{appkey}/erasures"): HEADS,
    ("GET", "/apps/{appkey}/addresses"): MEMBERS,
    ("GET", "/apps/{appkey}/refused"): MEMBERS,
    ("GET", "/why"): LOGGED_IN,
    ("GET", "/apps/{appkey}/why"): MEMBERS,
    ("GET", "/statistics"): LOGGED_IN,
    ("GET", "/statistics.csv"): LOGGED_IN,
    ("GET", "/audit"): LOGGED_IN,
    ("GET", "/audit.csv"): LOGGED_IN,
    ("GET", "/users"): ADMINISTRATOR,
    ("GET", "/users/new"): ADMINISTRATOR,
    ("POST", "/users/new"): ADMINISTRATOR,
    ("POST", "/users/changes"): ADMINISTRATOR,
    ("GET", "/users/{user_id}"): ADMINISTRATOR,
    ("POST", "/users/{user_id}"): ADMINISTRATOR,
    ("GET", "/teams"): LOGGED_IN,
    ("GET", "/teams/new"): ADMINISTRATOR,
    ("POST", "/teams/new"): ADMINISTRATOR,
    ("GET", "/teams/{team_id}"): MEMBERS,
    ("POST", "/teams/{team_id}/settings"): HEADS,
    ("POST", "/teams/{team_id}/changes"): HEADS,
    ("POST", "/teams/{team_id}/members"): HEADS,
    ("POST", "/teams/{team_id}/apps"): ADMINISTRATOR,
    ("POST", "/teams/{team_id}/tokens"): HEADS,
    ("POST", "/teams/{team_id}/tokens/{token_id}/revoke"): HEADS,
}
"""Who is let through, by method and path template. `head` is an administrator of the app's team."""

LAST = {"/log-out", "/account/sessions"}
"""Routes that end the session."""


def test_every_route_declares_who_may_use_each_method_that_it_has() -> None:
    declared = {(method, path) for path, route in ROUTES.items() for method in route.accesses}
    offered = {
        (method, path)
        for path, route in ROUTES.items()
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
        if hasattr(route.page, f"on_{method.lower()}")
    }
    assert declared == offered == ALLOWED.keys()


async def test_every_route_refuses_the_wrong_accounts(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", viewer="viewer", sender="sender", approver="approver", head="administrator")
    await console.team("Others", stranger="administrator")
    await console.user("administrator", administrator=True)
    names = {"appkey": await console.app(team_id=team_id), "team_id": team_id}
    names |= {"msgid": "7", "user_id": "no-user", "token_id": "no-token", "task_key": "no-task", "draft_id": "0" * 32}
    seen: dict[tuple[str, str], set[str]] = {asked: set() for asked in ALLOWED}
    for account in sorted(EVERYBODY):
        browser = console.browser()
        await browser.get("/log-in")
        if account != "nobody":
            await browser.log_in(account)
        for method, template in sorted(ALLOWED, key=lambda asked: (asked[1] in LAST, asked)):
            if template == "/log-in" and account != "nobody":
                seen[method, template].add(account)  # a log-in page is the same for everybody
                continue
            path = template.format(**names)
            if template.endswith("/live"):
                async with event_stream(console.application, browser, path) as stream:
                    let_through = stream.status not in (401, 403)
            else:
                let_through = await is_let_through(browser, method, path, account)
            if let_through:
                seen[method, template].add(account)
            if template in LAST and account != "nobody":
                await browser.log_in(account)
    assert seen == ALLOWED


async def is_let_through(browser: Browser, method: str, path: str, account: str) -> bool:
    answer = await (browser.get(path) if method == "GET" else browser.post(path))
    if answer.status_code == 403:
        return False
    if answer.status_code == 303 and answer.headers["location"].startswith("/log-in"):
        return path in LAST and (account != "nobody" or path == "/log-out")
    assert answer.status_code < 500, answer.text
    return True


@pytest.mark.parametrize("path", ["/apps/1", "/apps/1/secret"])
async def test_an_app_that_does_not_exist_looks_like_one_of_another_team(
    console: ConsoleInstallation, path: str
) -> None:
    await console.team("News", viewer="viewer")
    other = await console.app("Others")
    viewer = await console.logged_in("viewer")
    answers = [await viewer.get(path), await viewer.get(path.replace("1", other, 1))]
    assert [answer.status_code for answer in answers] == [403, 403]


@pytest.mark.parametrize(
    "path", ["/devices?name=a&", "/why?name=a&push=7&", "/statistics?", "/tasks?", "/pushes?", "/send?", "/audit?"]
)
async def test_a_link_with_an_app_that_is_not_ones_own_is_not_answered_with_another(
    console: ConsoleInstallation, path: str
) -> None:
    team_id = await console.team("News", head="administrator")
    own, _ = [await console.app(name, team_id) for name in ("Own", "Second")]
    other = await console.app("Others")
    head = await console.logged_in("head")
    name = "app" if path == "/audit?" else "appkey"
    for foreign in (other, "7"):
        page = await head.get(f"{path}{name}={foreign}")
        words = text_of(page)
        assert (page.status_code in (400, 404), f"None of your apps has the key {foreign}." in words) == (True, True)
        assert f'value="{own}" selected' not in page.text
        chosen = re.search(r'<select id="f-app(?:key)?"[^>]*>\s*<option value="([^"]*)"', page.text)
        assert (chosen and chosen[1]) == ""
    assert "None of your apps" not in text_of(await head.get(f"{path}{name}={own}"))
