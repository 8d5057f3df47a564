"""Erasures of persons, which wait for another administrator where the team asks for a second person."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules, MemberRole, PendingChange
from protos.accounts.v1.service_pb2 import (
    CreateTokenRequest,
    DecideChangeRequest,
    ErasePersonRequest,
    ErasePersonResponse,
    ListChangesRequest,
    SetMemberRequest,
    UpdateTeamRequest,
    UserSummary,
)
from protos.registry.v1.devices_pb2 import Device
from protos.runtime.v1.log_pb2 import Origin
from services.accounts import erasures
from services.accounts.decide import CHANGE_MS
from services.domain.sealed_log import SealedLog
from services.domain.sealing import Sealer, is_name
from services.errors import NotFoundError, PermissionDeniedError, UnavailableError
from services.log.port import Partition
from testkit.faults.crashing_log import KillingLog, records_of
from testkit.persons import erasure, key_ring
from testkit.waiting import until, until_holds
from tests.services.accounts.conftest import APP, OPERATOR, AccountsHarness, origin_of

ALIAS = "canary-51ab-alias"
RULES = ApprovalRules(erasures=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasures, "_RETRY_S", 0)


@pytest.fixture
def sealed(harness: AccountsHarness, tmp_path: Path) -> SealedLog:
    """Seal what the harness appends; its log stays the one that can be killed."""
    sealed = SealedLog(harness.log._log, Sealer(key_ring(tmp_path / "keys" / "persons")), seals=True)
    harness.log = KillingLog(sealed)
    return sealed


class Team:
    """A team of two administrators and an approver, which asks for a second person."""

    def __init__(self, harness: AccountsHarness, people: list[UserSummary], team_id: str) -> None:
        self.harness, self.team_id = harness, team_id
        self.head, self.other, self.approver = people

    async def rules(self, rules: ApprovalRules, origin: Origin) -> Any:
        return await self.harness.accounts.UpdateTeam(
            UpdateTeamRequest(team_id=self.team_id, rules=rules, origin=origin)
        )

    async def erase(self, origin: Origin, **person: Any) -> ErasePersonResponse:
        request = ErasePersonRequest(appkey=APP, origin=origin, **(person or {"alias": ALIAS}))
        return await self.harness.accounts.ErasePerson(request)  # type: ignore[no-any-return]

    async def decide(self, change: PendingChange, by: UserSummary, *, confirmed: bool = True) -> None:
        asked = DecideChangeRequest(change_id=change.change_id, confirmed=confirmed, origin=origin_of(by))
        await self.harness.accounts.DecideChange(asked)

    async def waiting(self) -> list[PendingChange]:
        return list((await self.harness.accounts.ListChanges(ListChangesRequest())).changes)

    async def sent(self) -> list[Any]:
        return await self.harness.facts("accounts", "erasure_sent")


async def new_team(harness: AccountsHarness, rules: ApprovalRules = RULES) -> Team:
    people = [await harness.user(login) for login in ("head", "other", "approver")]
    roles = zip(people, ("administrator", "administrator", "approver"), strict=True)
    team = Team(harness, people, await harness.team(*roles))
    await team.rules(rules, OPERATOR)
    return team


def state_bytes(harness: AccountsHarness) -> bytes:
    return b"".join(path.read_bytes() for path in harness.settings.state_dir("accounts").iterdir())


async def test_an_erasure_waits_for_another_administrator(harness: AccountsHarness, sealed: SealedLog) -> None:
    async with harness.running():
        team = await new_team(harness)
        answer = await team.erase(origin_of(team.head))
        change = answer.pending
        assert (answer.devices, answer.time_ms, answer.erasure_id) == (2, 0, change.erase.erasure_id)
        assert change.expires_ms == harness.clock.now_ms() + CHANGE_MS
        assert await team.erase(origin_of(team.other)) == answer, "the same erasure waits already"
        assert (await team.waiting(), harness.registry.erasures) == ([change], [])
        for person in (team.head, team.approver):
            with pytest.raises(PermissionDeniedError):
                await team.decide(change, person)
        await team.decide(change, team.other)
        await until(team.sent)
        (asked,) = harness.registry.erasures
        assert (asked.erasure_id, asked.alias) == (change.erase.erasure_id, ALIAS)
        assert asked.origin.actor == f"user/{team.head.user_id}"
        assert await team.waiting() == []
        (decided,) = await harness.facts("accounts", "change_decided")
        assert decided.change_decided.settings == [f"erasure {asked.erasure_id}", f"app {APP}", "2 devices"]
        device = Device(appkey=APP, token="token-1", partition=1, number=2)
        await sealed.append([erasure(sealed.sealer, APP, [device], [ALIAS], time_ms=harness.clock.now_ms())])

        async def is_purged() -> bool:
            harness.clock.move(harness.settings.erasure_batch_s)
            return ALIAS.encode() not in state_bytes(harness)

        await until(is_purged)
        stored = await records_of(sealed._log, Partition("accounts", 0))
        assert not [record for record in stored if ALIAS.encode() in record.key + record.value]
    assert await harness.rebuilt_digest() == harness.digest()
    proposed = await harness.facts("accounts", "change_proposed")
    assert {is_name(fact.change_proposed.change.erase.alias) for fact in proposed} == {True}


async def test_who_made_the_token_that_asked_may_take_it_back_and_not_confirm_it(
    harness: AccountsHarness, sealed: SealedLog
) -> None:
    async with harness.running():
        team = await new_team(harness)
        role = MemberRole.MEMBER_ROLE_ADMINISTRATOR
        create = CreateTokenRequest(team_id=team.team_id, name="t", role=role, origin=origin_of(team.head))
        token_id = (await harness.accounts.CreateToken(create)).token.token_id
        by_token = Origin(interface="console", actor=f"token/{token_id}")
        change = (await team.erase(by_token)).pending
        with pytest.raises(PermissionDeniedError):
            await team.decide(change, team.head)
        await team.decide(change, team.head, confirmed=False)
        other = (await team.erase(by_token, token="TOKEN-1")).pending
        assert other.erase.token == "token-1", "as the device has it"
        await team.decide(other, team.other)
        await until(team.sent)
        assert [request.token for request in harness.registry.erasures] == ["token-1"]


async def test_at_once_where_no_team_asks_and_for_an_operator(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness, ApprovalRules(broadcasts=True))
        done = await team.erase(origin_of(team.head))
        assert (done.HasField("pending"), bool(done.time_ms)) == (False, True)
        await team.rules(RULES, OPERATOR)
        assert not (await team.erase(OPERATOR)).HasField("pending")
        assert len(harness.registry.erasures) == 2
        trial = await team.erase(origin_of(team.head), alias=ALIAS, dry_run=True)
        assert (trial.devices, trial.HasField("pending")) == (2, False)
        with pytest.raises(PermissionDeniedError):
            await team.erase(origin_of(team.approver), alias=ALIAS, dry_run=True)
        with pytest.raises(UnavailableError, match="does not seal"):
            await team.erase(origin_of(team.head))
        assert ALIAS.encode() not in state_bytes(harness)


async def test_one_that_is_rejected_or_expires_erases_nobody(harness: AccountsHarness, sealed: SealedLog) -> None:
    async with harness.running():
        team = await new_team(harness)
        await team.decide((await team.erase(origin_of(team.head))).pending, team.other, confirmed=False)
        change = (await team.erase(origin_of(team.head))).pending
        harness.clock.move(CHANGE_MS / 1000)
        with pytest.raises(NotFoundError):
            await team.decide(change, team.other)
        assert (await team.waiting(), harness.registry.erasures, await team.sent()) == ([], [], [])


async def test_what_the_registry_cannot_do_yet_is_tried_again_and_ends_where_nobody_is_found(
    harness: AccountsHarness, sealed: SealedLog
) -> None:
    async with harness.running():
        team = await new_team(harness)
        harness.registry.error = UnavailableError("away")
        await team.decide((await team.erase(origin_of(team.head))).pending, team.other)
        await until_holds(lambda: len(harness.registry.erasures) > 1)
        assert await team.sent() == []
        harness.registry.error = NotFoundError("no device")
        (sent,) = await until(team.sent)
        assert sent.erasure_sent.nobody_found


async def test_a_kill_before_it_is_noted_repeats_the_same_erasure(harness: AccountsHarness, sealed: SealedLog) -> None:
    async with harness.running():
        team = await new_team(harness)
        change = (await team.erase(origin_of(team.head))).pending
        harness.log.kill_at = lambda new: bool(harness.registry.erasures)
        deciding = asyncio.create_task(team.decide(change, team.other))
        await harness.log.died.wait()
        await asyncio.gather(deciding, return_exceptions=True)
    harness.log.restart()
    async with harness.running():
        await until(team.sent)
    assert {(each.erasure_id, each.alias) for each in harness.registry.erasures} == {(change.erase.erasure_id, ALIAS)}
    assert len(harness.registry.erasures) == 2
    assert await harness.rebuilt_digest() == harness.digest()


async def test_nobody_alone_makes_the_second_person_or_drops_the_rule(harness: AccountsHarness) -> None:
    async with harness.running():
        team = await new_team(harness)
        dropped = await team.rules(ApprovalRules(), origin_of(team.head))
        assert (dropped.HasField("pending"), dropped.team.team.rules) == (True, RULES)

        async def set_role(user: UserSummary, role: "MemberRole.ValueType") -> bool:
            asked = SetMemberRequest(team_id=team.team_id, user_id=user.user_id, role=role, origin=origin_of(team.head))
            return (await harness.accounts.SetMember(asked)).HasField("pending")  # type: ignore[no-any-return]

        double = await harness.user("double")
        assert not await set_role(double, MemberRole.MEMBER_ROLE_APPROVER)
        assert await set_role(double, MemberRole.MEMBER_ROLE_ADMINISTRATOR)
        assert await set_role(team.other, MemberRole.MEMBER_ROLE_VIEWER), "the last other administrator"
        tighter = ApprovalRules(erasures=True, broadcasts=True)
        assert not (await team.rules(tighter, origin_of(team.head))).HasField("pending")
        assert await set_role(team.approver, MemberRole.MEMBER_ROLE_ADMINISTRATOR)
