"""Users, one-time links, teams and API tokens: permissions for changes, facts in the log, and front ends' view."""

from typing import Any

import pytest

from protos.accounts.v1.accounts_pb2 import ApprovalRules, LinkPurpose, MemberRole, Subject
from protos.accounts.v1.service_pb2 import (
    CheckLinkRequest,
    CreateTeamRequest,
    CreateTokenRequest,
    CreateUserRequest,
    GetUsersRequest,
    GiveAppRequest,
    ListTeamsRequest,
    ListTokensRequest,
    ListUsersRequest,
    NoteTokenUsesRequest,
    ResetPasswordRequest,
    RevokeTokenRequest,
    SetMemberRequest,
    UpdateTeamRequest,
    UpdateUserRequest,
    UseLinkRequest,
)
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.decide import LINK_MS
from services.domain.apps import AppDirectory
from services.domain.permissions import Action, Role, may
from services.errors import (
    CarillonError,
    ConflictError,
    InputError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from services.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.services.accounts.conftest import APP, FRONT_END, OPERATOR, OTHER_APP, PASSWORD, AccountsHarness, origin_of
from tests.services.accounts.test_decide_teams import device_of

VIEWER, ADMINISTRATOR = MemberRole.MEMBER_ROLE_VIEWER, MemberRole.MEMBER_ROLE_ADMINISTRATOR


async def use_link(harness: AccountsHarness, token: str, password: str = PASSWORD) -> Any:
    return await harness.log_ins.UseLink(UseLinkRequest(link_token=token, new_password=password, origin=FRONT_END))


async def test_the_first_administrator_is_invited_by_a_link_that_works_once(harness: AccountsHarness) -> None:
    async with harness.running():
        made = await harness.accounts.CreateUser(
            CreateUserRequest(login="root", administrator=True, zone="Asia/Shanghai", locale="zh-CN", origin=OPERATOR)
        )
        assert made.link_expires_ms == harness.clock.now_ms() + LINK_MS
        checked = await harness.log_ins.CheckLink(CheckLinkRequest(link_token=made.link_token))
        assert checked.user == made.user
        assert checked.purpose == LinkPurpose.LINK_PURPOSE_INVITATION
        with pytest.raises(InputError, match="12 to 256 characters"):
            await use_link(harness, made.link_token, "short")
        user = (await use_link(harness, made.link_token)).user
        assert (user.administrator, user.zone, user.locale, user.has_password) == (True, "Asia/Shanghai", "zh-CN", True)
        with pytest.raises(NotFoundError, match="ask an administrator"):
            await use_link(harness, made.link_token)
        assert await harness.result("root") == "OK"
        facts = await harness.facts("accounts")
        assert [fact.WhichOneof("fact") for fact in facts] == ["user", "link", "user"]
        assert facts[0].meta.origin == OPERATOR
        assert facts[2].meta.origin.actor == f"user/{user.user_id}"
        for record in await records_of(harness.log, Partition("accounts", 0)):
            assert made.link_token.encode() not in record.value
    async with harness.running():
        with pytest.raises(NotFoundError):
            await use_link(harness, made.link_token)


async def test_a_link_ends_by_time_by_a_newer_one_and_with_its_user(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        reset = ResetPasswordRequest(user_id=alice.user_id, origin=OPERATOR)
        first, second = [(await harness.accounts.ResetPassword(reset)).link_token for _ in range(2)]
        purpose = (await harness.log_ins.CheckLink(CheckLinkRequest(link_token=second))).purpose
        assert purpose == LinkPurpose.LINK_PURPOSE_PASSWORD_RESET
        changed = second[:-1] + ("A" if second[-1] != "A" else "B")
        for wrong in (first, changed, "", "link_0_x"):
            with pytest.raises(NotFoundError):
                await use_link(harness, wrong)
        assert await harness.result("alice") == "OK"
        harness.clock.move(LINK_MS // 1000)
        with pytest.raises(NotFoundError):
            await use_link(harness, second)
        third = (await harness.accounts.ResetPassword(reset)).link_token
        disable = UpdateUserRequest(user_id=alice.user_id, disabled=True, origin=OPERATOR)
        await harness.accounts.UpdateUser(disable)
        with pytest.raises(NotFoundError):
            await use_link(harness, third)
        with pytest.raises(ConflictError, match="disabled"):
            await harness.accounts.ResetPassword(reset)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (CreateUserRequest(login="ALICE"), "there is a user 'ALICE' already"),
        (CreateUserRequest(login="a b"), "login must have"),
        (CreateUserRequest(login="bob", zone="Mars/Olympus"), "zone must be"),
        (CreateUserRequest(login="bob", locale="!"), "locale must be"),
        (CreateUserRequest(login="bob", display_name="x" * 65), "display_name must have"),
        (CreateUserRequest(login="bob", subject=Subject(issuer="i")), "subject must have"),
    ],
)
async def test_a_wrong_user_is_refused_with_the_field(
    harness: AccountsHarness, request_: CreateUserRequest, told: str
) -> None:
    async with harness.running():
        await harness.user("alice")
        before = len(await harness.facts("accounts"))
        request_.origin.CopyFrom(OPERATOR)
        with pytest.raises(CarillonError, match=told):
            await harness.accounts.CreateUser(request_)
        assert len(await harness.facts("accounts")) == before


async def test_users_change_what_is_theirs_and_administrators_the_rest(harness: AccountsHarness) -> None:
    async with harness.running():
        root, alice = await harness.user("root", administrator=True), await harness.user("alice")

        async def update(by: Origin, **fields: Any) -> Any:
            return (await harness.accounts.UpdateUser(UpdateUserRequest(origin=by, **fields))).user

        user = await update(origin_of(alice), user_id=alice.user_id, locale="en", display_name="Alice")
        assert (user.locale, user.display_name) == ("en", "Alice")
        for fields in ({"administrator": True}, {"disabled": False}, {"remove_totp": True}):
            with pytest.raises(PermissionDeniedError):
                await update(origin_of(alice), user_id=alice.user_id, **fields)
        with pytest.raises(PermissionDeniedError):
            await update(origin_of(alice), user_id=root.user_id, locale="en")
        with pytest.raises(PermissionDeniedError):
            await update(FRONT_END, user_id=alice.user_id, locale="de")
        with pytest.raises(ConflictError, match="no administrator would be left"):
            await update(origin_of(root), user_id=root.user_id, disabled=True)
        await update(origin_of(root), user_id=alice.user_id, administrator=True)
        await update(origin_of(alice), user_id=root.user_id, disabled=True)
        with pytest.raises(PermissionDeniedError):
            await update(origin_of(root), user_id=alice.user_id, disabled=True)
        last = (await harness.facts("accounts", "user"))[-1]
        assert (last.user.action, list(last.user.settings)) == ("set", ["disabled on", "sessions ended"])
        assert last.meta.origin.actor == f"user/{alice.user_id}"
        users = (await harness.accounts.ListUsers(ListUsersRequest())).users
        assert [user.login for user in users] == ["alice", "root"]
        some = await harness.accounts.GetUsers(GetUsersRequest(user_ids=[root.user_id, "unknown", alice.user_id]))
        assert [user.login for user in some.users] == ["root", "alice"]
        some = await harness.accounts.GetUsers(GetUsersRequest(logins=["unknown", " Alice"]))
        assert [user.login for user in some.users] == ["alice"]


async def test_a_front_end_sees_at_once_that_a_session_has_ended_or_a_user_is_disabled(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        directory = harness.directory_of_accounts
        alice = await harness.user("alice")
        team_id = await harness.team((alice, "sender"))
        await directory.refresh()
        user = directory.session(alice.user_id, alice.session_epoch)
        assert user is not None
        assert (user.login, user.password_hash, user.sealed_totp_secret) == ("alice", "", b"")
        assert directory.session(alice.user_id, alice.session_epoch + 1) is None
        actor = directory.actor_of_user(alice.user_id)
        assert (actor.roles, directory.team_of(APP)) == ({team_id: Role.SENDER}, team_id)
        assert directory.apps_of(team_id) == {APP}
        assert may(actor, Action.SEND, directory.team_of(APP))
        assert not may(actor, Action.SEND, directory.team_of("1999999999"))
        end = UpdateUserRequest(user_id=alice.user_id, end_sessions=True, origin=origin_of(alice))
        await harness.accounts.UpdateUser(end)
        await directory.refresh()
        assert directory.session(alice.user_id, alice.session_epoch) is None
        assert directory.session(alice.user_id, alice.session_epoch + 1) is not None
        disable = UpdateUserRequest(user_id=alice.user_id, disabled=True, origin=OPERATOR)
        epoch = (await harness.accounts.UpdateUser(disable)).user.session_epoch
        await directory.refresh()
        assert directory.session(alice.user_id, epoch) is None
        assert not may(directory.actor_of_user(alice.user_id), Action.VIEW, team_id)
        assert not may(directory.actor_of_user("unknown"), Action.CHANGE_OWN_ACCOUNT)


async def test_a_team_is_changed_by_its_administrators(harness: AccountsHarness) -> None:
    async with harness.running():
        boss, viewer = await harness.user("boss"), await harness.user("viewer")
        team_id = await harness.team((boss, "administrator"))
        member = SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=VIEWER, origin=origin_of(boss))
        await harness.accounts.SetMember(member)
        rules = ApprovalRules(broadcasts=True, above_devices=1000)
        update = UpdateTeamRequest(team_id=team_id, rules=rules, name="Daily", origin=origin_of(viewer))
        for call, request in (
            (harness.accounts.UpdateTeam, update),
            (
                harness.accounts.SetMember,
                SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=ADMINISTRATOR),
            ),
            (harness.accounts.CreateTeam, CreateTeamRequest(name="Mine")),
            (harness.accounts.GiveApp, GiveAppRequest(appkey=APP, team_id=team_id)),
            (harness.accounts.SetTestDevices, device_of(team_id, "t1", "Ann's phone")),
        ):
            request.origin.CopyFrom(origin_of(viewer))
            with pytest.raises(PermissionDeniedError):
                await call(request)
        update.origin.CopyFrom(origin_of(boss))
        team = (await harness.accounts.UpdateTeam(update)).team
        assert (team.team.name, team.team.rules, list(team.appkeys)) == ("Daily", rules, [APP])
        last = (await harness.facts("accounts", "team"))[-1]
        assert list(last.team.settings) == ["name Daily", "approval broadcasts from 50 %, above 1000 devices"]
        count = len(await harness.facts("accounts"))
        await harness.accounts.UpdateTeam(update)
        assert len(await harness.facts("accounts")) == count
        leave = SetMemberRequest(team_id=team_id, user_id=viewer.user_id, origin=origin_of(boss))
        left = (await harness.accounts.SetMember(leave)).team.team
        assert [(one.user_id, one.role) for one in left.members] == [(boss.user_id, ADMINISTRATOR)]
        with pytest.raises(ConflictError, match="there is a team 'Daily' already"):
            await harness.accounts.CreateTeam(CreateTeamRequest(name="daily ", origin=OPERATOR))
        with pytest.raises(InputError, match="role must be"):
            await harness.accounts.SetMember(
                SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=9, origin=OPERATOR)  # type: ignore[arg-type]
            )


async def test_an_app_is_not_said_to_be_unknown_while_the_directory_is_behind(
    harness: AccountsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(directory: AppDirectory) -> bool:
        return False

    async with harness.running():
        team_id = await harness.team()
        monkeypatch.setattr(AppDirectory, "refresh", fail)
        with pytest.raises(UnavailableError, match="app directory"):
            await harness.accounts.GiveApp(GiveAppRequest(appkey="1", team_id=team_id, origin=OPERATOR))
        await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id=team_id, origin=OPERATOR))


async def test_an_app_belongs_to_one_team(harness: AccountsHarness) -> None:
    async with harness.running():
        first = await harness.team(appkeys=[APP, OTHER_APP], name="First")
        second = await harness.team(appkeys=[], name="Second")
        await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id=second, origin=OPERATOR))
        teams = (await harness.accounts.ListTeams(ListTeamsRequest())).teams
        assert [(team.team.name, list(team.appkeys)) for team in teams] == [("First", [OTHER_APP]), ("Second", [APP])]
        for name, expected in (("second ", [second]), (first, [first]), ("third", []), ("", [])):
            found = await harness.accounts.ListTeams(ListTeamsRequest(team=name))
            assert [team.team.team_id for team in found.teams] == expected
        with pytest.raises(NotFoundError, match="no app"):
            await harness.accounts.GiveApp(GiveAppRequest(appkey="1", team_id=first, origin=OPERATOR))
        with pytest.raises(NotFoundError, match="no team"):
            await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id="x", origin=OPERATOR))
        await harness.accounts.GiveApp(GiveAppRequest(appkey=APP, origin=OPERATOR))
        await harness.directory_of_accounts.refresh()
        assert harness.directory_of_accounts.team_of(APP) == ""
        assert harness.directory_of_accounts.apps_of(first) == {OTHER_APP}
        assert not harness.directory_of_accounts.apps_of(second)


async def test_an_api_token_is_shown_once_and_ends_by_time_and_by_revocation(harness: AccountsHarness) -> None:
    async with harness.running():
        boss = await harness.user("boss")
        team_id = await harness.team((boss, "administrator"))
        expires_ms = harness.clock.now_ms() + 60_000
        create = CreateTokenRequest(team_id=team_id, name="ci", role=2, expires_in_s=60, origin=origin_of(boss))  # type: ignore[arg-type]
        made = await harness.accounts.CreateToken(create)
        with pytest.raises(ConflictError, match="token 'ci' already"):
            await harness.accounts.CreateToken(create)
        directory = harness.directory_of_accounts
        await directory.refresh()
        token = directory.token(made.text, expires_ms - 1)
        assert token is not None
        assert (token.token_id, token.role, token.created_by) == (made.token.token_id, 2, boss.user_id)
        for text, now_ms in ((made.text, expires_ms), (made.text + "x", 0), (f"carillon_{token.token_id}_", 0)):
            assert directory.token(text, now_ms) is None
        for _ in range(3):
            await harness.log_ins.NoteTokenUses(NoteTokenUsesRequest(token_ids=[token.token_id, "unknown"]))
            harness.clock.move(1800)
        assert len(await harness.facts("log-ins", "token_used")) == 2
        (listed,) = (await harness.accounts.ListTokens(ListTokensRequest(team_ids=[team_id]))).tokens
        assert (listed.name, listed.last_used_ms) == ("ci", harness.clock.now_ms() - 1_800_000)
        by_token = Origin(interface="console", actor=f"token/{token.token_id}")
        with pytest.raises(PermissionDeniedError):
            await harness.accounts.RevokeToken(RevokeTokenRequest(token_id=token.token_id, origin=by_token))
        await harness.accounts.RevokeToken(RevokeTokenRequest(token_id=token.token_id, origin=origin_of(boss)))
        await directory.refresh()
        assert directory.token(made.text, 0) is None
        assert not (await harness.accounts.ListTokens(ListTokensRequest())).tokens
        for record in await records_of(harness.log, Partition("accounts", 0)):
            assert made.text.encode() not in record.value
