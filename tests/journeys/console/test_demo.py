"""The demo in a small size: every page of the console has something to show afterwards, and its numbers lead on."""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from demo.fill import DemoPlan, fill
from demo.organisation import ADMINISTRATOR, TEAMS
from demo.person import ConsoleSession
from demo.screenshots.pages import SHOTS, find_paths, log_in
from demo.service import DemoService
from services.errors import CarillonError
from testkit.edge.browser import running_browser
from testkit.ports import free_ports
from tests.journeys.console.numbers import ShownNumber, shown_numbers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
DEVICES, PUSHES = 260, 60
FIRST_APPS = 1
"""The app that the first start creates."""

OF_ROLES = {"Processes", "Records behind", "Seconds behind", "Work a second"}
"""Columns of what is measured now; nothing further is stored about it."""

WITHOUT_STATISTICS = {"dismissed"}
"""Events that no statistics count."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DemoService]:
    directory = tmp_path_factory.mktemp("demo") / "demo"
    ports = zip(("CONSOLE", "V2", "ANDROID", "IOS", "GATEWAY"), free_ports(5), strict=True)
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports} | {"CARILLON_PARTITIONS": "8"}
    service = DemoService(directory, env)
    try:
        async with fill(DemoPlan(directory, DEVICES, PUSHES, seed=3), service):
            yield service
    finally:
        service.stop()


def links(page: str, pattern: str) -> list[str]:
    return re.findall(f'href="({pattern})"', page)


def rows(page: str) -> int:
    """Return how many rows the tables of a page have."""
    return sum(body.count("<tr") for body in re.findall(r"<tbody.*?</tbody>", page, re.DOTALL))


async def test_every_page_has_something_to_show(filled: DemoService) -> None:
    admin = ConsoleSession(filled.console_url, ADMINISTRATOR)
    await admin.log_in()
    await admin.open("/apps")
    apps = dict.fromkeys(links(admin.page, r"/apps/\d+"))
    assert len(apps) == FIRST_APPS + sum(len(team.apps) for team in TEAMS)
    shop = links(admin.page.partition(">Bluebird<")[0], r"/apps/\d+")[-1]
    await admin.open("/teams")
    assert rows(admin.page) == len(TEAMS)
    team = links(admin.page, r"/teams/(?!new)[^\"]+")[0]
    await admin.open("/users")
    assert rows(admin.page) == 2 + sum(len(team.people) for team in TEAMS)
    await admin.open("/drafts")
    states = re.findall(r'class="badge [a-z]+">([a-z ]+)<', admin.page)
    assert {"waits for approval", "approved and sent", "rejected", "withdrawn"} <= set(states), states
    draft = links(admin.page, r"/drafts/[^\"]+")[0]
    await admin.open("/tasks")
    for state in ("waits", "sent", "cancelled"):
        assert f">{state}</span>" in admin.page
    await admin.open("/pushes")
    assert rows(admin.page) > 30
    push = links(admin.page, r"/apps/\d+/pushes/\d+")[0]
    paths = ["/", push, draft, team, f"{shop}/device?name=zoe", f"{shop}/why?name=alice", f"{shop}/test-devices"]
    asked = f"/statistics?appkey={shop.rpartition('/')[2]}&kind="
    for path in (*paths, "/audit", *(asked + kind for kind in ("connections", "broadcasts", "users", "logins"))):
        await admin.open(path)
        assert 'class="card empty"' not in admin.page, path
        assert rows(admin.page) > 0, path
    await admin.open(f"{shop}/device?name=zoe")
    assert "dropped" in admin.page
    await admin.close()


def is_no_answer(number: ShownNumber) -> bool:
    """Return whether no question is behind the number: an entry of a timeline is one thing unless it counts more."""
    is_of_one_entry = number.column == "Count" and number.text == "1"
    return number.column in OF_ROLES or is_of_one_entry or number.row in WITHOUT_STATISTICS


async def test_every_number_leads_to_the_question_behind_it(filled: DemoService) -> None:
    plain: list[tuple[str, ShownNumber]] = []
    paths: dict[tuple[str, str], str] = {}

    async def note_numbers(name: str) -> None:
        for number in await shown_numbers(page):
            if number.path:
                paths[name, number.column] = number.path.partition("#")[0]
            elif not is_no_answer(number):
                plain.append((name, number))

    async with running_browser() as browser:
        context = await browser.new_context(base_url=filled.console_url, locale="en-GB", reduced_motion="reduce")
        context.set_default_timeout(60_000)
        page = await context.new_page()
        await log_in(page)
        demo_paths = await find_paths(page)
        for shot in SHOTS:
            await shot.reach(page, demo_paths)
            await note_numbers(shot.name)
        for kind in ("connections", "broadcasts", "logins"):
            await page.goto(f"/statistics?appkey={demo_paths.appkey}&kind={kind}")
            await note_numbers(kind)
        await page.goto(f"{demo_paths.app}/device?name=zoe")
        messages = await page.locator('main th a[href*="push="]').all()
        msgids = [str(await link.get_attribute("href")).rpartition("=")[2] for link in messages[:5]]
        for msgid in msgids:
            await page.goto(f"{demo_paths.app}/pushes/{msgid}")
            await note_numbers("message")
        assert plain == [], "\n".join(map(str, plain))
        assert {"overview", "pushes", "push", "speed", "drafts", "teams", "logins"} <= {name for name, _ in paths}
        answers = {path: (await page.request.get(path)).status for path in set(paths.values())}
        assert {path: status for path, status in answers.items() if status != 200} == {}


async def test_the_demo_leaves_the_data_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("")
    service = DemoService(tmp_path, {})
    with pytest.raises(CarillonError, match="has files that are not a demo's"):
        async with fill(DemoPlan(tmp_path, DEVICES, PUSHES, seed=3), service):
            pass
    assert os.listdir(tmp_path) == ["log.db"]
