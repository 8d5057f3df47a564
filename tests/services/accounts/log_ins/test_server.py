"""Log-ins: passwords, one-time codes, recovery codes, limits, and the facts about them in the log."""

from typing import Any

import argon2
import pyotp
import pytest

from protos.accounts.v1.accounts_pb2 import LogInMethod, Subject
from protos.accounts.v1.service_pb2 import (
    ChangePasswordRequest,
    CheckLinkRequest,
    CreateUserRequest,
    InviteFirstAdministratorRequest,
    LogInWithSubjectRequest,
    SealAnewRequest,
    SetTotpRequest,
    StartTotpRequest,
    UpdateUserRequest,
    UseLinkRequest,
    UserSummary,
)
from services.domain.attempt_buckets import MAX_KEYS, AttemptBuckets
from services.domain.master_key import KeyPurpose, Keys, MasterKey, derive
from services.errors import ConflictError, InputError, NotFoundError, PermissionDeniedError
from services.log.port import Partition
from testkit.faults.crashing_log import records_of
from tests.services.accounts.conftest import CHEAP, FRONT_END, OPERATOR, PASSWORD, AccountsHarness, origin_of


class CountingHasher(argon2.PasswordHasher):
    """Counts the comparisons of passwords."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.compared = 0

    def verify(self, hash: Any, password: Any) -> Any:
        self.compared += 1
        return super().verify(hash, password)


async def enrol(harness: AccountsHarness, user: UserSummary) -> tuple[pyotp.TOTP, list[str]]:
    """Give the user a second factor; return it and the recovery codes."""
    started = await harness.log_ins.StartTotp(StartTotpRequest(origin=origin_of(user)))
    totp = pyotp.TOTP(started.secret)
    code = totp.at(harness.clock.now_ms() // 1000)
    request = SetTotpRequest(secret=started.secret, code=code, password=PASSWORD, origin=origin_of(user))
    answer = await harness.log_ins.SetTotp(request)
    return totp, list(answer.recovery_codes)


def code_at(harness: AccountsHarness, totp: pyotp.TOTP, offset_s: int = 0) -> str:
    return totp.at(harness.clock.now_ms() // 1000 + offset_s)


async def reasons(harness: AccountsHarness) -> list[str]:
    return [fact.failed.reason for fact in await harness.facts("log-ins", "failed")]


async def test_a_password_logs_in_and_every_attempt_is_a_fact_without_it(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("Alice")
        answer = await harness.log_in("alice ")
        assert (answer.user.user_id, answer.user.last_log_in_ms) == (alice.user_id, harness.clock.now_ms())
        assert await harness.result("alice", "wrong password") == "REFUSED"
        assert await harness.result("my secret typed as a name") == "REFUSED"
        (done,) = await harness.facts("log-ins", "logged_in")
        assert done.logged_in.method == LogInMethod.LOG_IN_METHOD_PASSWORD
        assert done.meta.origin == FRONT_END
        assert await reasons(harness) == ["wrong password", "unknown name"]
        for topic in ("accounts", "log-ins"):
            for record in await records_of(harness.log, Partition(topic, 0)):
                assert PASSWORD.encode() not in record.value
                assert b"typed as" not in record.value


async def test_unknown_names_cost_the_same_comparison_and_get_the_same_answer(harness: AccountsHarness) -> None:
    harness.hasher = hasher = CountingHasher()
    async with harness.running():
        alice = await harness.user("alice")
        await harness.user("invited", password="")
        disabled = await harness.user("disabled")
        update = UpdateUserRequest(user_id=disabled.user_id, disabled=True, origin=OPERATOR)
        await harness.accounts.UpdateUser(update)
        answers = set()
        for login, password in (("nobody", "x"), (alice.login, "x"), ("invited", ""), ("disabled", PASSWORD)):
            before = hasher.compared
            answers.add((await harness.log_in(login, password)).SerializeToString())
            assert hasher.compared == before + 1, login
        assert len(answers) == 1
        assert await reasons(harness) == ["unknown name", "wrong password", "wrong password", "disabled"]


async def test_a_one_time_code_is_needed_and_never_accepted_twice(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        totp, _ = await enrol(harness, alice)
        harness.clock.move(90)
        assert await harness.result("alice") == "CODE_NEEDED"
        assert await harness.result("alice", code="000000x") == "REFUSED"
        code = code_at(harness, totp)
        assert await harness.result("alice", "wrong password", code) == "REFUSED"
        assert await harness.result("alice", code=f"{code[:3]} {code[3:]}") == "OK"
        assert await harness.result("alice", code=code) == "REFUSED"
        assert await harness.result("alice", code=code_at(harness, totp, -30)) == "REFUSED"
        assert await harness.result("alice", code=code_at(harness, totp, 90)) == "REFUSED"
        assert await harness.result("alice", code=code_at(harness, totp, 30)) == "OK"
    async with harness.running():
        assert await harness.result("alice", code=code_at(harness, totp, 30)) == "REFUSED"
        assert (await reasons(harness))[-1] == "used code"


async def test_a_recovery_code_is_accepted_once(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        _, codes = await enrol(harness, alice)
        assert len(set(codes)) == 10
        assert await harness.result("alice", code=codes[0].upper()) == "OK"
        assert (await harness.log_in("alice", code=codes[1].replace("-", " "))).user.recovery_codes_left == 8
    async with harness.running():
        assert await harness.result("alice", code=codes[0]) == "REFUSED"
        assert await harness.result("alice", code=codes[2]) == "OK"


async def test_a_second_factor_needs_its_code_and_stays_until_it_is_removed(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        secret = (await harness.log_ins.StartTotp(StartTotpRequest(origin=origin_of(alice)))).secret
        code = code_at(harness, pyotp.TOTP(secret))

        async def set_totp(secret: str, code: str, password: str = PASSWORD) -> Any:
            request = SetTotpRequest(secret=secret, code=code, password=password, origin=origin_of(alice))
            return await harness.log_ins.SetTotp(request)

        with pytest.raises(InputError, match="code"):
            await set_totp(secret, "000000x")
        with pytest.raises(InputError, match="secret"):
            await set_totp("AAAA", "1")
        for password in ("", "wrong"):
            refused = await set_totp(secret, code, password)
            assert (refused.password_is_wrong, list(refused.recovery_codes)) == (True, [])
        for _ in range(7):
            await set_totp(secret, code, "wrong")
        assert (await set_totp(secret, code)).retry_after_s == 30
        assert not (await harness.log_in("alice")).user.has_totp
        harness.clock.move(30)
        await enrol(harness, alice)
        with pytest.raises(ConflictError, match="second factor already"):
            await enrol(harness, alice)
        remove = UpdateUserRequest(user_id=alice.user_id, remove_totp=True)
        with pytest.raises(PermissionDeniedError):
            remove.origin.CopyFrom(origin_of(alice))
            await harness.accounts.UpdateUser(remove)
        remove.origin.CopyFrom(OPERATOR)
        user = (await harness.accounts.UpdateUser(remove)).user
        assert (user.has_totp, user.session_epoch) == (False, alice.session_epoch + 1)
        assert await harness.result("alice") == "OK"


async def test_a_password_is_changed_with_the_present_one_and_ends_all_sessions(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")

        async def change(present: str, new: str) -> Any:
            request = ChangePasswordRequest(password=present, new_password=new, origin=origin_of(alice))
            return await harness.log_ins.ChangePassword(request)

        assert not (await change("wrong", "another password")).changed
        with pytest.raises(InputError, match="12 to 256 characters"):
            await change(PASSWORD, "short")
        changed = await change(PASSWORD, "another password")
        assert (changed.changed, changed.user.session_epoch) == (True, alice.session_epoch + 1)
        assert await harness.result("alice") == "REFUSED"
        assert await harness.result("alice", "another password") == "OK"


async def test_a_user_of_a_provider_logs_in_by_subject_alone(harness: AccountsHarness) -> None:
    async with harness.running():
        subject = Subject(issuer="https://id.example", subject="42")
        create = CreateUserRequest(login="bob", subject=subject, origin=OPERATOR)
        made = await harness.accounts.CreateUser(create)
        assert made.link_token == ""
        assert await harness.result("bob", "") == "REFUSED"
        answer = await harness.log_ins.LogInWithSubject(LogInWithSubjectRequest(subject=subject, origin=FRONT_END))
        assert answer.user.user_id == made.user.user_id
        subject.issuer = "https://other.example"
        request = LogInWithSubjectRequest(subject=subject, origin=FRONT_END)
        assert not (await harness.log_ins.LogInWithSubject(request)).HasField("user")


async def test_attempts_are_counted_by_the_beginning_of_a_name_that_nobody_can_have(harness: AccountsHarness) -> None:
    async with harness.running():
        for number in range(10):
            assert await harness.result("x" * 60_000 + str(number), "wrong") == "REFUSED"
        assert await harness.result("x" * 60_000, "wrong") == "LIMITED"


def test_the_buckets_of_names_are_bounded() -> None:
    buckets = AttemptBuckets(2, 1000)
    for number in range(MAX_KEYS + 5):
        buckets.take(str(number), number)
    assert len(buckets) == MAX_KEYS
    last = str(MAX_KEYS + 4)
    buckets.take(last, 0)
    assert buckets.wait_ms(last, MAX_KEYS + 4) == 1000
    assert buckets.wait_ms(last, MAX_KEYS + 1004) == 0


def test_a_refused_attempt_lets_the_wait_begin_anew_and_not_grow() -> None:
    buckets = AttemptBuckets(3, 5000)
    for at_ms in range(0, 60_000, 100):
        buckets.charge("address", at_ms)
    assert buckets.wait_ms("address", 60_000) == 4900
    assert buckets.wait_ms("address", 64_900) == 0


@pytest.mark.parametrize("per_s", [3, 334, 700, 999])
def test_the_rate_of_the_buckets_is_exact(per_s: int) -> None:
    buckets = AttemptBuckets(5 * per_s, 1000, per_s)
    allowed = []
    for at_ms in (0, 1000, 2000):
        allowed.append(0)
        while not buckets.wait_ms("token", at_ms):
            buckets.take("token", at_ms)
            allowed[-1] += 1
    assert allowed == [5 * per_s, per_s, per_s]
    assert buckets.wait_ms("token", 2000) == -(-1000 // per_s)


def test_stored_hashes_are_argon2id() -> None:
    assert argon2.extract_parameters(argon2.PasswordHasher().hash("x")).type == argon2.Type.ID
    assert CHEAP.hash("x").startswith("$argon2id$")


async def test_the_first_administrator_is_invited_until_somebody_can_log_in(harness: AccountsHarness) -> None:
    invite = InviteFirstAdministratorRequest(login="admin", origin=FRONT_END)
    async with harness.running():
        lost = await harness.log_ins.InviteFirstAdministrator(invite)
    async with harness.running():  # another start, before the password was chosen
        again = await harness.log_ins.InviteFirstAdministrator(invite)
        assert (again.user.login, again.user.administrator) == ("admin", True)
        assert again.user.user_id == lost.user.user_id
        with pytest.raises(NotFoundError):
            await harness.log_ins.CheckLink(CheckLinkRequest(link_token=lost.link_token))
        use = UseLinkRequest(link_token=again.link_token, new_password=PASSWORD, origin=FRONT_END)
        await harness.log_ins.UseLink(use)
        with pytest.raises(ConflictError, match="can log in already"):
            await harness.log_ins.InviteFirstAdministrator(invite)
        assert await harness.result("admin") == "OK"
    assert await harness.rebuilt_digest() == harness.digest()


async def test_where_no_administrator_is_enabled_the_refusal_of_a_first_link_names_the_commands(
    harness: AccountsHarness,
) -> None:
    invite = InviteFirstAdministratorRequest(login="admin", origin=FRONT_END)
    async with harness.running():
        user_id = (await harness.log_ins.InviteFirstAdministrator(invite)).user.user_id
        changes = UpdateUserRequest(user_id=user_id, disabled=True, origin=OPERATOR)
        await harness.accounts.UpdateUser(changes)
        named = "admin is disabled: `carillon user enable admin`, or `carillon user add NAME --administrator`"
        with pytest.raises(ConflictError, match=f"^{named}$"):
            await harness.log_ins.InviteFirstAdministrator(invite)
        changes = UpdateUserRequest(user_id=user_id, disabled=False, administrator=False, origin=OPERATOR)
        await harness.accounts.UpdateUser(changes)
        with pytest.raises(ConflictError, match=r"^admin is no administrator: `carillon user add NAME --adm"):
            await harness.log_ins.InviteFirstAdministrator(invite)


async def test_a_second_factor_is_sealed_anew_when_the_keys_rotate(harness: AccountsHarness) -> None:
    old, new = MasterKey(bytes(32)), MasterKey(bytes([1] * 32))
    secrets = KeyPurpose.SECRETS
    both = Keys({secrets: [derive(bytes([number] * 32), secrets) for number in range(2)]})
    harness.keys = both
    async with harness.running():
        alice, bob = await harness.user("alice"), await harness.user("bob")
        totp, _ = await enrol(harness, alice)
        assert both.switch(secrets, new.fingerprint(secrets), old.fingerprint(secrets))
        request = SealAnewRequest(origin=OPERATOR)
        assert [(await harness.accounts.SealAnew(request)).users_sealed for _ in range(2)] == [1, 0]
        assert both.switch(secrets, new.fingerprint(secrets), dropped={old.fingerprint(secrets)})
        harness.clock.move(90)
        assert await harness.result("alice", code=code_at(harness, totp)) == "OK"
        totp_of_bob, _ = await enrol(harness, bob)
        assert totp_of_bob.secret != totp.secret
        assert (await harness.accounts.SealAnew(request)).users_sealed == 0
    assert await harness.rebuilt_digest() == harness.digest()
