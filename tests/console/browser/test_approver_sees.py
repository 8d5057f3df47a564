"""What an approver sees in a browser before the decision: each parameter, where links lead, and hidden characters."""

from playwright.async_api import expect

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from testkit.edge.browser import accessibility_findings
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation
from tests.console.send.test_draft_pages import team_with
from tests.console.send.test_pages import reviewed, send
from tests.console.send.test_preview import LANDING


async def test_an_approver_sees_where_links_lead_and_what_is_hidden_and_then_approves(
    console: ConsoleInstallation,
) -> None:
    team = await team_with(console, ApprovalRules(broadcasts=True))
    words = {"title": "Pay \u202ekcab", "content": "Soft\u00adly", "extra": "go=1"}
    _, hidden = await reviewed(team.sender, team.appkey, audience="everyone", **words, **LANDING)
    path = (await send(team.sender, team.appkey, hidden, typed="2")).headers["location"]
    async with chromium_page(team.approver) as page:
        await page.goto(path)
        contents = page.locator("#contents")
        await expect(contents.get_by_role("heading", name="Everything that is sent")).to_be_visible()
        for text in (
            "Pay ⟨U+202E⟩kcab",
            "Soft⟨U+00AD⟩ly",
            "go=1",
            "https://bank.example@evil.example/x",
            "What stands before the @, bank.example, is not where it goes.",
            "Look here",
            "17",
        ):
            await expect(contents.get_by_text(text, exact=True).first).to_be_visible()
        hosts = await contents.locator(".goes-to strong").all_inner_texts()
        assert hosts == ["pictures.example", "evil.example", "xn--bcher-kva.example:8443"]
        assert await contents.locator("a").count() == 0, "nobody is led to a link of a push by a click"
        await expect(page.get_by_text("It reaches 2 of 2 devices of News")).to_be_visible()
        contents_top = (await contents.bounding_box() or {"y": 0})["y"]
        button = page.get_by_role("button", name="Approve and send")
        assert contents_top < (await button.bounding_box() or {"y": 0})["y"], "the contents come before the decision"
        assert await accessibility_findings(page) == []
        await page.set_viewport_size({"width": 390, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "cut off on a phone"
        await page.set_viewport_size({"width": 1280, "height": 800})
        await button.click()
        await expect(page.get_by_role("status")).to_have_text("The push is approved and sent.")
