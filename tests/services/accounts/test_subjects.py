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
from services.errors import ConflictError, InputError
from tests.services.accounts.conftest import FRONT_END, AccountsHarness, origin_of

ISSUER = "https://login.example.org"


async def log_in(harness: AccountsHarness, sub: str, **more: Any) -> LogInWithSubjectResponse:
    request = LogInWithSubjectRequest(subject=Subject(issuer=ISSUER, subject=sub), origin=FRONT_END, **more)
    return await harness.log_ins.LogInWithSubject(request)  # type: ignore[no-any-return]


async def user_of(harness: AccountsHarness, login: str) -> UserSummary:
    (user,) = (await harness.accounts.GetUsers(GetUsersRequest(logins=[login]))).users
    return user  # type: ignore[no-any-return]


async def test_the_first_administrator_is_invited_though_users_of_a_provider_exist(harness: AccountsHarness) -> None:
    invite = InviteFirstAdministratorRequest(login="admin", origin=FRONT_END)
    async with harness.running():
        assert (await log_in(harness, "1", login="alice")).user.login == "alice"
        assert (await harness.log_ins.InviteFirstAdministrator(invite)).user.login == "admin"
        await log_in(harness, "2", login="root", roles=GroupRoles(administrator=True))
        with pytest.raises(ConflictError):
            await harness.log_ins.InviteFirstAdministrator(invite)
    assert await harness.rebuilt_digest() == harness.digest()


async def test_a_login_name_is_made_of_what_the_provider_says(harness: AccountsHarness) -> None:
    async with harness.running():
        wishes = ["DOMAIN/Al ice", "domain-alice", "\u202e", "x" * 200, "x" * 200]
        users = [(await log_in(harness, str(n), login=wish)).user for n, wish in enumerate(wishes)]
        assert [user.login for user in users] == ["DOMAIN-Alice", "domain-alice-2", "user", "x" * 64, f"{'x' * 56}-2"]
        for wrong in ("", "x" * 256):
            with pytest.raises(InputError):
                await log_in(harness, wrong, login="alice")
        assert not (await log_in(harness, "unknown")).HasField("user")


async def test_the_mail_address_is_the_one_that_the_provider_has_verified(harness: AccountsHarness) -> None:
    async with harness.running():
        first = await log_in(harness, "1", login="alice", mail_address="alice@example.org")
        assert first.user.mail_address == "alice@example.org"
        for kept in ("", "no address", "alice@example.org"):
            again = await log_in(harness, "1", login="alice", mail_address=kept, is_renewal=True)
            assert again.user.mail_address == "alice@example.org"
        assert len(await harness.facts("accounts", "user")) == 1
        await log_in(harness, "1", login="alice", mail_address="al@example.org")
        changed = (await harness.facts("accounts", "user"))[-1].user
        assert (changed.user.mail_address, list(changed.settings)) == (
            "al@example.org",
            ["mail_address al@example.org"],
        )
    assert await harness.rebuilt_digest() == harness.digest()


async def test_renewals_note_changes_and_nothing_else(harness: AccountsHarness) -> None:
    sender = TeamRole(team="news", role=MemberRole.MEMBER_ROLE_SENDER)
    viewer = TeamRole(team="NEWS", role=MemberRole.MEMBER_ROLE_VIEWER)
    unknown = TeamRole(team="nowhere", role=MemberRole.MEMBER_ROLE_VIEWER)
    async with harness.running():
        await harness.team(name="News")
        alice = (await log_in(harness, "1", login="alice", roles=GroupRoles(teams=[sender, viewer]))).user
        before = len(await harness.facts("accounts")), len(await harness.facts("log-ins"))
        for teams in ([sender], [sender, unknown]):
            renewed = await log_in(harness, "1", login="alice", roles=GroupRoles(teams=teams), is_renewal=True)
            assert renewed.user.session_epoch == alice.session_epoch
        assert before == (len(await harness.facts("accounts")), len(await harness.facts("log-ins")))
        await log_in(harness, "1", login="alice", roles=GroupRoles(teams=[viewer]), is_renewal=True)
        changed = (await harness.facts("accounts", "team"))[-1].team
        assert list(changed.settings) == ["alice viewer", "by the provider's groups"]
        assert not (await log_in(harness, "1", roles=GroupRoles(), is_renewal=True)).HasField("user")
        refused = await user_of(harness, "alice")
        assert refused.session_epoch == alice.session_epoch + 1
        assert not (await harness.facts("accounts", "team"))[-1].team.team.members
        await log_in(harness, "1", login="alice")
        assert not (await user_of(harness, "alice")).roles_by_groups
    assert await harness.rebuilt_digest() == harness.digest()


async def test_a_log_out_by_the_provider_ends_the_sessions_of_one_user(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = (await log_in(harness, "1", login="alice")).user
        for subject in (Subject(issuer=ISSUER, subject="1"), Subject(issuer="https://evil.example", subject="1")):
            await harness.log_ins.EndSubjectSessions(EndSubjectSessionsRequest(subject=subject, origin=FRONT_END))
        assert (await user_of(harness, "alice")).session_epoch == alice.session_epoch + 1


async def test_a_user_of_a_provider_has_no_second_factor_here(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = (await log_in(harness, "1", login="alice")).user
        started = await harness.log_ins.StartTotp(StartTotpRequest(origin=origin_of(alice)))
        code = pyotp.TOTP(started.secret).at(harness.clock.now_ms() // 1000)
        with pytest.raises(ConflictError, match="the provider asks for those of its own"):
            await harness.log_ins.SetTotp(SetTotpRequest(secret=started.secret, code=code, origin=origin_of(alice)))
