"""The demo in a small size: every page of the console has something to show afterwards."""

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from demo.fill import DemoPlan, fill
from demo.organisation import ADMINISTRATOR, TEAMS
from demo.person import Person
from demo.service import Service
from services.runtime.errors import CarillonError
from testkit.ports import free_ports

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
DEVICES, PUSHES = 260, 60
FIRST_APPS = 1
"""The app that the first start creates."""


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[Service]:
    ports = zip(("CONSOLE", "V2", "ANDROID", "IOS", "GATEWAY"), free_ports(5), strict=True)
    env = {f"CARILLON_{name}_PORT": str(port) for name, port in ports} | {"CARILLON_PARTITIONS": "8"}
    service = Service(tmp_path / "demo", env)
    try:
        async with fill(DemoPlan(tmp_path / "demo", DEVICES, PUSHES, seed=3), service):
            yield service
    finally:
        service.stop()


def links(page: str, pattern: str) -> list[str]:
    return re.findall(f'href="({pattern})"', page)


def rows(page: str) -> int:
    """Return how many rows the tables of a page have."""
    return sum(body.count("<tr") for body in re.findall(r"<tbody.*?</tbody>", page, re.DOTALL))


async def test_every_page_has_something_to_show(filled: Service) -> None:
    admin = Person(filled.console_url, ADMINISTRATOR)
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


async def test_the_demo_leaves_the_data_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_text("")
    service = Service(tmp_path, {})
    with pytest.raises(CarillonError, match="has files that are not a demo's"):
        async with fill(DemoPlan(tmp_path, DEVICES, PUSHES, seed=3), service):
            pass
    assert os.listdir(tmp_path) == ["log.db"]
