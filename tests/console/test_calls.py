"""Permissions of all calls: each is made with every kind of API token, without one, and with a person's session."""

from pathlib import Path

import pytest

from console.calls import CALLS, DOCUMENT_PATH
from protos.accounts.v1.service_pb2 import RevokeTokenRequest
from services.errors import UnavailableError
from services.process.clock import ManualClock
from tests.console.conftest import OPERATOR, PREFIX, START_MS, ConsoleInstallation, Programs, running_console

VALID = {"stranger", "viewer", "sender", "approver", "administrator"}
REFUSED = {"nobody", "session", "wrong", "revoked", "expired"}
"""Callers without a valid API token; `session` has the cookie of an administrator of the installation."""

MEMBERS = VALID - {"stranger"}
SENDERS = MEMBERS - {"viewer"}
APPROVERS = {"approver", "administrator"}

ALLOWED = {
    ("GET", "/token"): VALID,
    ("GET", "/apps"): VALID,
    ("GET", "/apps/{appkey}"): MEMBERS,
    ("POST", "/apps/{appkey}/secret"): {"administrator"},
    ("POST", "/apps/{appkey}/settings"): {"administrator"},
    ("POST", "/apps/{appkey}/pause"): APPROVERS,
    ("POST", "/apps/{appkey}/resume"): APPROVERS,
    ("GET", "/pushes"): VALID,
    ("GET", "/apps/{appkey}/refused-requests"): MEMBERS,
    ("GET", "/pushes/{msgid}"): VALID,
    ("POST", "/apps/{appkey}/estimate"): SENDERS,
    ("GET", "/apps/{appkey}/audience-values"): SENDERS,
    ("GET", "/apps/{appkey}/audiences"): SENDERS,
    ("POST", "/apps/{appkey}/audiences"): SENDERS,
    ("DELETE", "/apps/{appkey}/audiences"): SENDERS,
    ("POST", "/apps/{appkey}/pushes"): SENDERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/speed"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/states"): MEMBERS,
    ("GET", "/apps/{appkey}/pushes/{msgid}/devices"): MEMBERS,
    ("POST", "/apps/{appkey}/pushes/{msgid}/cancel"): SENDERS,
    ("GET", "/drafts"): VALID,
    ("GET", "/drafts/{team_id}/{draft_id}"): MEMBERS,
    ("POST", "/drafts/{team_id}/{draft_id}/withdraw"): SENDERS,
    ("GET", "/tasks"): VALID,
    ("GET", "/apps/{appkey}/tasks/{task_key}"): MEMBERS,
    ("POST", "/apps/{appkey}/tasks/{task_key}/cancel"): SENDERS,
    ("GET", "/apps/{appkey}/webhooks"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}/secret"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}/resume"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}/remove"): {"administrator"},
    ("GET", "/apps/{appkey}/webhooks/{webhook_id}/attempts"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}/test"): {"administrator"},
    ("POST", "/apps/{appkey}/webhooks/{webhook_id}/resend"): {"administrator"},
    ("GET", "/apps/{appkey}/devices"): MEMBERS,
    ("GET", "/apps/{appkey}/device-history"): MEMBERS,
    ("GET", "/apps/{appkey}/person"): {"administrator"},
    ("DELETE", "/apps/{appkey}/person"): {"administrator"},
    ("GET", "/apps/{appkey}/erasures"): {"administrator"},
    ("GET", "/apps/{appkey}/addresses"): MEMBERS,
    ("GET", "/apps/{appkey}/why"): MEMBERS,
    ("GET", "/apps/{appkey}/statistics"): MEMBERS,
    ("GET", "/apps/{appkey}/timeline"): MEMBERS,
    ("GET", "/audit"): VALID,
    ("GET", "/teams"): VALID,
    ("GET", "/teams/{team_id}"): MEMBERS,
    ("GET", "/teams/{team_id}/webhooks"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}/secret"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}/resume"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}/remove"): {"administrator"},
    ("GET", "/teams/{team_id}/webhooks/{webhook_id}/attempts"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}/test"): {"administrator"},
    ("POST", "/teams/{team_id}/webhooks/{webhook_id}/resend"): {"administrator"},
}
"""Whose calls are let through, by method and path."""


def test_every_call_is_in_the_table() -> None:
    assert {(call.method, call.path.removeprefix(PREFIX)) for call in CALLS} == ALLOWED.keys()


async def test_every_call_refuses_the_wrong_tokens(console: ConsoleInstallation, programs: Programs) -> None:
    team_id, other = await console.team("News"), await console.team("Others")
    names = {"appkey": await console.app(team_id=team_id), "team_id": team_id}
    names |= {"msgid": "7", "task_key": "no-task", "draft_id": "0" * 32, "webhook_id": "0" * 16}
    callers = {role: await programs.program(team_id, role) for role in sorted(MEMBERS)}
    callers["stranger"] = await programs.program(other, "administrator")
    expired = (await programs.token(team_id, "administrator", expires_in_s=60))[1]
    revoked_id, revoked = await programs.token(team_id, "administrator")
    await console.accounts.RevokeToken(RevokeTokenRequest(token_id=revoked_id, origin=OPERATOR))
    console.clock.move(120)
    callers |= {"expired": programs.of_text(expired), "revoked": programs.of_text(revoked)}
    callers |= {"wrong": programs.of_text(f"carillon_{'0' * 16}_{'a' * 43}"), "nobody": programs.of_text("")}
    await console.user("root", administrator=True)
    callers["session"] = programs.of_text("")
    callers["session"].http.cookies = (await console.logged_in("root")).http.cookies
    seen: dict[tuple[str, str], set[str]] = {asked: set() for asked in ALLOWED}
    for caller, program in callers.items():
        for method, template in ALLOWED:
            console.clock.move(6)  # a wrong token may be tried once in five seconds
            path = template.format(**names)
            answer = await program.http.request(method, PREFIX + path, json={} if method == "POST" else None)
            assert answer.headers["content-type"] == (
                "application/json" if answer.status_code == 200 else "application/problem+json"
            )
            assert "set-cookie" not in answer.headers
            assert answer.status_code < 500, answer.text
            assert (answer.status_code == 401) == (caller in REFUSED), (caller, path, answer.text)
            if answer.status_code not in (401, 403):
                seen[method, template].add(caller)
    assert seen == ALLOWED


async def test_an_app_that_does_not_exist_looks_like_one_of_another_team(
    console: ConsoleInstallation, programs: Programs
) -> None:
    program = await programs.program(await console.team("News"), "administrator")
    other = await console.app("Others")
    answers = [await program.get(f"/apps/{appkey}") for appkey in ("1", other)]
    assert [answer.json() for answer in answers] == [answers[0].json()] * 2
    assert answers[0].json()["status"] == 403


async def test_a_token_is_no_session(console: ConsoleInstallation, programs: Programs) -> None:
    program = await programs.program(await console.team("News"), "administrator")
    page = await program.http.get("/apps")
    assert page.status_code == 303
    assert page.headers["location"].startswith("/log-in")


async def test_anybody_may_read_the_document(programs: Programs) -> None:
    answer = await programs.of_text("").http.get(DOCUMENT_PATH)
    assert answer.status_code == 200
    assert answer.json()["openapi"] == "3.1.0"


async def test_addresses_and_methods_that_do_not_exist(console: ConsoleInstallation, programs: Programs) -> None:
    program = await programs.program(await console.team("News"), "administrator")
    answers = [await program.get("/nothing"), await program.post("/apps"), await program.http.options(f"{PREFIX}/apps")]
    assert [answer.json()["status"] for answer in answers] == [404, 405, 405]
    assert answers[1].headers["allow"] == "GET"


async def test_calls_are_limited_by_token_and_wrong_tokens_by_address(
    console: ConsoleInstallation, programs: Programs
) -> None:
    team_id = await console.team("News")
    busy, quiet = [await programs.program(team_id, "viewer") for _ in range(2)]
    answers = [await busy.get("/token") for _ in range(101)]
    assert {answer.status_code for answer in answers[:-1]} == {200}
    assert (answers[-1].status_code, answers[-1].headers["retry-after"]) == (429, "1")
    assert (await quiet.get("/token")).status_code == 200
    console.clock.move(0.05)
    assert (await busy.get("/token")).status_code == 200
    wrong = programs.of_text("wrong")
    refused = [(await wrong.get("/token")).status_code for _ in range(21)]
    assert refused == [401] * 20 + [429]


async def test_the_rate_of_a_token_is_exact(tmp_path: Path) -> None:
    async with running_console(tmp_path, ManualClock(START_MS), console_calls_per_s=3) as console:
        programs = Programs(console)
        program = await programs.program(await console.team("News"), "viewer")
        statuses = [(await program.get("/token")).status_code for _ in range(16)]
        for moved_s in (0.333, 0.001):
            console.clock.move(moved_s)
            statuses.append((await program.get("/token")).status_code)
        assert statuses == [200] * 15 + [429, 429, 200]


async def test_an_unknown_token_is_not_refused_while_the_log_does_not_answer(
    console: ConsoleInstallation, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await programs.program(await console.team("News"), "viewer")
    assert (await known.get("/token")).status_code == 200

    async def unavailable(_: object) -> None:
        raise UnavailableError("the log does not answer")

    monkeypatch.setattr(console.log, "ends", unavailable)
    unknown = await programs.of_text(f"carillon_{'0' * 16}_{'a' * 43}").get("/token")
    assert (unknown.status_code, "try again" in unknown.json()["detail"]) == (503, True)
    assert (await programs.of_text("wrong").get("/token")).status_code == 401, "no log makes this a token"
    assert (await known.get("/token")).status_code == 200
