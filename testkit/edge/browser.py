"""The installed Chromium, driven by Playwright, and axe-core, which checks the accessibility of a page."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, Locator, Page, async_playwright, expect

from testkit.programs import BROWSERS, needed
from testkit.repository import ROOT

EXPECT_MS = 90_000
"""Time in which a page must show what a test expects; it ends tests that hang, and is never waited for otherwise."""
AXE = "4.14.1"
_CACHE = ROOT / ".cache" / "axe"


@asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """Yield the browser without a screen; a test is skipped where there is none."""
    expect.set_options(timeout=EXPECT_MS)
    async with async_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await playwright.chromium.launch(executable_path=needed(*BROWSERS), args=options)
        try:
            yield browser
        finally:
            await browser.close()


async def reload_until(page: Page, shown: Locator) -> None:
    """Load the page anew until it shows this; AssertionError with what it shows, if it does not in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXPECT_MS / 1000):
            while await shown.count() == 0:
                await page.reload()
    await expect(shown).not_to_have_count(0, timeout=1)


async def accessibility_findings(page: Page) -> list[str]:
    """Return what axe-core finds on the page as it is now: each rule with the elements that break it."""
    await page.evaluate(_axe_source())
    result: Any = await page.evaluate("axe.run()")
    return [
        f"{finding['id']}: {finding['help']}: {[node['html'][:120] for node in finding['nodes']]}"
        for finding in result["violations"]
    ]


def _axe_source() -> str:
    """Return axe-core's script, fetched from npm's registry once."""
    file = _CACHE / AXE / "package" / "axe.min.js"
    if not file.exists():
        directory = _CACHE / AXE
        directory.mkdir(parents=True, exist_ok=True)
        command = [needed("npm"), "pack", "--silent", "--pack-destination", str(directory), f"axe-core@{AXE}"]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "npm_config_audit": "false"})
        shutil.unpack_archive(directory / f"axe-core-{AXE}.tgz", directory)
    return file.read_text()
