"""The administrator's part of the console's journey: creates a team, gives it an app, a user and a token."""

from playwright.async_api import Page, expect


async def make_a_team(page: Page, appkey: str) -> tuple[list[str], str]:
    """Make a team with an invited approver and an API token, and give it the app.

    Return the paths of the pages, and the approver's one-time link.
    """
    await page.get_by_role("link", name="Teams", exact=True).click()
    await page.get_by_role("link", name="New team").click()
    await page.get_by_label("Name").fill("Newsroom")
    await page.get_by_role("button", name="Create the team").click()
    await expect(page.get_by_role("heading", name="Team Newsroom")).to_be_visible()
    team = page.url
    await page.get_by_label("App", exact=True).select_option(appkey)
    await page.get_by_role("button", name="Add to this team").click()
    await expect(page.get_by_role("link", name="News", exact=True)).to_be_visible()
    await page.get_by_label("Name of the program").fill("nightly")
    await page.get_by_role("button", name="Create an API token").click()
    await expect(page.get_by_label("API token", exact=True)).to_contain_text("carillon_")

    await page.get_by_role("link", name="Users", exact=True).click()
    await page.get_by_role("link", name="Invite a user").click()
    await page.get_by_label("Log-in name").fill("dora")
    await page.get_by_label("Team", exact=True).select_option("Newsroom")
    await page.get_by_label("Role", exact=True).select_option("approver")
    await page.get_by_role("button", name="Create the user").click()
    link = page.get_by_label("Link", exact=True)
    await expect(link).to_contain_text("/link?token=link_")
    invitation = await link.inner_text()
    user = page.url
    await page.get_by_role("link", name="Newsroom").click()
    await expect(page.get_by_role("rowheader", name="dora")).to_be_visible()
    await page.get_by_role("link", name="Audit", exact=True).click()
    await page.get_by_label("What").select_option("Users")
    await page.get_by_role("button", name="Search").click()
    await expect(page.get_by_role("rowheader", name="created a user").first).to_be_visible()
    await page.get_by_role("link", name="Statistics", exact=True).click()
    await expect(page.get_by_role("table", name="Connected devices")).to_be_visible()
    await expect(page.locator("figure.chart canvas")).to_be_visible()
    paths = [
        "/statistics",
        "/statistics?kind=users&category=brand",
        "/tasks",
        "/audit",
        "/teams",
        "/teams/new",
        team,
        f"{team}/webhooks",
        "/users",
        "/users/new",
        user,
    ]
    return paths, invitation
