"""The erasure of a person, asked of the console: done by a real registry that seals, and listed until it is done."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from carillon.main import main
from services.domain.call_permissions import EVERY_ROLE
from services.domain.topics import ERASURES_PARTITION, decode
from services.process.clock import ManualClock
from testkit.waiting import until
from tests.console.announcements import announce, some_time_later, status_of
from tests.console.conftest import PREFIX, START_MS, ConsoleInstallation, Program, Programs, running_console, text_of
from tests.console.pushes.test_pages import device
from tests.console.shell.test_calls import app_of_team

DAY_MS = 86_400_000


@pytest.fixture
async def sealed(tmp_path: Path) -> AsyncIterator[ConsoleInstallation]:
    async with running_console(tmp_path, ManualClock(START_MS), seals=True, backup_days=30) as installation:
        yield installation


async def erase(program: Program, appkey: str, **query: str | bool) -> httpx.Response:
    given = {name: str(value).lower() if value is True else value for name, value in query.items()}
    return await program.http.delete(f"{PREFIX}/apps/{appkey}/person", params=given)


async def listed(program: Program, appkey: str, **query: Any) -> Any:
    answer = await program.get(f"/apps/{appkey}/erasures", **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def announce_applied(console: ConsoleInstallation, until: int, **others: int) -> None:
    """Have each role announce how many erasures it has applied: `until`, or as many as `others` has."""
    statuses = {role: status_of(role) for role in EVERY_ROLE}
    for role, status in statuses.items():
        status.roles[0].erasures_until = others.get(role, until)
    console.clock.move(1)
    announce(console, **statuses)


async def test_a_person_is_erased_and_the_list_says_when_every_role_has_forgotten(
    sealed: ConsoleInstallation,
) -> None:
    programs = Programs(sealed)
    _, appkey, administrator = await app_of_team(sealed, programs, "administrator")
    trial = await erase(administrator, appkey, alias="user-0", dry_run=True)
    assert (trial.json()["erasure_id"], trial.json()["devices"], trial.json()["time_ms"]) == (None, 1, None)
    assert (await listed(administrator, appkey))["erasures"] == []
    answer = await erase(administrator, appkey, alias="user-0")
    assert (answer.status_code, answer.json()["devices"]) == (200, 1)
    assert any("carillon keys seal" in what for what in answer.json()["not_forgotten"])
    (record,) = (await sealed.log.select({ERASURES_PARTITION: 0}, 10)).records
    assert decode(record).meta.origin.actor.startswith("token/")
    assert b"user-0" not in record.value

    async def is_unknown() -> bool:
        found = (await administrator.get(f"/apps/{appkey}/devices", name="user-0")).json()["devices"]
        return not found

    await until(is_unknown)
    (waiting,) = (await listed(administrator, appkey))["erasures"]
    assert (waiting["erasure_id"], waiting["state"]) == (answer.json()["erasure_id"], "waiting")
    assert waiting["waiting_for"] == list(EVERY_ROLE)
    assert waiting["backups_until_ms"] == answer.json()["time_ms"] + 30 * DAY_MS
    announce_applied(sealed, 1, analytics=0)
    assert (await listed(administrator, appkey))["erasures"][0]["waiting_for"] == ["analytics"]
    announce_applied(sealed, 1)
    (done,) = (await listed(administrator, appkey))["erasures"]
    assert (done["state"], done["waiting_for"]) == ("done", [])
    some_time_later(sealed)
    assert "delivery" in (await listed(administrator, appkey))["erasures"][0]["waiting_for"], "it is silent"


async def test_the_latest_erasures_come_first_in_pages(sealed: ConsoleInstallation) -> None:
    programs = Programs(sealed)
    _, appkey, administrator = await app_of_team(sealed, programs, "administrator", devices=3)
    ids = [(await erase(administrator, appkey, token=f"token-{number}")).json()["erasure_id"] for number in range(3)]
    first = await listed(administrator, appkey, limit=2)
    rest = await listed(administrator, appkey, limit=2, cursor=first["next"])
    assert [each["erasure_id"] for page in (first, rest) for each in page["erasures"]] == ids[::-1]
    assert rest["next"] == ""


async def test_the_page_of_a_device_erases_its_person_and_names_what_is_lost(sealed: ConsoleInstallation) -> None:
    _, appkey, _ = await app_of_team(sealed, Programs(sealed), "administrator")
    await sealed.user("root", administrator=True)
    root = await sealed.logged_in("root")
    page = await root.get(f"/apps/{appkey}/device?name=token-0")
    effect = "All devices with the alias user-0 are erased for ever"
    assert effect in text_of(page)
    assert '<input type="hidden" name="alias" value="user-0">' in page.text.partition(effect)[0]
    assert "Nobody was erased" in text_of(await root.get(f"/apps/{appkey}/erasures"))
    forged = await root.post(f"/apps/{appkey}/erasures", csrf="x", alias="user-0")
    assert (forged.status_code, forged.headers.get("location")) == (403, None)
    await root.get(f"/apps/{appkey}/device?name=token-0")
    done = await root.post(f"/apps/{appkey}/erasures", alias="user-0")
    assert (done.status_code, done.headers["location"]) == (303, f"/apps/{appkey}/erasures")
    listed = text_of(await root.get(f"/apps/{appkey}/erasures"))
    assert "The person is erased." in listed
    assert "waits for edge, gateway, registry" in listed
    assert "user-0" not in listed
    announce_applied(sealed, 1)
    assert "waits for" not in text_of(await root.get(f"/apps/{appkey}/erasures"))
    assert (await root.post(f"/apps/{appkey}/erasures", token="nobody")).status_code == 404


async def test_members_who_may_not_erase_are_not_offered_it(sealed: ConsoleInstallation) -> None:
    team_id = await sealed.team("News", approver="approver")
    appkey = await sealed.app(team_id=team_id)
    await device(sealed, appkey, "token-0", "user-0")
    approver = await sealed.logged_in("approver")
    page = await approver.get(f"/apps/{appkey}/device?name=token-0")
    assert "user-0" in text_of(page)
    assert "Erase" not in text_of(page)
    assert (await approver.post(f"/apps/{appkey}/erasures", alias="user-0")).status_code == 403


async def test_what_is_refused(sealed: ConsoleInstallation) -> None:
    programs = Programs(sealed)
    team_id, appkey, administrator = await app_of_team(sealed, programs, "administrator")
    assert (await erase(administrator, appkey, alias="nobody")).status_code == 404
    for given in ({}, {"alias": "user-0", "token": "token-0"}):
        assert (await erase(administrator, appkey, **given)).status_code == 400
    approver = await programs.program(team_id, "approver")
    assert (await erase(approver, appkey, alias="user-0")).status_code == 403
    assert not (await sealed.log.select({ERASURES_PARTITION: 0}, 10)).records


async def test_where_nothing_is_sealed_nobody_is_erased(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, administrator = await app_of_team(console, programs, "administrator")
    answer = await erase(administrator, appkey, alias="user-0")
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")


async def test_the_command_lists_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def erasure(number: int, **changes: Any) -> dict[str, Any]:
        known = {"erasure_id": f"e{number}", "devices": 2, "time_ms": START_MS, "actor": "user/1", "state": "done"}
        return {**known, "waiting_for": [], "backups_until_ms": None, **changes}

    waiting = erasure(1, state="waiting", waiting_for=["delivery", "analytics"], backups_until_ms=START_MS + DAY_MS)
    pages = {"": {"erasures": [waiting], "next": "7"}, "7": {"erasures": [erasure(2)], "next": ""}}

    class Client:
        def get(self, kind: Any, *path: str, **query: Any) -> Any:
            return msgspec.convert(pages[query["cursor"]], kind)

    monkeypatch.setattr("carillon.commands.person.console_client", Client)
    shown = CliRunner().invoke(main, ["person", "erasures", "--app", "1"], env={"COLUMNS": "200"}).stdout
    assert "waiting for delivery, analytics" in shown
    assert "not known" in shown
    printed = CliRunner().invoke(main, ["person", "erasures", "--app", "1", "--json"]).stdout
    assert [json.loads(line)["erasure_id"] for line in printed.splitlines()] == ["e1", "e2"]
