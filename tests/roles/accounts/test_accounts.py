"""Users, one-time links, teams and API tokens: who may change them, what is in the log, and what front ends see."""

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
from services.domain.accounts.permissions import Action, Role, may
from services.runtime.errors import CarillonError, ConflictError, InputError, NotFoundError, PermissionDeniedError
from services.runtime.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.roles.accounts.conftest import APP, FRONT_END, OPERATOR, OTHER_APP, PASSWORD, Installation, of
from tests.roles.accounts.test_team_devices import device_of

VIEWER, ADMINISTRATOR = MemberRole.MEMBER_ROLE_VIEWER, MemberRole.MEMBER_ROLE_ADMINISTRATOR


async def use(installation: Installation, token: str, password: str = PASSWORD) -> Any:
    return await installation.log_ins.UseLink(UseLinkRequest(link_token=token, new_password=password, origin=FRONT_END))


async def test_the_first_administrator_is_invited_by_a_link_that_works_once(installation: Installation) -> None:
    async with installation.running():
        made = await installation.accounts.CreateUser(
            CreateUserRequest(login="root", administrator=True, zone="Asia/Shanghai", locale="zh-CN", origin=OPERATOR)
        )
        assert made.link_expires_ms == installation.clock.now_ms() + LINK_MS
        checked = await installation.log_ins.CheckLink(CheckLinkRequest(link_token=made.link_token))
        assert checked.user == made.user
        assert checked.purpose == LinkPurpose.LINK_PURPOSE_INVITATION
        with pytest.raises(InputError, match="12 to 256 characters"):
            await use(installation, made.link_token, "short")
        user = (await use(installation, made.link_token)).user
        assert (user.administrator, user.zone, user.locale, user.has_password) == (True, "Asia/Shanghai", "zh-CN", True)
        with pytest.raises(NotFoundError, match="ask an administrator"):
            await use(installation, made.link_token)
        assert await installation.result("root") == "OK"
        facts = await installation.facts("accounts")
        assert [fact.WhichOneof("fact") for fact in facts] == ["user", "link", "user"]
        assert facts[0].meta.origin == OPERATOR
        assert facts[2].meta.origin.actor == f"user/{user.user_id}"
        for record in await records_of(installation.log, Partition("accounts", 0)):
            assert made.link_token.encode() not in record.value
    async with installation.running():
        with pytest.raises(NotFoundError):
            await use(installation, made.link_token)


async def test_a_link_ends_by_time_by_a_newer_one_and_with_its_user(installation: Installation) -> None:
    async with installation.running():
        alice = await installation.user("alice")
        reset = ResetPasswordRequest(user_id=alice.user_id, origin=OPERATOR)
        first, second = [(await installation.accounts.ResetPassword(reset)).link_token for _ in range(2)]
        purpose = (await installation.log_ins.CheckLink(CheckLinkRequest(link_token=second))).purpose
        assert purpose == LinkPurpose.LINK_PURPOSE_PASSWORD_RESET
        changed = second[:-1] + ("A" if second[-1] != "A" else "B")
        for wrong in (first, changed, "", "link_0_x"):
            with pytest.raises(NotFoundError):
                await use(installation, wrong)
        assert await installation.result("alice") == "OK"
        installation.clock.move(LINK_MS // 1000)
        with pytest.raises(NotFoundError):
            await use(installation, second)
        third = (await installation.accounts.ResetPassword(reset)).link_token
        disable = UpdateUserRequest(user_id=alice.user_id, disabled=True, origin=OPERATOR)
        await installation.accounts.UpdateUser(disable)
        with pytest.raises(NotFoundError):
            await use(installation, third)
        with pytest.raises(ConflictError, match="disabled"):
            await installation.accounts.ResetPassword(reset)


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
    installation: Installation, request_: CreateUserRequest, told: str
) -> None:
    async with installation.running():
        await installation.user("alice")
        before = len(await installation.facts("accounts"))
        request_.origin.CopyFrom(OPERATOR)
        with pytest.raises(CarillonError, match=told):
            await installation.accounts.CreateUser(request_)
        assert len(await installation.facts("accounts")) == before


async def test_users_change_what_is_theirs_and_administrators_the_rest(installation: Installation) -> None:
    async with installation.running():
        root, alice = await installation.user("root", administrator=True), await installation.user("alice")

        async def update(by: Origin, **fields: Any) -> Any:
            return (await installation.accounts.UpdateUser(UpdateUserRequest(origin=by, **fields))).user

        user = await update(of(alice), user_id=alice.user_id, locale="en", display_name="Alice")
        assert (user.locale, user.display_name) == ("en", "Alice")
        for fields in ({"administrator": True}, {"disabled": False}, {"remove_totp": True}):
            with pytest.raises(PermissionDeniedError):
                await update(of(alice), user_id=alice.user_id, **fields)
        with pytest.raises(PermissionDeniedError):
            await update(of(alice), user_id=root.user_id, locale="en")
        with pytest.raises(PermissionDeniedError):
            await update(FRONT_END, user_id=alice.user_id, locale="de")
        with pytest.raises(ConflictError, match="no administrator would be left"):
            await update(of(root), user_id=root.user_id, disabled=True)
        await update(of(root), user_id=alice.user_id, administrator=True)
        await update(of(alice), user_id=root.user_id, disabled=True)
        with pytest.raises(PermissionDeniedError):
            await update(of(root), user_id=alice.user_id, disabled=True)
        last = (await installation.facts("accounts", "user"))[-1]
        assert (last.user.action, list(last.user.settings)) == ("set", ["disabled on", "sessions ended"])
        assert last.meta.origin.actor == f"user/{alice.user_id}"
        users = (await installation.accounts.ListUsers(ListUsersRequest())).users
        assert [user.login for user in users] == ["alice", "root"]
        some = await installation.accounts.GetUsers(GetUsersRequest(user_ids=[root.user_id, "unknown", alice.user_id]))
        assert [user.login for user in some.users] == ["root", "alice"]
        some = await installation.accounts.GetUsers(GetUsersRequest(logins=["unknown", " Alice"]))
        assert [user.login for user in some.users] == ["alice"]


async def test_a_front_end_sees_at_once_who_is_out(installation: Installation) -> None:
    async with installation.running():
        directory = installation.directory_of_accounts
        alice = await installation.user("alice")
        team_id = await installation.team((alice, "sender"))
        await directory.refresh()
        user = directory.session(alice.user_id, alice.session_epoch)
        assert user is not None
        assert (user.login, user.password_hash, user.sealed_totp_secret) == ("alice", "", b"")
        assert directory.session(alice.user_id, alice.session_epoch + 1) is None
        actor = directory.actor_of_user(alice.user_id)
        assert (actor.roles, directory.team_of(APP)) == ({team_id: Role.SENDER}, team_id)
        assert may(actor, Action.SEND, directory.team_of(APP))
        assert not may(actor, Action.SEND, directory.team_of("1999999999"))
        end = UpdateUserRequest(user_id=alice.user_id, end_sessions=True, origin=of(alice))
        await installation.accounts.UpdateUser(end)
        await directory.refresh()
        assert directory.session(alice.user_id, alice.session_epoch) is None
        assert directory.session(alice.user_id, alice.session_epoch + 1) is not None
        disable = UpdateUserRequest(user_id=alice.user_id, disabled=True, origin=OPERATOR)
        epoch = (await installation.accounts.UpdateUser(disable)).user.session_epoch
        await directory.refresh()
        assert directory.session(alice.user_id, epoch) is None
        assert not may(directory.actor_of_user(alice.user_id), Action.VIEW, team_id)
        assert not may(directory.actor_of_user("unknown"), Action.CHANGE_OWN_ACCOUNT)


async def test_a_team_is_changed_by_its_administrators(installation: Installation) -> None:
    async with installation.running():
        boss, viewer = await installation.user("boss"), await installation.user("viewer")
        team_id = await installation.team((boss, "administrator"))
        member = SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=VIEWER, origin=of(boss))
        await installation.accounts.SetMember(member)
        rules = ApprovalRules(broadcasts=True, above_devices=1000)
        update = UpdateTeamRequest(team_id=team_id, rules=rules, name="Daily", origin=of(viewer))
        for call, request in (
            (installation.accounts.UpdateTeam, update),
            (
                installation.accounts.SetMember,
                SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=ADMINISTRATOR),
            ),
            (installation.accounts.CreateTeam, CreateTeamRequest(name="Mine")),
            (installation.accounts.GiveApp, GiveAppRequest(appkey=APP, team_id=team_id)),
            (installation.accounts.SetTestDevices, device_of(team_id, "t1", "Ann's phone")),
        ):
            request.origin.CopyFrom(of(viewer))
            with pytest.raises(PermissionDeniedError):
                await call(request)
        update.origin.CopyFrom(of(boss))
        team = (await installation.accounts.UpdateTeam(update)).team
        assert (team.team.name, team.team.rules, list(team.appkeys)) == ("Daily", rules, [APP])
        last = (await installation.facts("accounts", "team"))[-1]
        assert list(last.team.settings) == ["name Daily", "approval broadcasts, above 1000 devices"]
        count = len(await installation.facts("accounts"))
        await installation.accounts.UpdateTeam(update)
        assert len(await installation.facts("accounts")) == count
        leave = SetMemberRequest(team_id=team_id, user_id=viewer.user_id, origin=of(boss))
        left = (await installation.accounts.SetMember(leave)).team.team
        assert [(one.user_id, one.role) for one in left.members] == [(boss.user_id, ADMINISTRATOR)]
        with pytest.raises(ConflictError, match="there is a team 'Daily' already"):
            await installation.accounts.CreateTeam(CreateTeamRequest(name="daily ", origin=OPERATOR))
        with pytest.raises(InputError, match="role must be"):
            await installation.accounts.SetMember(
                SetMemberRequest(team_id=team_id, user_id=viewer.user_id, role=9, origin=OPERATOR)  # type: ignore[arg-type]
            )


async def test_an_app_belongs_to_one_team(installation: Installation) -> None:
    async with installation.running():
        first = await installation.team(appkeys=[APP, OTHER_APP], name="First")
        second = await installation.team(appkeys=[], name="Second")
        await installation.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id=second, origin=OPERATOR))
        teams = (await installation.accounts.ListTeams(ListTeamsRequest())).teams
        assert [(team.team.name, list(team.appkeys)) for team in teams] == [("First", [OTHER_APP]), ("Second", [APP])]
        for name, expected in (("second ", [second]), (first, [first]), ("third", []), ("", [])):
            found = await installation.accounts.ListTeams(ListTeamsRequest(team=name))
            assert [team.team.team_id for team in found.teams] == expected
        with pytest.raises(NotFoundError, match="no app"):
            await installation.accounts.GiveApp(GiveAppRequest(appkey="1", team_id=first, origin=OPERATOR))
        with pytest.raises(NotFoundError, match="no team"):
            await installation.accounts.GiveApp(GiveAppRequest(appkey=APP, team_id="x", origin=OPERATOR))
        await installation.accounts.GiveApp(GiveAppRequest(appkey=APP, origin=OPERATOR))
        await installation.directory_of_accounts.refresh()
        assert installation.directory_of_accounts.team_of(APP) == ""


async def test_an_api_token_is_shown_once_and_ends_by_time_and_by_revocation(installation: Installation) -> None:
    async with installation.running():
        boss = await installation.user("boss")
        team_id = await installation.team((boss, "administrator"))
        expires_ms = installation.clock.now_ms() + 60_000
        create = CreateTokenRequest(team_id=team_id, name="ci", role=2, expires_in_s=60, origin=of(boss))  # type: ignore[arg-type]
        made = await installation.accounts.CreateToken(create)
        with pytest.raises(ConflictError, match="token 'ci' already"):
            await installation.accounts.CreateToken(create)
        directory = installation.directory_of_accounts
        await directory.refresh()
        token = directory.token(made.text, expires_ms - 1)
        assert token is not None
        assert (token.token_id, token.role, token.created_by) == (made.token.token_id, 2, boss.user_id)
        for text, now_ms in ((made.text, expires_ms), (made.text + "x", 0), (f"carillon_{token.token_id}_", 0)):
            assert directory.token(text, now_ms) is None
        for _ in range(3):
            await installation.log_ins.NoteTokenUses(NoteTokenUsesRequest(token_ids=[token.token_id, "unknown"]))
            installation.clock.move(1800)
        assert len(await installation.facts("log-ins", "token_used")) == 2
        (listed,) = (await installation.accounts.ListTokens(ListTokensRequest(team_ids=[team_id]))).tokens
        assert (listed.name, listed.last_used_ms) == ("ci", installation.clock.now_ms() - 1_800_000)
        by_token = Origin(interface="console", actor=f"token/{token.token_id}")
        with pytest.raises(PermissionDeniedError):
            await installation.accounts.RevokeToken(RevokeTokenRequest(token_id=token.token_id, origin=by_token))
        await installation.accounts.RevokeToken(RevokeTokenRequest(token_id=token.token_id, origin=of(boss)))
        await directory.refresh()
        assert directory.token(made.text, 0) is None
        assert not (await installation.accounts.ListTokens(ListTokensRequest())).tokens
        for record in await records_of(installation.log, Partition("accounts", 0)):
            assert made.text.encode() not in record.value
