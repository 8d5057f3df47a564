"""Loosening the approval of pushes takes two administrators; tightening it is at once; an operator may do either."""

import asyncio
from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules, MemberRole, PendingChange
from protos.accounts.v1.drafts_pb2 import AdmitPushRequest, PushAudience
from protos.accounts.v1.service_pb2 import (
    CreateTokenRequest,
    CreateUserRequest,
    DecideChangeRequest,
    DecideChangeResponse,
    GetUsersRequest,
    GiveAppRequest,
    ListChangesRequest,
    ListTeamsRequest,
    ResetPasswordRequest,
    SetMemberRequest,
    UpdateTeamRequest,
    UpdateUserRequest,
    UserSummary,
)
from protos.push.v1.push_pb2 import Audience, Everyone
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.decide import CHANGE_MS
from services.errors import ConflictError, NotFoundError, PermissionDeniedError
from tests.services.accounts.conftest import APP, OPERATOR, AccountsHarness, origin_of

STRICT = ApprovalRules(broadcasts=True, share_percent=20, above_devices=100)


class Team:
    """A team with strict rules: two administrators, an approver and a sender."""

    def __init__(self, harness: AccountsHarness, people: list[UserSummary], team_id: str) -> None:
        self.harness, self.team_id = harness, team_id
        self.head, self.other, self.approver, self.sender = people

    async def rules(self, rules: ApprovalRules, by: UserSummary | None = None) -> PendingChange | None:
        origin = origin_of(by) if by else OPERATOR
        answer = await self.harness.accounts.UpdateTeam(
            UpdateTeamRequest(team_id=self.team_id, rules=rules, origin=origin)
        )
        return answer.pending if answer.HasField("pending") else None

    async def member(self, user: UserSummary, role: str, by: UserSummary) -> PendingChange | None:
        number = MemberRole.Value(f"MEMBER_ROLE_{role.upper()}") if role else 0
        asked = SetMemberRequest(team_id=self.team_id, user_id=user.user_id, role=number, origin=origin_of(by))  # type: ignore[arg-type]
        answer = await self.harness.accounts.SetMember(asked)
        return answer.pending if answer.HasField("pending") else None

    async def decide(
        self, change: PendingChange | None, by: UserSummary, *, confirmed: bool = True
    ) -> DecideChangeResponse:
        assert change is not None
        asked = DecideChangeRequest(change_id=change.change_id, confirmed=confirmed, origin=origin_of(by))
        return await self.harness.accounts.DecideChange(asked)  # type: ignore[no-any-return]

    async def now(self) -> ApprovalRules:
        return (await self.summary()).team.rules  # type: ignore[no-any-return]

    async def roles(self) -> dict[str, int]:
        return {member.user_id: member.role for member in (await self.summary()).team.members}

    async def summary(self) -> Any:
        (found,) = (await self.harness.accounts.ListTeams(ListTeamsRequest(team=self.team_id))).teams
        return found

    async def waiting(self) -> list[PendingChange]:
        return list((await self.harness.accounts.ListChanges(ListChangesRequest())).changes)


async def new_team(harness: AccountsHarness) -> Team:
    people = [await harness.user(login) for login in ("head", "other", "approver", "sender")]
    roles = zip(people, ("administrator", "administrator", "approver", "sender"), strict=True)
    team = Team(harness, people, await harness.team(*roles))
    await team.rules(STRICT)
    return team


@pytest.mark.parametrize(
    "looser",
    [
        ApprovalRules(),
        ApprovalRules(broadcasts=True, share_percent=20),
        ApprovalRules(broadcasts=True, share_percent=20, above_devices=101),
        ApprovalRules(broadcasts=True, share_percent=21, above_devices=100),
        ApprovalRules(broadcasts=True, above_devices=100),
        ApprovalRules(share_percent=20, above_devices=100),
    ],
)
async def test_looser_rules_wait_for_another_administrator(harness: AccountsHarness, looser: ApprovalRules) -> None:
    async with harness.running():
        team = await new_team(harness)
        change = await team.rules(looser, team.head)
        assert await team.rules(looser, team.head) == change, "a repetition proposes nothing more"
        assert (await team.now(), len(await team.waiting())) == (STRICT, 1)
        for person in (team.head, team.approver, team.sender):
            with pytest.raises(PermissionDeniedError):
                await team.decide(change, person)
        await team.decide(change, team.other)
        assert (await team.now(), await team.waiting()) == (looser, [])
        with pytest.raises(NotFoundError, match="does not wait any more"):
            await team.decide(change, team.other)
        (proposed,) = {fact.meta.origin.actor for fact in await harness.facts("accounts", "change_proposed")}
        (decided,) = await harness.facts("accounts", "change_decided")
        assert (proposed, decided.meta.origin.actor) == (f"user/{team.head.user_id}", f"user/{team.other.user_id}")
        assert decided.change_decided.settings[0].startswith("approval ")
    assert harness.digest() == await harness.rebuilt_digest()


async def test_tighter_rules_hold_at_once_also_beside_looser_ones_and_an_operator_needs_nobody(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        team = await new_team(harness)
        tighter = ApprovalRules(broadcasts=True, share_percent=10, above_devices=50)
        assert await team.rules(tighter, team.head) is None
        assert await team.now() == tighter
        change = await team.rules(ApprovalRules(broadcasts=True, share_percent=5, above_devices=1000), team.head)
        assert await team.now() == ApprovalRules(broadcasts=True, share_percent=5, above_devices=50)
        await team.rules(ApprovalRules(broadcasts=True, share_percent=5, above_devices=1), team.other)
        with pytest.raises(ConflictError, match="changed meanwhile"):
            await team.decide(change, team.other)
        assert await team.rules(ApprovalRules()) is None
        assert await team.now() == ApprovalRules()
        (last,) = (await harness.facts("accounts", "team"))[-1:]
        assert last.meta.origin.interface == "cli"
        assert await team.rules(ApprovalRules(above_devices=7), team.head) is None


async def test_a_change_is_taken_back_rejected_or_expires(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        await team.decide(await team.rules(ApprovalRules(), team.head), team.head, confirmed=False)
        await team.decide(await team.rules(ApprovalRules(), team.head), team.other, confirmed=False)
        change = await team.rules(ApprovalRules(), team.head)
        harness.clock.move(CHANGE_MS / 1000)
        with pytest.raises(NotFoundError):
            await team.decide(change, team.other)
        assert (await team.waiting(), await team.now()) == ([], STRICT)
        root = await harness.user("root", administrator=True)
        await team.decide(await team.rules(ApprovalRules(), team.head), root)
        assert await team.now() == ApprovalRules()


async def test_nobody_makes_a_second_account_of_his_own_an_approver(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        double = await harness.user("double")
        change = await team.member(double, "approver", team.head)
        assert double.user_id not in await team.roles()
        assert await team.member(double, "sender", team.head) is None
        promoted = await team.member(double, "administrator", team.head)
        assert (await team.roles())[double.user_id] == MemberRole.MEMBER_ROLE_SENDER
        with pytest.raises(PermissionDeniedError):
            await team.decide(promoted, double)
        await team.decide(change, team.other)
        assert (await team.roles())[double.user_id] == MemberRole.MEMBER_ROLE_APPROVER
        root = await harness.user("root", administrator=True)
        other_root = await harness.user("root2", administrator=True)
        made = await harness.accounts.CreateUser(
            CreateUserRequest(login="mine", administrator=True, origin=origin_of(root))
        )
        assert (made.user.administrator, bool(made.link_token)) == (False, True)
        again = await harness.accounts.UpdateUser(
            UpdateUserRequest(user_id=made.user.user_id, administrator=True, origin=origin_of(root))
        )
        assert again.pending == made.pending
        await team.decide(made.pending, other_root)
        (mine,) = (await harness.accounts.GetUsers(GetUsersRequest(user_ids=[made.user.user_id]))).users
        assert mine.administrator


async def test_a_new_password_link_of_an_approver_is_shown_to_whoever_confirms_it(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        root = await harness.user("root", administrator=True)
        other_root = await harness.user("root2", administrator=True)

        async def reset(user: UserSummary) -> Any:
            asked = ResetPasswordRequest(user_id=user.user_id, origin=origin_of(root))
            return await harness.accounts.ResetPassword(asked)

        assert (await reset(team.sender)).link_token
        assert (await reset(root)).link_token
        held = await reset(team.approver)
        assert (held.link_token, held.pending.new_link) == ("", team.approver.user_id)
        with pytest.raises(PermissionDeniedError):
            await team.decide(held.pending, root)
        confirmed = await team.decide(held.pending, other_root)
        assert confirmed.link_token.startswith("link_")
        await team.rules(ApprovalRules())
        assert (await reset(team.approver)).link_token


async def test_the_last_other_approver_is_not_removed_by_one_person(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        assert await team.member(team.other, "sender", team.head) is None
        change = await team.member(team.approver, "", team.head)
        assert team.approver.user_id in await team.roles()
        lowered = await team.member(team.approver, "viewer", team.head)
        assert len(await team.waiting()) == 2
        root = await harness.user("root", administrator=True)
        await team.decide(lowered, root)
        assert (await team.roles())[team.approver.user_id] == MemberRole.MEMBER_ROLE_VIEWER
        await team.decide(change, root)
        assert team.approver.user_id not in await team.roles()


async def test_an_app_leaves_its_rules_behind_only_with_two_persons(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        root = await harness.user("root", administrator=True)
        loose = await harness.team(appkeys=(), name="Loose")
        strict = await harness.team(appkeys=(), name="Strict")
        await harness.accounts.UpdateTeam(UpdateTeamRequest(team_id=strict, rules=STRICT, origin=OPERATOR))

        async def give(team_id: str) -> Any:
            return await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id=team_id, origin=origin_of(root)))

        changes = [(await give(team_id)).pending for team_id in (loose, "")]
        assert (await team.summary()).appkeys == [APP]
        with pytest.raises(PermissionDeniedError):
            await team.decide(changes[0], root)
        await team.decide(changes[0], team.head)
        assert (await team.summary()).appkeys == []
        with pytest.raises(ConflictError, match="changed meanwhile"):
            await team.decide(changes[1], team.head)
        assert not (await give(strict)).HasField("pending")


async def test_no_api_token_confirms_a_change(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        change = await team.rules(ApprovalRules(), team.head)
        assert change is not None
        create = CreateTokenRequest(
            team_id=team.team_id, name="t", role=MemberRole.MEMBER_ROLE_ADMINISTRATOR, origin=origin_of(team.other)
        )
        token_id = (await harness.accounts.CreateToken(create)).token.token_id
        origin = Origin(interface="console", actor=f"token/{token_id}")
        with pytest.raises(PermissionDeniedError):
            await harness.accounts.DecideChange(
                DecideChangeRequest(change_id=change.change_id, confirmed=True, origin=origin)
            )


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_a_kill_in_the_append_of_a_confirmation_leaves_it_to_be_confirmed_or_done(
    harness: AccountsHarness, kept: int
) -> None:
    async with harness.running():
        team = await new_team(harness)
        change = await team.rules(ApprovalRules(), team.head)
        harness.log.kill_at, harness.log.kept_records = lambda new: new.topic == "accounts", kept
        deciding = asyncio.create_task(team.decide(change, team.other))
        await harness.log.died.wait()
        await asyncio.gather(deciding, return_exceptions=True)
    harness.log.restart()
    async with harness.running():
        if kept < 2:
            assert len(await team.waiting()) == 1
            with_rules = await team.now() == STRICT
            if with_rules:
                await team.decide(change, team.other)
            else:
                with pytest.raises(ConflictError, match="changed meanwhile"):
                    await team.decide(change, team.other)
        assert await team.now() == ApprovalRules()
    assert harness.digest() == await harness.rebuilt_digest()


async def test_pushes_are_decided_by_the_rules_until_a_change_is_confirmed(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        harness.targeting.devices = {APP: 10}
        audience = PushAudience(appkey=APP, audience=Audience(everyone=Everyone()))
        ask = AdmitPushRequest(pushes=[audience], origin=origin_of(team.sender))
        change = await team.rules(ApprovalRules(), team.head)
        assert (await harness.drafts.AdmitPush(ask)).HasField("need")
        await team.decide(change, team.other)
        assert not (await harness.drafts.AdmitPush(ask)).HasField("need")
