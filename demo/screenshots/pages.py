"""The pages of which screenshots are taken, and how each is reached from the links of other pages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from playwright.async_api import Page, expect

from demo.organisation import ADMINISTRATOR, SHOP
from demo.person import PASSWORD

Reach = Callable[[Page, "DemoPaths"], Awaitable[None]]


class DemoPaths(NamedTuple):
    """Paths in one demo of the app, push, draft, team and user that are shown; their keys differ from demo to demo."""

    app: str
    push: str
    draft: str
    team: str
    user: str

    @property
    def appkey(self) -> str:
        return self.app.rpartition("/")[2]

    @property
    def msgid(self) -> str:
        return self.push.rpartition("/")[2]


class Shot(NamedTuple):
    """A page to photograph. `route`: its entry in the console's table of routes. `reach`: opens it in the browser."""

    name: str
    route: str
    reach: Reach


def _at(path: str) -> Reach:
    """Return a function that opens a path, in which fields of `DemoPaths` stand in braces."""

    async def reach(page: Page, paths: DemoPaths) -> None:
        await page.goto(path.format(**paths._asdict(), appkey=paths.appkey, msgid=paths.msgid))

    return reach


async def _overview(page: Page, paths: DemoPaths) -> None:
    await page.goto("/")
    await page.locator('main tbody a[href*="/pushes/"]').first.wait_for()


async def _push(page: Page, paths: DemoPaths) -> None:
    await page.goto(paths.push)
    await page.locator("#speed figure.chart canvas").wait_for()


async def _push_devices(page: Page, paths: DemoPaths) -> None:
    await page.goto(paths.push)
    await page.locator('main td.count a[href*="/devices?"]').first.click()
    await page.locator("main tbody code").first.wait_for()


async def _review(page: Page, paths: DemoPaths) -> None:
    await page.goto(paths.push)
    await page.locator(".page-head").locator(f'a[href^="{paths.app}/send"]').click()
    await page.locator("#f-content").wait_for()
    await page.locator("main form.compose button.primary").click()
    await page.locator("#send").wait_for()


async def _phone(page: Page, paths: DemoPaths) -> None:
    """Open a virtual phone, and send a copy of the push to the alias that it sets."""
    await page.goto(f"{paths.app}/phone")
    await expect(page.locator("#token")).not_to_have_text("–")
    await page.locator("#f-alias").fill(_PHONE)
    await page.locator("#f-alias").press("Enter")
    await expect(page.locator("#alias")).to_have_text(_PHONE)
    sender = await page.context.new_page()
    await sender.goto(f"{paths.app}/send?copy={paths.msgid}")
    await sender.locator("[name=audience][value=alias]").check()
    await sender.locator("[name=alias]").fill(_PHONE)
    await sender.locator("form.compose button.primary").click()
    await sender.locator("#send button.primary").click()
    await page.locator("#notifications li").first.wait_for()
    await sender.close()


async def _statistics(page: Page, paths: DemoPaths) -> None:
    await page.goto(f"/statistics?appkey={paths.appkey}&kind=users")
    await page.locator("figure.chart canvas").wait_for()


SHOTS = (
    Shot("overview", "/", _overview),
    Shot("account", "/account", _at("/account")),
    Shot("password", "/account/password", _at("/account/password")),
    Shot("second-factor", "/account/second-factor", _at("/account/second-factor")),
    Shot("apps", "/apps", _at("/apps")),
    Shot("new-app", "/apps/new", _at("/apps/new")),
    Shot("app", "/apps/{appkey}", _at("{app}")),
    Shot("phone", "/apps/{appkey}/phone", _phone),
    Shot("settings", "/apps/{appkey}/settings", _at("{app}/settings")),
    Shot("secret", "/apps/{appkey}/secret", _at("{app}/secret")),
    Shot("webhooks", "/apps/{appkey}/webhooks", _at("{app}/webhooks")),
    Shot("send", "/send", _at("/send")),
    Shot("compose", "/apps/{appkey}/send", _at("{app}/send")),
    Shot("review", "/apps/{appkey}/send", _review),
    Shot("audiences", "/apps/{appkey}/audiences", _at("{app}/audiences")),
    Shot("test-devices", "/apps/{appkey}/test-devices", _at("{app}/test-devices")),
    Shot("drafts", "/drafts", _at("/drafts")),
    Shot("draft", "/drafts/{team_id}/{draft_id}", _at("{draft}")),
    Shot("pushes", "/pushes", _at("/pushes")),
    Shot("push", "/apps/{appkey}/pushes/{msgid}", _push),
    Shot("speed", "/apps/{appkey}/pushes/{msgid}/speed", _at("{push}/speed")),
    Shot("failures", "/apps/{appkey}/pushes/{msgid}/failures", _at("{push}/failures")),
    Shot("push-devices", "/apps/{appkey}/pushes/{msgid}/devices", _push_devices),
    Shot("tasks", "/tasks", _at("/tasks")),
    Shot("devices", "/devices", _at("/devices")),
    Shot("device", "/apps/{appkey}/device", _at("{app}/device?name=alice")),
    Shot("dead-addresses", "/apps/{appkey}/addresses", _at("{app}/addresses")),
    Shot("erased-persons", "/apps/{appkey}/erasures", _at("{app}/erasures")),
    Shot("refused-requests", "/apps/{appkey}/refused", _at("{app}/refused")),
    Shot("why", "/why", _at("/why")),
    Shot("why-pushes", "/apps/{appkey}/why", _at("{app}/why?name=alice")),
    Shot("why-answer", "/apps/{appkey}/why", _at("{app}/why?name=alice&push={msgid}")),
    Shot("statistics", "/statistics", _statistics),
    Shot("audit", "/audit", _at("/audit")),
    Shot("users", "/users", _at("/users")),
    Shot("new-user", "/users/new", _at("/users/new")),
    Shot("user", "/users/{user_id}", _at("{user}")),
    Shot("teams", "/teams", _at("/teams")),
    Shot("new-team", "/teams/new", _at("/teams/new")),
    Shot("team", "/teams/{team_id}", _at("{team}")),
    Shot("team-webhooks", "/teams/{team_id}/webhooks", _at("{team}/webhooks")),
    Shot("not-found", "", _at("/no/such/page")),
)
"""Pages of a person who is logged in, in the order of the navigation."""

BEFORE_LOG_IN = (Shot("log-in", "/log-in", _at("/log-in")), Shot("link", "/link", _at("/link")))

WITHOUT_A_PAGE: Mapping[str, str] = {
    "/log-in/provider": "goes on to the provider of OpenID Connect",
    "/log-in/provider/return": "ends the log-in at the provider",
    "/apps/{appkey}/sent/{msgid}": "goes on to the page of the push",
    "/live": "is a stream of parts of the overview",
    "/pushes/live": "is a stream of parts of the list of pushes",
    "/apps/{appkey}/pushes/{msgid}/live": "is a stream of parts of the page of the push",
    "/statistics.csv": "is a file",
    "/apps/{appkey}/person": "is a file",
    "/apps/{appkey}/phone/worker": "is a script",
    "/audit.csv": "is a file",
}
"""Routes with GET that show no page of their own, with the reason."""

_PHONE = "demo-phone"
_LARGEST = """rows => {
  const audience = row => Number(row.querySelector("td.count").textContent.replace(/[^0-9]/g, ""));
  return rows.reduce((a, b) => (audience(b) > audience(a) ? b : a)).querySelector("a").getAttribute("href");
}"""


async def log_in(page: Page) -> None:
    """Log in as the administrator of the demo."""
    await page.goto("/log-in")
    await page.locator("[name=login]").fill(ADMINISTRATOR)
    await page.locator("[name=password]").fill(PASSWORD)
    await page.locator("main button.primary").click()
    await page.locator("nav.navigation").wait_for(state="attached")


async def find_paths(page: Page) -> DemoPaths:
    """Find the paths by their links: an app of the shop, its team and a user, a draft that waits, the widest push."""

    async def link(path: str, text: str) -> str:
        await page.goto(path)
        found = await page.locator("main a", has_text=text).first.get_attribute("href")
        assert found is not None
        return found

    app = await link("/apps", SHOP.apps[0].name)
    await page.goto("/drafts")
    draft = await page.locator('main a[href^="/drafts/"]').first.get_attribute("href")
    assert draft is not None
    await page.goto(f"/pushes?appkey={app.rpartition('/')[2]}")
    push = await page.locator("main tbody tr").evaluate_all(_LARGEST)
    return DemoPaths(
        app=app,
        push=push,
        draft=draft,
        team=await link("/teams", SHOP.name),
        user=await link("/users", SHOP.people[1].login),
    )
