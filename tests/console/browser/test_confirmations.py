"""Changes that need a confirmation: one press shows the effect, and only the button below it makes the change."""

from playwright.async_api import expect

from testkit.edge.browser import accessibility_findings
from tests.console.apps.test_pages import make_secret
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import ConsoleInstallation, text_of


async def test_removing_a_member_takes_two_presses_and_the_keyboard_is_enough(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", head="administrator", alice="sender")
    await console.app("Weather", team_id)
    await console.user("root", administrator=True)
    async with chromium_page(await console.logged_in("root")) as page:
        await page.goto(f"/teams/{team_id}")
        alice = page.get_by_role("row", name="alice")
        button = alice.get_by_role("button", name="Remove alice from the team", exact=True)
        await expect(button).to_be_hidden()
        await alice.locator("summary").focus()
        await page.keyboard.press("Enter")
        await expect(alice.get_by_text("alice loses the role in this team at once")).to_be_visible()
        assert await accessibility_findings(page) == []
        await page.keyboard.press("Tab")
        await expect(button).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("The members are changed.")).to_be_visible()
        await expect(alice).to_have_count(0)


async def test_each_change_that_is_hard_to_undo_names_its_effect_first(console: ConsoleInstallation) -> None:
    team_id = await console.team("News", head="administrator")
    appkey = await console.app("Weather", team_id)
    await console.user("root", administrator=True)
    user_id = await console.user("alice")
    root, head = await console.logged_in("root"), await console.logged_in("head")
    await head.get(f"/teams/{team_id}")
    await head.post(f"/teams/{team_id}/tokens", token_name="nightly", token_role="sender", expires="30d")
    await make_secret(head, f"/apps/{appkey}", "24h")
    effects = {
        f"/teams/{team_id}": (
            "The members of the team lose access to Weather at once.",
            "Programs that use the token nightly are refused at once. This cannot be undone.",
        ),
        f"/users/{user_id}": (
            "alice is logged out everywhere at once, and cannot log in until",
            "alice can then manage the whole installation",
        ),
        f"/apps/{appkey}": ("Servers that still sign with the former secret key are refused at once.",),
    }
    for path, texts in effects.items():
        page = await root.get(path)
        for text in texts:
            assert text in text_of(page)
            # Without a script, a closed <details> hides what stands in it.
            before = page.text.partition(text)[0]
            assert before.rindex('<details class="confirmed">') > before.rfind("</details>")
