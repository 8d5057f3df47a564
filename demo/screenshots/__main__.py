"""Screenshots of every page of the console, in light, dark, phone width and Chinese, on the demo's installation.

    make screenshots
    python -m demo.screenshots --directory build/demo --only overview push

Fills the demo if it is not, and serves it on free ports. Each page is written to build/screenshots/NAME-FORM.png;
those that the documents show, to docs/images, as WebP of at most 60 KB.
"""

import argparse
import base64
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import uvloop
from playwright.async_api import Browser, BrowserContext, Page

from demo.fill import DemoPlan, fill
from demo.screenshots.pages import BEFORE_LOG_IN, SHOTS, DemoPaths, Shot, find_paths, log_in
from demo.service import DemoService
from services.errors import CarillonError
from testkit.edge.browser import running_browser
from testkit.ports import free_ports
from testkit.programs import BROWSERS, installed
from testkit.repository import ROOT

SHOWN = {
    "overview": ("light", "dark", "chinese"),
    "push": ("light", "dark", "phone"),
    "review": ("light", "dark"),
    "why-answer": ("light", "dark"),
    "statistics": ("light", "dark"),
    "phone": ("light", "dark"),
}
"""The pages in docs/images, with their forms."""

MAX_BYTES = 60_000
_PORTS = ("CONSOLE", "V2", "ANDROID", "IOS", "GATEWAY")
_SETTLE_MS = 400
"""Time for charts, and for the parts of pages that htmx fetches."""

_PATIENCE_MS = 120_000
"""Longest wait for a page, on a machine that has other work."""

_CHINESE_FONTS = ["fc-list", ":lang=zh"]
_QUALITIES = (88, 80, 70, 60, 50)


class Form(NamedTuple):
    """One form in which all pages are shown: colour scheme, window size and language."""

    name: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1280
    height: int = 800
    locale: str = "en-GB"


FORMS = (
    Form("light"),
    Form("dark", "dark"),
    Form("phone", width=390, height=844),
    Form("chinese", locale="zh-CN"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m demo.screenshots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("build/demo"), metavar="DIR", help="of the demo")
    parser.add_argument("--out", type=Path, default=Path("build/screenshots"), metavar="DIR")
    parser.add_argument("--devices", type=int, default=20_000, metavar="N", help="of a demo that is to be filled")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="take these pages alone")
    options = parser.parse_args()
    plan = DemoPlan(options.directory, options.devices, pushes=200, seed=1)
    try:
        _check_machine()
        uvloop.run(_take(plan, options.out, options.only))
    except CarillonError as error:
        sys.exit(f"screenshots: {error}")


def _check_machine() -> None:
    """Check that there are a browser and a font, before the demo is filled. CarillonError says what to install."""
    if installed(*BROWSERS) is None:
        raise CarillonError("no browser is on the path: install it with `apt-get install chromium`")
    if shutil.which("fc-list") and not subprocess.run(_CHINESE_FONTS, capture_output=True, check=True).stdout.strip():
        raise CarillonError("no font has Chinese characters: install one with `apt-get install fonts-noto-cjk`")


async def _take(plan: DemoPlan, out: Path, only: Sequence[str] | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    ports = zip(_PORTS, free_ports(len(_PORTS)), strict=True)
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports}
    service = DemoService(plan.directory, env | {"CARILLON_TIMEZONE": "Asia/Shanghai"})
    try:
        async with fill(plan, service), running_browser() as browser:
            paths = await _paths(browser, service.console_url)
            for form in FORMS:
                await _take_form(browser, service.console_url, form, paths, out, only)
    finally:
        service.stop()


async def _paths(browser: Browser, url: str) -> DemoPaths:
    async with _opened(browser, url, FORMS[0]) as page:
        await log_in(page)
        return await find_paths(page)


async def _take_form(
    browser: Browser, url: str, form: Form, paths: DemoPaths, out: Path, only: Sequence[str] | None
) -> None:
    """Take all pages in one form."""
    async with _opened(browser, url, form) as page:
        for shots in (BEFORE_LOG_IN, SHOTS):
            if shots is SHOTS:
                await log_in(page)
            for shot in shots:
                if only is None or shot.name in only:
                    await _take_one(page, shot, form, paths, out)


async def _take_one(page: Page, shot: Shot, form: Form, paths: DemoPaths, out: Path) -> None:
    await shot.reach(page, paths)
    await page.wait_for_timeout(_SETTLE_MS)
    height = await page.evaluate("document.documentElement.scrollHeight")
    # The whole page is in view: the navigation is as high as the window.
    await page.set_viewport_size({"width": form.width, "height": max(height, form.height)})
    await page.screenshot(path=out / f"{shot.name}-{form.name}.png")
    await page.set_viewport_size({"width": form.width, "height": form.height})
    if form.name in SHOWN.get(shot.name, ()):
        folder = ROOT / "docs" / "images"
        folder.mkdir(exist_ok=True)
        (folder / f"{shot.name}-{form.name}.webp").write_bytes(await _webp(page))


async def _webp(page: Page) -> bytes:
    """Return the visible part of the page as WebP, in the best quality that is below MAX_BYTES."""
    session = await page.context.new_cdp_session(page)
    for quality in _QUALITIES:
        taken = await session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
        image = base64.b64decode(taken["data"])
        if len(image) <= MAX_BYTES:
            return image
    raise CarillonError(f"{page.url} is larger than {MAX_BYTES} bytes")


@asynccontextmanager
async def _opened(browser: Browser, url: str, form: Form) -> AsyncIterator[Page]:
    context: BrowserContext = await browser.new_context(
        base_url=url,
        locale=form.locale,
        color_scheme=form.scheme,
        viewport={"width": form.width, "height": form.height},
        device_scale_factor=1,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_PATIENCE_MS)
    try:
        yield await context.new_page()
    finally:
        await context.close()


if __name__ == "__main__":
    main()
