"""Users of an OpenID Connect provider: created at the first log-in, with roles of their groups, and kept by replays."""

from typing import Any

import pyotp
import pytest

from protos.accounts.v1.accounts_pb2 import MemberRole, Subject
from protos.accounts.v1.service_pb2 import (
    EndSubjectSessionsRequest,
    GetUsersRequest,
    GroupRoles,
    InviteFirstAdministratorRequest,
    LogInWithSubjectRequest,
    LogInWithSubjectResponse,
    SetTotpRequest,
    StartTotpRequest,
    TeamRole,
    UserSummary,
)
from services.runtime.errors import ConflictError, InputError
from tests.roles.accounts.conftest import FRONT_END, Installation, of

ISSUER = "https://login.example.org"


async def log_in(installation: Installation, sub: str, **more: Any) -> LogInWithSubjectResponse:
    request = LogInWithSubjectRequest(subject=Subject(issuer=ISSUER, subject=sub), origin=FRONT_END, **more)
    return await installation.log_ins.LogInWithSubject(request)  # type: ignore[no-any-return]


async def user_of(installation: Installation, login: str) -> UserSummary:
    (user,) = (await installation.accounts.GetUsers(GetUsersRequest(logins=[login]))).users
    return user  # type: ignore[no-any-return]


async def test_the_first_administrator_is_invited_though_users_of_a_provider_exist(installation: Installation) -> None:
    invite = InviteFirstAdministratorRequest(login="admin", origin=FRONT_END)
    async with installation.running():
        assert (await log_in(installation, "1", login="alice")).user.login == "alice"
        assert (await installation.log_ins.InviteFirstAdministrator(invite)).user.login == "admin"
        await log_in(installation, "2", login="root", roles=GroupRoles(administrator=True))
        with pytest.raises(ConflictError):
            await installation.log_ins.InviteFirstAdministrator(invite)
    assert await installation.rebuilt_digest() == installation.digest()


async def test_a_login_name_is_made_of_what_the_provider_says(installation: Installation) -> None:
    async with installation.running():
        wishes = ["DOMAIN/Al ice", "domain-alice", "\u202e", "x" * 200, "x" * 200]
        users = [(await log_in(installation, str(n), login=wish)).user for n, wish in enumerate(wishes)]
        assert [user.login for user in users] == ["DOMAIN-Alice", "domain-alice-2", "user", "x" * 64, f"{'x' * 56}-2"]
        for wrong in ("", "x" * 256):
            with pytest.raises(InputError):
                await log_in(installation, wrong, login="alice")
        assert not (await log_in(installation, "unknown")).HasField("user")


async def test_renewals_note_changes_and_nothing_else(installation: Installation) -> None:
    sender = TeamRole(team="news", role=MemberRole.MEMBER_ROLE_SENDER)
    viewer = TeamRole(team="NEWS", role=MemberRole.MEMBER_ROLE_VIEWER)
    unknown = TeamRole(team="nowhere", role=MemberRole.MEMBER_ROLE_VIEWER)
    async with installation.running():
        await installation.team(name="News")
        alice = (await log_in(installation, "1", login="alice", roles=GroupRoles(teams=[sender, viewer]))).user
        before = len(await installation.facts("accounts")), len(await installation.facts("log-ins"))
        for teams in ([sender], [sender, unknown]):
            renewed = await log_in(installation, "1", login="alice", roles=GroupRoles(teams=teams), is_renewal=True)
            assert renewed.user.session_epoch == alice.session_epoch
        assert before == (len(await installation.facts("accounts")), len(await installation.facts("log-ins")))
        await log_in(installation, "1", login="alice", roles=GroupRoles(teams=[viewer]), is_renewal=True)
        changed = (await installation.facts("accounts", "team"))[-1].team
        assert list(changed.settings) == ["alice viewer", "by the provider's groups"]
        assert not (await log_in(installation, "1", roles=GroupRoles(), is_renewal=True)).HasField("user")
        refused = await user_of(installation, "alice")
        assert refused.session_epoch == alice.session_epoch + 1
        assert not (await installation.facts("accounts", "team"))[-1].team.team.members
        await log_in(installation, "1", login="alice")
        assert not (await user_of(installation, "alice")).roles_by_groups
    assert await installation.rebuilt_digest() == installation.digest()


async def test_a_log_out_by_the_provider_ends_the_sessions_of_one_user(installation: Installation) -> None:
    async with installation.running():
        alice = (await log_in(installation, "1", login="alice")).user
        for subject in (Subject(issuer=ISSUER, subject="1"), Subject(issuer="https://evil.example", subject="1")):
            await installation.log_ins.EndSubjectSessions(EndSubjectSessionsRequest(subject=subject, origin=FRONT_END))
        assert (await user_of(installation, "alice")).session_epoch == alice.session_epoch + 1


async def test_a_user_of_a_provider_has_no_second_factor_here(installation: Installation) -> None:
    async with installation.running():
        alice = (await log_in(installation, "1", login="alice")).user
        started = await installation.log_ins.StartTotp(StartTotpRequest(origin=of(alice)))
        code = pyotp.TOTP(started.secret).at(installation.clock.now_ms() // 1000)
        with pytest.raises(ConflictError, match="the provider asks for those of its own"):
            await installation.log_ins.SetTotp(SetTotpRequest(secret=started.secret, code=code, origin=of(alice)))
