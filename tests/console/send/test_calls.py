"""A push under an idempotency key: what a repeated call answers, and what it sends."""

import pytest

from edge.core.push import Pushes
from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import UpdateTeamRequest
from services.errors import UnavailableError
from tests.console.conftest import OPERATOR, ConsoleInstallation, Programs
from tests.console.send.test_pages import sent
from tests.console.shell.test_calls import SENT_TO_ALIAS, TO_ALL, app_of_team, demand_approval, push


async def test_a_push_is_sent_once_for_a_key(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    body = push(appkey, SENT_TO_ALIAS)
    path = f"/apps/{appkey}/pushes"
    estimate = (await sender.post(f"/apps/{appkey}/estimate", body)).json()
    of_list = {"appkey": appkey, "devices": 1, "unknown": ["nobody"], "app_devices": 2, "channels": None}
    assert estimate["audiences"] == [of_list]
    of_filter = (await sender.post(f"/apps/{appkey}/estimate", push(appkey, {"userScope": 6, "stag": ["none"]}))).json()
    assert of_filter["audiences"] == [{**of_list, "devices": 0, "unknown": [], "channels": {}}]
    assert (estimate["is_broadcast"], estimate["needs_approval"]) == (False, False)
    assert await sent(console) == []
    answers = [await sender.post(path, body, Idempotency_Key="storm-1") for _ in range(2)]
    first = answers[0].json()
    assert answers[1].json() == first
    assert (first["outcome"], first["devices"], list(first["msgids"])) == ("accepted", 1, [appkey])
    (command,) = await sent(console)
    assert command.send.msgid == first["msgids"][appkey]
    token_id = (await sender.get("/token")).json()["token_id"]
    assert command.meta.origin.actor == f"token/{token_id}"
    other = await sender.post(path, push(appkey, {"userScope": 4, "alias": "user-1"}), Idempotency_Key="storm-1")
    assert other.status_code == 400
    again = [(await sender.post(path, body)).json()["msgids"][appkey] for _ in range(2)]
    assert len({first["msgids"][appkey], *again}) == 3


async def test_a_push_that_became_a_draft_stays_one_under_its_key(
    console: ConsoleInstallation, programs: Programs
) -> None:
    team_id, appkey, sender = await app_of_team(console, programs, "sender")
    await demand_approval(console, team_id)
    path, body = f"/apps/{appkey}/pushes", push(appkey, TO_ALL)
    made = (await sender.post(path, body, Idempotency_Key="k")).json()
    assert made["outcome"] == "draft"
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=ApprovalRules(), origin=OPERATOR))
    assert (await sender.post(path, body, Idempotency_Key="k")).json() == made
    assert (await sender.post(f"{path}?at_most=1", body, Idempotency_Key="k")).json() == made
    other = await sender.post(path, push(appkey, SENT_TO_ALIAS), Idempotency_Key="k")
    assert (other.status_code, "which is a draft" in other.json()["detail"]) == (409, True)
    assert await sent(console) == []
    assert (await sender.post(path, body, Idempotency_Key="l")).json()["outcome"] == "accepted"


async def test_a_push_replaces_a_timed_one_once_for_a_key(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    path, body = f"/apps/{appkey}/pushes", push(appkey, TO_ALL, timed=2, send_time_interval=7200)
    former = (await sender.post(path, body)).json()["task_key"]
    later = push(appkey, TO_ALL, timed=2, send_time_interval=9000)
    answers = [(await sender.post(f"{path}?replaces={former}", later, Idempotency_Key="k")).json() for _ in range(2)]
    assert (answers[0], answers[0]["outcome"]) == (answers[1], "scheduled")
    statuses = {each["task_key"]: each["status"] for each in (await sender.get("/tasks")).json()["tasks"]}
    assert statuses == {former: "cancelled", answers[0]["task_key"]: "unsent"}
    late = await sender.post(f"{path}?replaces={former}", later, Idempotency_Key="another")
    assert (late.status_code, len((await sender.get("/tasks")).json()["tasks"])) == (409, 2)
    assert (await sender.post(f"{path}?replaces=none", later)).status_code == 404
    assert len((await sender.get("/tasks")).json()["tasks"]) == 2


async def test_a_replacement_is_made_that_failed_after_the_cancel(
    console: ConsoleInstallation, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    path, body = f"/apps/{appkey}/pushes", push(appkey, TO_ALL, timed=2, send_time_interval=7200)
    former = (await sender.post(path, body)).json()["task_key"]

    async def fail(*_: object) -> None:
        raise UnavailableError("the log does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(Pushes, "_create", fail)
        failed = await sender.post(f"{path}?replaces={former}", body, Idempotency_Key="k")
    assert failed.status_code == 503
    assert [each["status"] for each in (await sender.get("/tasks")).json()["tasks"]] == ["cancelled"]
    again = await sender.post(f"{path}?replaces={former}", body, Idempotency_Key="k")
    assert (again.status_code, again.json()["outcome"]) == (200, "scheduled")
    assert sorted(each["status"] for each in (await sender.get("/tasks")).json()["tasks"]) == ["cancelled", "unsent"]
