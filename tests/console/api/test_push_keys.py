"""A push under an idempotency key: what a repeated call answers, and what it sends."""

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import UpdateTeamRequest
from tests.console.api.conftest import Programs
from tests.console.api.test_calls import SENT_TO_ALIAS, TO_ALL, app_of_team, demand_approval, push
from tests.console.conftest import OPERATOR, ConsoleInstallation
from tests.console.send.test_send import sent


async def test_a_push_is_sent_once_for_a_key(console: ConsoleInstallation, programs: Programs) -> None:
    _, appkey, sender = await app_of_team(console, programs, "sender")
    body = push(appkey, SENT_TO_ALIAS)
    path = f"/apps/{appkey}/pushes"
    estimate = (await sender.post(f"/apps/{appkey}/estimate", body)).json()
    assert estimate["audiences"] == [{"appkey": appkey, "devices": 1, "unknown": ["nobody"]}]
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
