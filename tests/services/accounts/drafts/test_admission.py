"""Which pushes are sent without an approval: by devices and not by wording, an hour together, again when due."""

import asyncio
from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules, MemberRole
from protos.accounts.v1.drafts_pb2 import (
    AdmitPushRequest,
    AdmitPushResponse,
    AdmitTaskRequest,
    ApprovalNeed,
    DraftStatus,
    GetDraftsRequest,
    PushAudience,
    StoredDraft,
)
from protos.accounts.v1.service_pb2 import CreateTokenRequest, RevokeTokenRequest, UpdateTeamRequest, UserSummary
from protos.push.v1.push_pb2 import Audience, Everyone, Filter, Message, SendPush, TagGroup
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.drafts.store import MAX_ADMITTED
from services.errors import PermissionDeniedError, UnavailableError
from testkit.waiting import until
from tests.services.accounts.conftest import APP, OPERATOR, OTHER_APP, AccountsHarness, origin_of

EVERYONE = Audience(everyone=Everyone())
BROADCASTS = ApprovalRules(broadcasts=True)
HOUR_S = 3600


def tagged(tag: int) -> Audience:
    return Audience(filter=Filter(tags=[TagGroup(tags=[tag])]))


class Team:
    """A team with two senders and an approver, whose app has 100 devices; tag n is that of n devices."""

    def __init__(self, harness: AccountsHarness, people: list[UserSummary], team_id: str) -> None:
        self.harness, self.team_id = harness, team_id
        self.sender, self.other, self.approver = people
        harness.targeting.devices = {APP: 100, OTHER_APP: 100}
        harness.targeting.tagged = {count: count for count in range(101)}

    async def rules(self, rules: ApprovalRules) -> None:
        request = UpdateTeamRequest(team_id=self.team_id, rules=rules, origin=OPERATOR)
        await self.harness.accounts.UpdateTeam(request)

    async def ask(
        self, key: str, audience: Audience, origin: Origin | None = None, appkey: str = APP, **more: Any
    ) -> AdmitPushResponse:
        request = AdmitPushRequest(
            pushes=[PushAudience(appkey=appkey, audience=audience)],
            push_key=key.encode(),
            origin=origin or origin_of(self.sender),
            **more,
        )
        return await self.harness.drafts.AdmitPush(request)  # type: ignore[no-any-return]

    async def is_admitted(self, key: str, audience: Audience, origin: Origin | None = None, **more: Any) -> bool:
        return not (await self.ask(key, audience, origin, **more)).HasField("need")

    async def due(self, task_key: str, audience: Audience, origin: Origin | None = None) -> str:
        """Ask whether a timed task may be sent; return the draft that it has become, or ""."""
        push = SendPush(
            msgid=7, id_count=1, appkey=APP, audience=audience, message=Message(content="hi"), request_json='{"a":1}'
        )
        request = AdmitTaskRequest(task_key=task_key, pushes=[push], origin=origin or origin_of(self.sender))
        return str((await self.harness.drafts.AdmitTask(request)).draft_id)

    async def token(self, name: str = "ci") -> tuple[str, Origin]:
        """Return the id of an API token that the sender made, and its origin."""
        create = CreateTokenRequest(
            team_id=self.team_id, name=name, role=MemberRole.MEMBER_ROLE_SENDER, origin=origin_of(self.sender)
        )
        token_id = str((await self.harness.accounts.CreateToken(create)).token.token_id)
        return token_id, Origin(interface="console", actor=f"token/{token_id}")

    async def draft(self, draft_id: str) -> StoredDraft:
        (draft,) = (await self.harness.drafts.GetDrafts(GetDraftsRequest(draft_ids=[draft_id]))).drafts
        return draft  # type: ignore[no-any-return]


async def new_team(harness: AccountsHarness, rules: ApprovalRules = BROADCASTS) -> Team:
    people = [await harness.user(login) for login in ("sender", "other", "approver")]
    roles = zip(people, ("administrator", "sender", "approver"), strict=True)
    team = Team(harness, people, await harness.team(*roles, appkeys=(APP, OTHER_APP)))
    await team.rules(rules)
    return team


async def test_a_push_to_half_of_the_devices_is_a_broadcast_however_it_is_written(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        decided = [await team.is_admitted("", audience) for audience in (EVERYONE, tagged(100), tagged(50), tagged(49))]
        assert decided == [False, False, False, True]
        need = (await team.ask("", tagged(50))).need
        assert (need.rule, need.devices, need.app_devices) == (ApprovalNeed.RULE_BROADCASTS, 50, 100)
        await team.rules(ApprovalRules(broadcasts=True, share_percent=10))
        assert [await team.is_admitted("", tagged(count)) for count in (9, 10)] == [True, False]
        await team.rules(ApprovalRules())
        assert await team.is_admitted("", EVERYONE)
        assert await harness.facts("drafts") == []


async def test_without_rules_targeting_is_not_asked_and_with_rules_nothing_is_sent_while_it_is_away(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        team = await new_team(harness, ApprovalRules())
        harness.targeting.is_away = True
        assert await team.is_admitted("a", EVERYONE)
        await team.rules(BROADCASTS)
        with pytest.raises(UnavailableError):
            await team.ask("a", tagged(1))
        with pytest.raises(UnavailableError):
            await team.due("task", tagged(1))
        assert await harness.facts("drafts") == []


async def test_ten_pushes_to_a_tenth_of_the_devices_are_as_one_to_all(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        decided = [await team.is_admitted(f"p{number}", tagged(10)) for number in range(10)]
        assert decided == [True] * 4 + [False] * 6
        assert await team.is_admitted("p0", tagged(10)), "a repeated push counts once"
        assert not await team.is_admitted("p0", tagged(20)), "the same push, which reaches more devices now"
        assert await team.is_admitted("others", tagged(10), origin_of(team.other))
        assert await team.is_admitted("another app", tagged(10), appkey=OTHER_APP)
        harness.clock.move(HOUR_S)
        assert await team.is_admitted("later", tagged(40))
        await team.rules(ApprovalRules(above_devices=50))
        assert await team.is_admitted("another app too", tagged(10), appkey=OTHER_APP)
        need = (await team.ask("more", tagged(1), appkey=OTHER_APP)).need
        assert (need.rule, need.devices, need.earlier_devices) == (ApprovalNeed.RULE_ABOVE_DEVICES, 1, 50)
    async with harness.running():
        assert not await team.is_admitted("after a restart", tagged(1))
    assert harness.digest() == await harness.rebuilt_digest()


async def test_pushes_of_all_tokens_of_a_user_count_with_the_user(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        (first, by_first), (_, by_second) = await team.token(), await team.token("other")
        assert await team.is_admitted("a", tagged(20), by_first)
        assert await team.is_admitted("b", tagged(20), by_second)
        assert not await team.is_admitted("c", tagged(20))
        await harness.accounts.RevokeToken(RevokeTokenRequest(token_id=first, origin=origin_of(team.sender)))
        assert not await team.is_admitted("d", tagged(20), by_second)


async def test_of_two_pushes_at_the_same_time_the_second_one_counts_the_first(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        decided = await asyncio.gather(*(team.is_admitted(f"p{number}", tagged(30)) for number in range(5)))
        assert sorted(decided) == [False, False, False, False, True]


async def test_many_small_pushes_keep_a_bounded_number_of_rows_and_count_all(harness: AccountsHarness) -> None:
    async with harness.running() as role:
        team = await new_team(harness, ApprovalRules(above_devices=MAX_ADMITTED + 20))
        for number in range(MAX_ADMITTED + 20):
            assert await team.is_admitted(f"p{number}", tagged(1))
        assert not await team.is_admitted("one more", tagged(1))
        rows = role.services[0].store.rows  # type: ignore[attr-defined]
        assert rows.execute("SELECT count(*), sum(devices) FROM admitted").fetchone() == (
            MAX_ADMITTED,
            MAX_ADMITTED + 20,
        )


async def test_a_timed_push_is_decided_by_itself_and_counts_when_it_falls_due(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        assert await team.is_admitted("now", tagged(40))
        assert await team.is_admitted("timed", tagged(40), is_timed=True)
        assert not await team.is_admitted("timed", tagged(50), is_timed=True)
        assert len(await harness.facts("drafts", "admitted")) == 1
        harness.clock.move(HOUR_S)
        assert [await team.due(f"task {number}", tagged(20)) for number in range(2)] == ["", ""]
        assert await team.due("task 2", tagged(20)) != ""
        assert [await team.due(f"task {number}", tagged(20)) for number in range(2)] == ["", ""], "as decided before"


async def test_a_task_that_needs_an_approval_when_it_falls_due_waits_as_a_draft_and_is_sent_once_approved(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        team = await new_team(harness)
        token_id, by_token = await team.token()
        await harness.accounts.RevokeToken(RevokeTokenRequest(token_id=token_id, origin=origin_of(team.sender)))
        draft_id = await team.due("task", tagged(60), by_token)
        assert await team.due("task", tagged(1), by_token) == draft_id, "the answer stays what it was"
        stored = await team.draft(draft_id)
        assert (stored.status, stored.draft.held_task_key) == (DraftStatus.DRAFT_STATUS_WAITING, "task")
        assert (stored.draft.need.devices, stored.draft.need.app_devices) == (60, 100)
        assert list(stored.draft.authors) == [f"token/{token_id}", f"user/{team.sender.user_id}"]
        with pytest.raises(PermissionDeniedError, match="wrote or changed"):
            await harness.approve(team.sender, stored)
        await harness.approve(team.approver, stored)

        async def is_sent() -> bool:
            return len(await harness.facts("task-commands")) == 1

        await until(is_sent)
        (command,) = await harness.facts("task-commands")
        assert (command.task_key, command.create.pushes[0].msgid) == (draft_id, 7)
        assert await team.due(draft_id, EVERYONE, by_token) == "", "an approved draft has its approval"
        assert len(await harness.facts("drafts", "submitted")) == 1


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_kill_in_the_append_of_the_decision_decides_nothing_twice(harness: AccountsHarness, kept: int) -> None:
    async with harness.running():
        team = await new_team(harness)
        harness.log.kill_at, harness.log.kept_records = lambda new: new.topic == "drafts", kept
        asking = asyncio.create_task(team.due("task", tagged(60)))
        await harness.log.died.wait()
        await asyncio.gather(asking, return_exceptions=True)
    harness.log.restart()
    async with harness.running():
        draft_id = await team.due("task", tagged(60))
        assert await team.due("task", tagged(60)) == draft_id
        assert len(await harness.facts("drafts", "submitted")) == 1
    assert harness.digest() == await harness.rebuilt_digest()


async def test_only_accounts_that_may_send_for_the_team_are_answered(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        stranger = await harness.user("stranger")
        with pytest.raises(PermissionDeniedError):
            await team.ask("", tagged(1), origin_of(stranger))
