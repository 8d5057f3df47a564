"""Log-in and log-out with a real OpenID Connect provider, in a real browser on a whole installation."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from testkit.edge.browser import running_browser
from testkit.installation.processes import Installation
from testkit.oidc.running import SECRET, RunningProvider, running_provider
from tests.journeys.console.test_console import check_pages

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path / "data", None)
    yield installation
    installation.close()


@pytest.fixture
def provider(tmp_path: Path, installation: Installation) -> Iterator[RunningProvider]:
    """The provider that the installation, which is started, knows."""
    console = installation.console_url()
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "roles.json").write_text(json.dumps({"push-admins": {"administrator": True}}))
    with running_provider(console, f"{console}/log-out/provider") as provider:
        installation.env |= {
            "CARILLON_OIDC_ISSUER": provider.issuer,
            "CARILLON_OIDC_CLIENT_ID": "console",
            "CARILLON_OIDC_CLIENT_SECRET_FILE": str(tmp_path / "secret"),
            "CARILLON_OIDC_NAME": "Example",
            "CARILLON_OIDC_ROLES_FILE": str(tmp_path / "roles.json"),
        }
        installation.start()
        yield provider


async def test_a_person_of_the_provider_logs_in_and_out(installation: Installation, provider: RunningProvider) -> None:
    provider.person("alice", "push-admins", full_name="Alice Liddell")
    async with running_browser() as browser:
        context = await browser.new_context(
            base_url=installation.console_url(), locale="en-GB", reduced_motion="reduce"
        )
        page = await context.new_page()
        await page.goto("/users")
        await check_pages(page, ["/log-in", "/log-in/provider/return"])
        await page.goto("/users")
        await page.get_by_role("link", name="Log in with Example").click()
        await page.get_by_label("Name").fill("alice")
        await page.get_by_role("button", name="Log in").click()
        await expect(page).to_have_url(re.compile("/users$"))
        await page.get_by_role("link", name="alice", exact=True).click()
        await expect(page.get_by_text("Roles follow from the groups at the provider")).to_be_visible()
        await check_pages(page, ["", "/users", "/account"])
        elsewhere = await browser.new_context(base_url=installation.console_url())
        await elsewhere.add_cookies([{**cookie, "sameSite": "Lax"} for cookie in await context.cookies()])  # type: ignore[typeddict-item]
        other = await elsewhere.new_page()
        await other.goto("/apps")
        await expect(other.get_by_role("heading", name="Apps")).to_be_visible()
        await page.get_by_role("button", name="Log out", exact=True).click()
        await page.get_by_role("button", name="Log out here too").click()
        await expect(page.get_by_text("You are logged out.")).to_be_visible()
        await other.goto("/apps")
        await expect(other.get_by_text("Your session has ended. Log in again.")).to_be_visible()
        await page.get_by_role("link", name="Log in with Example").click()
        await expect(page.get_by_label("Name")).to_be_visible()
