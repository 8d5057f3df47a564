"""The numbers on the pages of the console, and the links from them to the questions behind."""

from collections.abc import Sequence
from typing import NamedTuple

from playwright.async_api import Page

_NUMBERS = """() => {
  const isNumber = text => /^\\d[\\d,]*(\\.\\d+)?$/.test(text) && Number(text.replaceAll(",", "")) !== 0;
  const found = [];
  for (const cell of document.querySelectorAll("main tbody td, main tbody th, main .funnel-count")) {
    if (cell.closest(".u-legend")) continue;  // the legend of a chart repeats the table below it
    const bare = cell.cloneNode(true);
    bare.querySelectorAll("time, code, .muted, .push-share").forEach(part => part.remove());
    const path = bare.querySelector("a")?.getAttribute("href") ?? "";
    const text = (bare.querySelector("a") ?? bare).textContent.trim();
    const row = cell.closest("li")?.querySelector(".funnel-name") ?? cell.closest("tr")?.querySelector("th");
    if (isNumber(text)) found.push([cell.dataset.name ?? "", row?.textContent.trim() ?? "", text, path]);
  }
  return found;
}"""


class ShownNumber(NamedTuple):
    """A number other than zero in a table or a funnel: its column, "" in a funnel; the head of its row; its link."""

    column: str
    row: str
    text: str
    path: str


async def shown_numbers(page: Page) -> Sequence[ShownNumber]:
    """Return the numbers on the open page."""
    return [ShownNumber(*found) for found in await page.evaluate(_NUMBERS)]
