"""Uses the console without a mouse: sends a push, and asks why a device did not get it; the focus is always visible."""

from playwright.async_api import Page, expect

_MOST_STEPS = 120
_FOCUSED = """
() => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const name = element.labels?.[0]?.innerText || element.ariaLabel || element.innerText || element.value || "";
  const is_seen =
    style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.height > 0 &&
    box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight;
  return { name: name.replace(/\\s+/g, " ").trim(), is_seen };
}
"""


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element with this name has the focus; each on the way to it shows that it has it."""
    passed = []
    for _ in range(_MOST_STEPS):
        await page.keyboard.press("Tab")
        focused = await page.evaluate(_FOCUSED)
        if focused is not None:
            assert focused["is_seen"], f"the focus on {focused['name']!r} is not seen"
            if focused["name"] == name:
                return
            passed.append(focused["name"])
    raise AssertionError(f"Tab does not reach {name!r}, but {passed}")


async def send_with_the_keyboard(page: Page) -> None:
    """Send a push to the alias alice of the app News."""
    await page.goto("/")
    await tab_to(page, "Skip to the content")
    await tab_to(page, "Send")
    await _follow(page)
    await tab_to(page, "App")
    await page.keyboard.type("News")
    await tab_to(page, "Compose")
    await _follow(page)
    await expect(page.get_by_role("heading", name="Send a push to the devices of News")).to_be_visible()
    await tab_to(page, "Title optional")
    await page.keyboard.type("Calm")
    await tab_to(page, "Text")
    await page.keyboard.type("Come out again")
    await tab_to(page, "devices with tags or attributes")
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_role("radio", name="aliases", exact=True)).to_be_checked()
    await tab_to(page, "Aliases optional")
    await page.keyboard.type("alice")
    await tab_to(page, "Review before sending")
    await _follow(page)
    await expect(page.get_by_text("1 device would get it now")).to_be_visible()
    await tab_to(page, "Send now")
    await _follow(page)
    await expect(page.get_by_role("heading", name="Calm")).to_be_visible()


async def explain_with_the_keyboard(page: Page, msgid: int, sentence: str) -> None:
    """Ask on the overview why bob did not get a push of the app News, past the navigation."""
    await page.goto("/")
    await tab_to(page, "Skip to the content")
    await page.keyboard.press("Enter")
    await tab_to(page, "App")
    await page.keyboard.type("News")
    await tab_to(page, "Alias or token")
    await page.keyboard.type("bob")
    await tab_to(page, "Explain")
    await _follow(page)
    await expect(page.get_by_role("heading", name="Which push did bob not get?")).to_be_visible()
    await tab_to(page, "Skip to the content")
    await page.keyboard.press("Enter")
    link = page.get_by_role("link", name=str(msgid))
    await tab_to(page, " ".join((await link.inner_text()).split()))
    await _follow(page)
    await expect(page.get_by_text(sentence)).to_be_visible()


async def _follow(page: Page) -> None:
    """Press Enter on a link or button, and wait for the page behind it."""
    async with page.expect_navigation():
        await page.keyboard.press("Enter")
