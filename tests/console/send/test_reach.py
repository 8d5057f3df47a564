"""Whether a push needs an approval follows from the devices that it reaches, in every wording, and again when due."""

import itertools
from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules
from protos.accounts.v1.service_pb2 import UpdateTeamRequest
from protos.registry.v1.devices_pb2 import AddStags, DeviceCommand
from services.domain.command_writer import CommandWriter, device_command
from testkit.waiting import until
from tests.console.conftest import OPERATOR, ConsoleInstallation, Program, Programs, text_of
from tests.console.pushes.test_pages import device
from tests.console.send.test_draft_pages import drafts
from tests.console.send.test_pages import sent
from tests.console.shell.test_calls import TO_ALL, push

BROADCASTS = ApprovalRules(broadcasts=True)
DEVICES = 4


async def tag(console: ConsoleInstallation, appkey: str, number: int, *stags: str) -> None:
    writer = CommandWriter("test", console.log, console.peers, console.clock, 4)
    command = DeviceCommand(appkey=appkey, token=f"token-{number}", add_stags=AddStags(stags=stags))
    await writer.append_and_wait([device_command(command)])


async def app_with(console: ConsoleInstallation, rules: ApprovalRules = BROADCASTS, count: int = DEVICES) -> Any:
    """Return a team with these rules, and an app of it in which device n has the alias user-n and the tag only-n."""
    team_id = await console.team("News", sender="sender", approver="approver")
    await demand(console, team_id, rules)
    appkey = await console.app(team_id=team_id)
    for number in range(count):
        await device(console, appkey, f"token-{number}", f"user-{number}")
        await tag(console, appkey, number, f"only-{number}")
    return team_id, appkey


async def demand(console: ConsoleInstallation, team_id: str, rules: ApprovalRules) -> None:
    await console.accounts.UpdateTeam(UpdateTeamRequest(team_id=team_id, rules=rules, origin=OPERATOR))


async def needs_approval(program: Program, appkey: str, target: dict[str, Any]) -> bool:
    answer = await program.post(f"/apps/{appkey}/estimate", push(appkey, target))
    assert answer.status_code == 200, answer.text
    return bool(answer.json()["needs_approval"])


def wordings(chosen: tuple[int, ...], count: int = DEVICES) -> list[dict[str, Any]]:
    """Return ways to write the audience of the devices with these numbers."""
    others = [number for number in range(count) if number not in chosen]
    tokens, aliases = [f"token-{number}" for number in chosen], [f"user-{number}" for number in chosen]
    found: list[dict[str, Any]] = [
        {"userScope": 5, "token": {"android": [*tokens, *tokens, "nobody"]}},
        {"userScope": 3, "alias": [*aliases, "nobody"]},
        {"userScope": 4, "alias": aliases},
        {"userScope": 6, "stag": [[f"only-{number}"] for number in chosen]},
        {"userScope": 6, "not_stag": [[f"only-{number}"] for number in others] or [["nobody has this"]]},
        {
            "userScope": 8,
            "stag": [[f"only-{number}", "sports & <news>"] for number in chosen],
            "optfilter": {"android": {"activity_90": {">=": 0}}},
        },
    ]
    if not others:
        found += [TO_ALL, {"userScope": 7, "optfilter": {"android": {"locate_not": ["北京市"]}}}]
    return found


@pytest.mark.parametrize(
    "rules", [BROADCASTS, ApprovalRules(broadcasts=True, share_percent=75), ApprovalRules(above_devices=2)]
)
async def test_every_wording_of_an_audience_gets_the_same_decision(
    console: ConsoleInstallation,
    rules: ApprovalRules,
) -> None:
    team_id, appkey = await app_with(console, rules)
    program = await Programs(console).program(team_id, "sender")
    share = rules.share_percent or 50
    for size in range(1, DEVICES + 1):
        expected = 100 * size >= share * DEVICES if rules.broadcasts else size > rules.above_devices
        for chosen in itertools.islice(itertools.combinations(range(DEVICES), size), 2):
            decided = {str(target): await needs_approval(program, appkey, target) for target in wordings(chosen)}
            assert set(decided.values()) == {expected}, decided


async def test_a_push_that_is_divided_into_many_waits_for_an_approval(
    console: ConsoleInstallation,
) -> None:
    team_id, appkey = await app_with(console)
    program = await Programs(console).program(team_id, "sender")
    outcomes: list[str] = []
    for number in (0, 1, 2, 0):
        body = push(appkey, {"userScope": 3, "alias": [f"user-{number}"]})
        answers = [
            (await program.post(f"/apps/{appkey}/pushes", body, Idempotency_Key=f"key {number} {len(outcomes)}")).json()
            for _ in range(2)
        ]
        assert answers[0] == answers[1]
        outcomes.append(answers[0]["outcome"])
    assert outcomes == ["accepted", "draft", "draft", "draft"]
    console.clock.move(3600)
    body = push(appkey, {"userScope": 3, "alias": ["user-1"]})
    assert (await program.post(f"/apps/{appkey}/pushes", body)).json()["outcome"] == "accepted"
    assert len(await sent(console)) == 2


async def test_a_timed_push_whose_audience_has_grown_waits_as_a_draft_when_it_is_due(
    console: ConsoleInstallation,
) -> None:
    team_id, appkey = await app_with(console)
    program = await Programs(console).program(team_id, "sender")
    body = push(appkey, {"userScope": 6, "stag": [["vip"]]}, timed=2, send_time_interval=600)
    made = (await program.post(f"/apps/{appkey}/pushes", body)).json()
    assert made["outcome"] == "scheduled"
    for number in range(DEVICES):
        await tag(console, appkey, number, "vip")
    console.clock.move(600)

    async def submitted() -> Any:
        return [fact for fact in await drafts(console) if fact.HasField("submitted")]

    (fact,) = await until(submitted)
    draft = fact.submitted.draft
    assert (draft.held_task_key, draft.estimated_devices) == (made["task_key"], DEVICES)
    assert draft.task.pushes[0].msgid == made["msgids"][appkey]
    assert await sent(console) == []
    approver = await console.logged_in("approver")
    path = f"/drafts/{team_id}/{draft.draft_id}"
    page = await approver.get(path)
    words = text_of(page)
    assert f"It was scheduled as task {made['task_key']}." in words
    assert "It reaches 4 of 4 devices of News" in words
    assert "4 devices would get it now" in words
    assert "Stay inside" in text_of(await approver.get("/drafts")) or "Storm" in text_of(await approver.get("/drafts"))
    assert (await approver.post(f"{path}/approval", digest=draft.digest.hex())).status_code == 303

    async def is_sent() -> bool:
        return len(await sent(console)) == 1

    await until(is_sent)
    (command,) = await sent(console)
    assert (command.send.msgid, command.send.task_key) == (draft.task.pushes[0].msgid, draft.draft_id)


async def test_a_timed_push_is_decided_by_the_rules_of_the_time_when_it_is_due(
    console: ConsoleInstallation,
) -> None:
    team_id, appkey = await app_with(console, ApprovalRules())
    program = await Programs(console).program(team_id, "sender")
    body = push(appkey, TO_ALL, timed=2, send_time_interval=600)
    assert (await program.post(f"/apps/{appkey}/pushes", body)).json()["outcome"] == "scheduled"
    await demand(console, team_id, BROADCASTS)
    with console.servers["targeting"].away():
        console.clock.move(600)
        for _ in range(5):
            console.clock.move(1)
    console.clock.move(5)

    async def submitted() -> Any:
        console.clock.move(1)
        return [fact for fact in await drafts(console) if fact.HasField("submitted")]

    await until(submitted)
    assert await sent(console) == []


async def test_while_the_devices_cannot_be_counted_nothing_is_sent(
    console: ConsoleInstallation,
) -> None:
    team_id, appkey = await app_with(console)
    program = await Programs(console).program(team_id, "sender")
    with console.servers["targeting"].away():
        body = push(appkey, {"userScope": 3, "alias": ["user-0"]})
        refused = await program.post(f"/apps/{appkey}/pushes", body)
    assert (refused.status_code, await sent(console), await drafts(console)) == (503, [], [])
