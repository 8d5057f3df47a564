"""The erasure of a person, asked of the console: done by a real registry that seals, and listed until it is done."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from carillon.main import main
from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import UpdateTeamRequest
from protos.registry.v1.erasures_pb2 import ErasureFact
from protos.registry.v1.registry_pb2 import NoteErasureDoneRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from services.domain.call_permissions import EVERY_ROLE
from services.domain.topics import ERASURES, ERASURES_PARTITION, decode
from services.errors import NotFoundError
from services.log.port import NewRecord
from services.process.clock import ManualClock
from testkit.waiting import until
from tests.console.announcements import announce, some_time_later, status_of
from tests.console.conftest import (
    OPERATOR,
    PREFIX,
    START_MS,
    ConsoleInstallation,
    Program,
    Programs,
    running_console,
    text_of,
)
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


async def facts_of_erasures(console: ConsoleInstallation) -> list[ErasureFact]:
    return [decode(record) for record in (await console.log.select({ERASURES_PARTITION: 0}, 10)).records]


async def recorded(program: Program, appkey: str) -> Any:
    """Return the only erasure of an app, once the log says that it is done."""

    async def done() -> Any:
        (erasure,) = (await listed(program, appkey))["erasures"]
        return erasure["done_ms"] is not None and erasure

    return await until(done)


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
    assert (waiting["done_ms"], waiting["backups_until_ms"]) == (None, None)
    announce_applied(sealed, 1, analytics=0)
    assert (await listed(administrator, appkey))["erasures"][0]["waiting_for"] == ["analytics"]
    some_time_later(sealed)
    assert "delivery" in (await listed(administrator, appkey))["erasures"][0]["waiting_for"], "it is silent"
    announce_applied(sealed, 1)
    done = await recorded(administrator, appkey)
    assert (done["state"], done["waiting_for"], done["done_ms"]) == ("done", [], sealed.clock.now_ms())
    assert done["backups_until_ms"] == done["done_ms"] + 30 * DAY_MS
    some_time_later(sealed)
    announce_applied(sealed, 0)
    assert (await listed(administrator, appkey))["erasures"] == [done], "a role that is away later changes nothing"
    assert [fact.WhichOneof("fact") for fact in await facts_of_erasures(sealed)] == ["erased", "done"]


async def test_a_console_that_has_just_begun_and_a_registry_that_is_away_end_nothing(
    sealed: ConsoleInstallation,
) -> None:
    programs = Programs(sealed)
    _, appkey, administrator = await app_of_team(sealed, programs, "administrator")
    await erase(administrator, appkey, alias="user-0")
    announce_applied(sealed, 1)
    (early,) = (await listed(administrator, appkey))["erasures"]
    assert (early["state"], early["waiting_for"]) == ("waiting", []), "other processes may not have been heard of yet"
    some_time_later(sealed)
    with sealed.servers["registry"].away():
        announce_applied(sealed, 1)
        assert (await listed(administrator, appkey))["erasures"][0]["done_ms"] is None
    announce_applied(sealed, 1)
    assert (await recorded(administrator, appkey))["done_ms"] == sealed.clock.now_ms()


async def test_a_repeated_end_is_recorded_once_and_a_second_record_of_it_changes_nothing(
    sealed: ConsoleInstallation,
) -> None:
    programs = Programs(sealed)
    _, appkey, administrator = await app_of_team(sealed, programs, "administrator")
    erasure_id = (await erase(administrator, appkey, alias="user-0")).json()["erasure_id"]
    registry: Any = RegistryServiceStub(sealed.peers.all("registry")[0])
    for _ in range(2):
        await registry.NoteErasureDone(NoteErasureDoneRequest(erasure_id=erasure_id))
    with pytest.raises(NotFoundError):
        await registry.NoteErasureDone(NoteErasureDoneRequest(erasure_id="0123456789abcdef"))
    first, done = await facts_of_erasures(sealed)
    done.meta.time_ms += 1
    await sealed.log.append([NewRecord(ERASURES.name, 0, b"id", fact.SerializeToString()) for fact in (first, done)])
    (shown,) = (await listed(administrator, appkey))["erasures"]
    assert (shown["erasure_id"], shown["done_ms"]) == (erasure_id, done.meta.time_ms - 1)


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
    some_time_later(sealed)
    announce_applied(sealed, 1)

    async def is_done() -> bool:
        return "done 20" in text_of(await root.get(f"/apps/{appkey}/erasures"))

    await until(is_done)
    assert (await root.post(f"/apps/{appkey}/erasures", token="nobody")).status_code == 404


async def demand_confirmation(console: ConsoleInstallation, team_id: str) -> None:
    asked = UpdateTeamRequest(team_id=team_id, rules=ApprovalRules(erasures=True), origin=OPERATOR)
    await console.accounts.UpdateTeam(asked)


async def test_an_erasure_waits_for_a_second_person_where_the_team_asks(sealed: ConsoleInstallation) -> None:
    programs = Programs(sealed)
    team_id, appkey, program = await app_of_team(sealed, programs, "administrator")
    await demand_confirmation(sealed, team_id)
    assert (await program.get(f"/teams/{team_id}")).json()["rules"]["erasures"]
    answer = (await erase(program, appkey, alias="user-0")).json()
    week_later_ms = sealed.clock.now_ms() + 7 * DAY_MS
    assert (answer["devices"], answer["time_ms"], answer["waits_until_ms"]) == (1, None, week_later_ms)
    page = await listed(program, appkey)
    (waiting,) = page["unconfirmed"]
    assert (page["erasures"], waiting["erasure_id"]) == ([], answer["erasure_id"])
    assert waiting["actor"].startswith("token/")
    assert not (await sealed.log.select({ERASURES_PARTITION: 0}, 10)).records
    await sealed.user("root", administrator=True)
    root = await sealed.logged_in("root")
    shown = await root.get(f"/apps/{appkey}/erasures")
    assert "1 device with the alias user-0 is erased for ever" in text_of(shown)
    change = re.findall(r'name="change_id" value="([0-9a-f]+)"', shown.text)[0]
    done = await root.post(f"/teams/{team_id}/changes", change_id=change, decision="confirm")
    assert done.headers["location"] == f"/apps/{appkey}/erasures"

    async def is_erased() -> Any:
        return (await listed(program, appkey))["erasures"]

    (erased,) = await until(is_erased)
    assert (erased["erasure_id"], erased["actor"]) == (answer["erasure_id"], waiting["actor"])
    assert (await listed(program, appkey))["unconfirmed"] == []
    assert "The erasure is confirmed." in text_of(await root.get(f"/apps/{appkey}/erasures"))


async def test_the_page_of_a_device_says_that_the_erasure_waits_and_who_asked_takes_it_back(
    sealed: ConsoleInstallation,
) -> None:
    team_id = await sealed.team("News", head="administrator", viewer="viewer")
    appkey = await sealed.app(team_id=team_id)
    await device(sealed, appkey, "token-0", "user-0")
    await demand_confirmation(sealed, team_id)
    head = await sealed.logged_in("head")
    await head.get(f"/apps/{appkey}/device?name=token-0")
    asked = await head.post(f"/apps/{appkey}/erasures", token="token-0")
    page = await head.get(asked.headers["location"])
    words = text_of(page)
    assert "Nothing is erased yet: it waits until another administrator" in words
    assert "The device with the token token-0 is erased for ever" in words
    assert ("Take back" in words, ">Confirm<" in page.text) == (True, False)
    change = re.findall(r'name="change_id" value="([0-9a-f]+)"', page.text)[0]
    await head.post(f"/teams/{team_id}/changes", change_id=change, decision="reject")
    left = text_of(await head.get(f"/apps/{appkey}/erasures"))
    assert ("nobody is erased" in left, "token-0" in left) == (True, False)
    assert "What needs a second person: erasures of persons" in text_of(
        await (await sealed.logged_in("viewer")).get(f"/teams/{team_id}")
    )
    settings = f"/teams/{team_id}/settings"
    await head.get(f"/teams/{team_id}")
    assert (await head.post(settings, name="News", above_devices="", share_percent="50")).status_code == 303
    assert "What needs a second person: none" in text_of(await head.get(f"/teams/{team_id}")), "it waits"


def test_the_command_erases_by_the_console_and_says_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Client:
        def delete(self, kind: Any, *path: str, **query: Any) -> Any:
            asked.append(query)
            waits = None if query.get("dry_run") or query["alias"] == "a" else START_MS + DAY_MS
            return kind("0123456789abcdef", 2, None if waits else START_MS, ["this"], waits)

    monkeypatch.setattr("carillon.commands.person.named_console", Client)
    arguments = ["person", "erase", "--app", "1", "--alias"]
    waiting = CliRunner().invoke(main, [*arguments, "b", "--yes"])
    assert "Nothing is erased yet. Erasure 0123456789abcdef of 2 devices waits until" in waiting.stdout
    done = CliRunner().invoke(main, [*arguments, "a"], input="y\n")
    assert "Erased: 2 devices" in done.stdout
    assert [each.get("dry_run") for each in asked] == [None, "true", None]
    printed = json.loads(CliRunner().invoke(main, [*arguments, "b", "--yes", "--json"]).stdout)
    assert printed["waits_until_ms"] == START_MS + DAY_MS


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
        return {**known, "waiting_for": [], "done_ms": START_MS, "backups_until_ms": None, **changes}

    unconfirmed = {"erasure_id": "e0", "devices": 1, "created_ms": START_MS, "expires_ms": START_MS, "actor": "user/2"}
    waiting = erasure(
        1, state="waiting", waiting_for=["delivery", "analytics"], done_ms=None, backups_until_ms=START_MS + DAY_MS
    )
    pages = {
        "": {"erasures": [waiting], "unconfirmed": [unconfirmed], "next": "7"},
        "7": {"erasures": [erasure(2)], "next": ""},
    }

    class Client:
        def get(self, kind: Any, *path: str, **query: Any) -> Any:
            return msgspec.convert(pages[query["cursor"]], kind)

    monkeypatch.setattr("carillon.commands.person.console_client", Client)
    shown = CliRunner().invoke(main, ["person", "erasures", "--app", "1"], env={"COLUMNS": "200"}).stdout
    assert "waiting for delivery, analytics" in shown
    assert ("not known" in shown, "done 20" in shown) == (True, True)
    assert "Erasure e0 of 1 device, by user/2, waits until" in shown
    printed = CliRunner().invoke(main, ["person", "erasures", "--app", "1", "--json"]).stdout
    assert [json.loads(line)["erasure_id"] for line in printed.splitlines()] == ["e1", "e2"]
