"""The answer to every call while a role is away is the one in the table of docs/operators/running.md."""

import asyncio
import re
from pathlib import Path

import pytest

from services.errors import UnavailableError
from services.replica import owner_channel
from testkit.edge.role import BACKENDS, EdgeInstallation, edge_installation
from testkit.edge.valid_requests import ValidRequest, valid_requests
from testkit.repository import ROOT
from testkit.signing import signed
from testkit.waiting import until_holds

PAGE = (ROOT / "docs/operators/running.md").read_text()
NOT_IN_THE_INSTALLATION = ("delivery", "analytics")
PATHS = {
    "/timed_msg": "timed messages",
    "/v2/timed": "timed messages",
    "/v2/timedtasklist": "timed messages",
    "/v2/timedtaskdetail": "timed messages",
    "/v2/device": "tags, iOS registrations",
    "/register": "tags, iOS registrations",
    "/v2/deviceinfo": "look-ups of devices",
    "/v2/errortoken": "look-ups of devices",
    "/v2/statistics": "statistics, acknowledgements",
    "/getAckInfo": "statistics, acknowledgements",
}
TO_TOKENS_OR_ALIASES = (3, 4, 5)


def table() -> dict[str, dict[str, str]]:
    """Return the cells of the page's table by the role that is away and the kind of call."""
    (text,) = re.findall(r"^\| away \|.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def kind(request: ValidRequest) -> str:
    """Return the column of the table that a request belongs to."""
    if request.path in PATHS:
        return PATHS[request.path]
    if request.method == "DELETE":
        return "cancel a push"
    if request.body.get("option", {}).get("timed"):
        return "timed messages"
    scope = request.body.get("sendTo", {}).get("userScope")
    to_some = scope in TO_TOKENS_OR_ALIASES or "token" in request.body or "alias" in request.body
    return "push to tokens or aliases" if to_some else "push to all or by a filter"


async def failures(installation: EdgeInstallation, requests: list[ValidRequest]) -> dict[str, set[int]]:
    """Return the results above 499 of each kind of call; 0 stands for every other result."""
    found: dict[str, set[int]] = {}
    for request in requests:
        content = signed(request.body, *request.secrets)
        answer = await request.client(installation).request(request.method, request.path, content=content)
        result = int(answer.json()["result"])
        found.setdefault(kind(request), set()).add(result if result >= 500 else 0)
    return found


def expected(*away: str) -> dict[str, set[int]]:
    """Return by the table the result of each kind of call while these roles are away."""
    rows = [table()[role] for role in away]
    return {column: {max(_result(row[column]) for row in rows)} for column in rows[0]}


def _result(cell: str) -> int:
    return 0 if cell == "works" else int(cell)


async def test_without_the_log_calls_that_send_or_change_fail_and_calls_that_read_work(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(new_records: object) -> list[int]:
        raise UnavailableError("the disk is full")

    requests = await valid_requests(installation)
    monkeypatch.setattr(installation.log, "append", unavailable)
    found = await failures(installation, requests)
    assert found.pop("timed messages") == {0, 500}
    only_read = {"look-ups of devices": {0}, "statistics, acknowledgements": {503}}
    assert found == {kind: only_read.get(kind, {500}) for kind in found}


@pytest.mark.parametrize("role", [None, "registry", "targeting", "scheduling"])
async def test_the_table_of_calls_while_a_role_is_away(installation: EdgeInstallation, role: str | None) -> None:
    """The installation has no delivery and no analytics, so these two are always away."""
    requests = await valid_requests(installation)
    if role is None:
        assert await failures(installation, requests) == expected(*NOT_IN_THE_INSTALLATION)
        return
    with installation.servers[role].away():
        assert await failures(installation, requests) == expected(role, *NOT_IN_THE_INSTALLATION)
        body = {"sendTo": {"appkey": {"android": requests[0].body["sendTo"]["appkey"]["android"]}, "userScope": 1}}
        once = {**requests[1].body, **body}
        answer = await installation.http.post(
            "/v2/push", content=signed(once, *requests[1].secrets), headers={"Idempotency-Key": "k"}
        )
        assert answer.json()["result"] == (500 if role == "scheduling" else 0)


async def test_a_registry_without_an_owner_is_answered_like_one_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge_installation(tmp_path, BACKENDS, has_owner=True) as installation:
        requests = await valid_requests(installation)
        assert await failures(installation, requests) == expected(*NOT_IN_THE_INSTALLATION)
        monkeypatch.setattr(owner_channel, "TAKEOVER_S", 0.0)
        async with installation.owned_registry.standing_by():
            assert await failures(installation, requests) == expected("registry", *NOT_IN_THE_INSTALLATION)


async def test_requests_wait_for_the_registrys_next_owner(tmp_path: Path) -> None:
    """They are answered as if there had been an owner all the time, and each push is in the log once."""
    async with edge_installation(tmp_path, BACKENDS, has_owner=True) as installation:
        app = await installation.app()
        await installation.device(app, "t1", "alice")
        to_some = [{"userScope": 5, "token": {"android": ["t1"]}}, {"userScope": 4, "alias": ["alice"]}]
        style = {"basic": {"content": "c", "is_notif": 1}, "android": {"title": "t", "sound": True}}
        bodies = [{"sendTo": {"appkey": {"android": app.appkey}, **to}, "msgStyle": style} for to in to_some]
        async with installation.owned_registry.standing_by():
            before = installation.owned_registry.refused()
            waiting = [asyncio.create_task(installation.push(body, app.appkey)) for body in bodies]
            await until_holds(lambda: installation.owned_registry.refused() >= before + len(bodies))
            assert await installation.sent() == []
        assert [(await answer)["result"] for answer in waiting] == [0, 0]
        assert len(await installation.sent()) == len(bodies)
