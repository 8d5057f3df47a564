"""Pages are small, limited in number, and rendered without blocking other work of the process."""

import asyncio
import re
from typing import Any

import pytest

from console.overview.streams import LivePage
from console.routes import ROUTES
from console.shell.middleware import AT_ONCE, MAX_WAITING
from console.shell.sessions import is_token, padded
from protos.analytics.v1.analytics_pb2 import ActionEntry, BroadcastRow, StatisticsResponse
from testkit.edge.page_weight import page_weight
from tests.console.conftest import START_MS, ConsoleInstallation
from tests.console.pushes.test_pages import audit, device

MAX_WEIGHT = 200_000
MANY_PUSHES = StatisticsResponse(
    broadcasts=[
        BroadcastRow(msgid=10**14 + 7919 * n * n, sent_ms=START_MS - 2_500_000 * n, target=10**6 + n, received=n)
        for n in range(1000)
    ]
)


async def administrator_of_a_full_installation(console: ConsoleInstallation) -> tuple[Any, dict[str, str]]:
    team_id = await console.team("News", sender="sender")
    appkey = await console.app(team_id=team_id)
    for number in range(5):
        await console.app(f"App {number}", team_id)
    user_id = await console.user("administrator", administrator=True)
    await device(console, appkey, "token-0", "alice")
    console.analytics.statistics = {appkey: MANY_PUSHES}
    console.analytics.pushes[7] = audit(appkey, msgid=7)
    console.analytics.actions = [
        ActionEntry(time_ms=START_MS - n, actor=f"user/{user_id}", action="app set", appkey=appkey, detail=f"name {n}")
        for n in range(100)
    ]
    names = {"appkey": appkey, "team_id": team_id, "user_id": user_id, "msgid": "7", "draft_id": "0" * 32}
    return await console.logged_in("administrator"), names


async def test_no_page_weighs_more_than_200_kilobytes_with_its_files(console: ConsoleInstallation) -> None:
    browser, names = await administrator_of_a_full_installation(console)
    alice = "?name=alice"
    queries = {
        "/statistics": f"?kind=broadcasts&appkey={names['appkey']}",
        "/apps/{appkey}/device": alice,
        "/apps/{appkey}/why": alice,
    }
    weights = {}
    for template, route in ROUTES.items():
        if route.get is not None and not issubclass(route.page, LivePage):  # a stream does not end
            page = await browser.get(template.format(**names) + queries.get(template, ""))
            assert page.status_code < 500, template
            weights[template] = await page_weight(browser.http, page)
    assert {template: weight for template, weight in weights.items() if weight > MAX_WEIGHT} == {}
    assert weights["/statistics"] > weights["/pushes"] > weights["/log-in"] > 20_000


async def test_pages_and_files_are_compressed_for_those_who_accept_it(console: ConsoleInstallation) -> None:
    browser = console.browser()
    page = await browser.get("/log-in")
    (path, *_) = re.findall(r'href="(/static/console[^"]+)"', page.text)
    for asked in ("/log-in", path):
        small, plain = await browser.get(asked), await browser.get(asked, **{"Accept-Encoding": "identity"})
        assert (small.headers["content-encoding"], small.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-encoding" not in plain.headers
        assert len(plain.text) == len(small.text) > small.num_bytes_downloaded
    assert (await browser.get(path)).headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_a_long_page_leaves_room_for_other_work(
    console: ConsoleInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, names = await administrator_of_a_full_installation(console)
    slices = 0
    sleep = asyncio.sleep

    async def counted(seconds: float) -> None:
        nonlocal slices
        slices += 1
        await sleep(seconds)

    monkeypatch.setattr("console.shell.renderer.asyncio.sleep", counted)
    assert (await browser.get(f"/statistics?kind=broadcasts&appkey={names['appkey']}")).status_code == 200
    assert slices >= 5


async def test_one_account_with_many_requests_waits_and_is_refused_while_others_go_on(
    console: ConsoleInstallation,
) -> None:
    browser, _ = await administrator_of_a_full_installation(console)
    other = await console.logged_in("sender")
    console.analytics.asked.clear()
    console.analytics.may_answer.clear()
    requests = [asyncio.create_task(browser.get("/statistics")) for _ in range(AT_ONCE + MAX_WAITING)]
    while len(console.analytics.asked) < AT_ONCE:
        await asyncio.sleep(0)
    refused = await browser.get("/account")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    of_other = asyncio.create_task(other.get("/account"))
    for left in (-1, 0, 0, 0):
        requests.pop(left).cancel()
    assert (await of_other).status_code == 200
    assert len(console.analytics.asked) <= AT_ONCE + 3
    console.analytics.may_answer.set()
    assert {each.status_code for each in await asyncio.gather(*requests)} == {200}


def test_a_token_is_shown_under_another_pad_each_time() -> None:
    shown = {padded("a token") for _ in range(3)}
    assert len(shown) == 3
    assert all(is_token(each, "a token") for each in shown)
    for wrong in ("", "a token", padded("a Token"), padded("a toke"), padded("a token")[:-4], "é", "====", "A"):
        assert not is_token(wrong, "a token"), wrong
