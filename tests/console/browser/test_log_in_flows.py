"""Log-in in a real browser: a second factor that is demanded, and a browser that was in before."""

from pathlib import Path

import pyotp
from playwright.async_api import Page, expect

from services.process.clock import ManualClock
from tests.console.browser.chromium import chromium_page
from tests.console.conftest import PASSWORD, START_MS, running_console


async def log_in(page: Page, password: str = PASSWORD) -> None:
    await page.goto("/log-in")
    await page.get_by_label("Name").fill("alice")
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


async def test_a_demanded_second_factor_and_a_log_in_while_strangers_try_the_name(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    async with running_console(tmp_path, clock, console_second_factor="everyone") as console:
        await console.user("alice")
        visitor = console.browser()
        async with chromium_page(visitor) as page:
            await log_in(page)
            await expect(page.get_by_text("This console demands a second factor of you.")).to_be_visible()
            await page.goto("/apps")
            await expect(page.get_by_role("heading", name="Add a second factor")).to_be_visible()
            await expect(page.get_by_role("link", name="Not now")).to_have_count(0)
            totp = pyotp.TOTP(await page.locator(".copyable code").inner_text())
            for password in ("not my password", PASSWORD):
                await page.get_by_label("Current password").fill(password)
                await page.get_by_label("The code that the app shows").fill(totp.at(clock.now_ms() // 1000))
                await page.get_by_role("button", name="Turn on").click()
                if password != PASSWORD:
                    await expect(page.get_by_role("alert")).to_contain_text("The current password is wrong.")
            await expect(page.locator(".codes li")).to_have_count(10)
            await page.get_by_role("link", name="I have kept them").click()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("status")).to_contain_text("You are logged out.")
            for number in range(30):
                await console.browser(address=f"198.51.{number}.1").log_in("alice", "wrong")
            await log_in(page)
            clock.move(30)
            await page.get_by_label("One-time code").fill(totp.at(clock.now_ms() // 1000))
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        async with chromium_page(console.browser(address="203.0.113.5")) as stranger:
            await log_in(stranger)
            await expect(stranger.get_by_role("alert")).to_contain_text("Too many attempts.")
