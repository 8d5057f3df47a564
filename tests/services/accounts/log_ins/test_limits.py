"""Limits of log-ins under attack: strangers neither lock a user out nor get more guesses by having more addresses."""

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import argon2
import pytest

from protos.accounts.v1.service_pb2 import (
    ChangePasswordRequest,
    LogInRequest,
    LogInResponse,
    LogInResult,
    UpdateUserRequest,
)
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.log_ins.limits import TOKEN_MS, BrowserTokens, LogInLimits, Source
from services.accounts.log_ins.passwords import Passwords
from services.accounts.store import MAX_NETWORKS, NETWORK_MS
from services.domain.attempt_buckets import MAX_KEYS, AttemptBuckets, site_of
from services.errors import BusyError
from testkit.waiting import until_holds
from tests.services.accounts.conftest import OPERATOR, PASSWORD, START_MS, AccountsHarness, origin_of
from tests.services.accounts.log_ins.test_server import code_at, enrol

HOME = "203.0.113.20"
HOUR_MS = 3_600_000


def strangers(count: int) -> list[str]:
    """Return addresses of as many different networks."""
    return [f"10.{number // 200}.{number % 200}.1" for number in range(count)]


async def log_in(
    harness: AccountsHarness, password: str = PASSWORD, address: str = HOME, *tokens: str, code: str = ""
) -> LogInResponse:
    origin = Origin(interface="console", address=address)
    request = LogInRequest(login="alice", password=password, code=code, browser_tokens=tokens, origin=origin)
    return await harness.log_ins.LogIn(request)  # type: ignore[no-any-return]


def name_of(answer: LogInResponse) -> str:
    return LogInResult.Name(answer.result).removeprefix("LOG_IN_RESULT_")


@pytest.mark.parametrize("addresses", [3, 100, 1000])
async def test_an_attack_of_an_hour_locks_nobody_out_and_gets_few_guesses(
    harness: AccountsHarness, addresses: int
) -> None:
    async with harness.running():
        await harness.user("alice")
        token = (await log_in(harness)).browser_token
        guesses, at_home = 0, []
        attackers = strangers(addresses)
        for minute in range(60):
            for address in attackers if minute % 10 == 0 else attackers[minute::59]:
                guesses += name_of(await log_in(harness, "wrong", address)) == "REFUSED"
            # From her browser she gets in at once, wherever she is, and from another browser at home too.
            assert name_of(await log_in(harness, PASSWORD, f"192.0.{minute}.1", token)) == "OK"
            at_home.append(name_of(await log_in(harness)))
            harness.clock.move(60)
        assert guesses <= 80
        assert set(at_home) == {"OK"}


@pytest.mark.parametrize("addresses", [3, 100, 1000])
def test_the_guesses_for_a_name_are_bounded_however_fast_they_come(addresses: int) -> None:
    limits = LogInLimits()
    attackers = strangers(addresses)
    by_hour = [0, 0, 0]
    for attempt in range(3 * 3600 * 2):  # two a second
        source = Source("alice", attackers[attempt % addresses], "u1")
        by_hour[attempt // 7200] += limits.take(source, attempt * 500) == 0
    assert by_hour[0] <= 80
    assert max(by_hour[1:]) <= 60
    # A name that nobody has is refused alike, so that the answers do not tell which names there are.
    unknown = LogInLimits()
    assert by_hour[0] == sum(
        unknown.take(Source("nobody", attackers[attempt % addresses]), attempt * 500) == 0 for attempt in range(7200)
    )


def test_inventing_names_and_addresses_makes_no_bucket_of_a_user_forgotten() -> None:
    limits = LogInLimits()
    taken = sum(limits.take(Source("alice", address, "u1"), START_MS) == 0 for address in strangers(30))
    assert taken == 20
    for number in range(MAX_KEYS + 1):
        limits.take(Source(f"name{number}", f"2001:db8:{number:x}::1"), START_MS)
    assert limits.take(Source("alice", "198.51.100.1", "u1"), START_MS) == 60
    assert all(len(buckets) <= 100_000 for buckets in _buckets(limits))


def _buckets(limits: LogInLimits) -> Iterator[AttemptBuckets]:
    yield from (limits._addresses, limits._known, limits._codes, limits._sessions, *limits._users, *limits._nobody)


async def test_who_tries_from_the_network_of_a_user_does_not_hinder_her_browser(harness: AccountsHarness) -> None:
    async with harness.running():
        await harness.user("alice")
        token = (await log_in(harness)).browser_token
        for _ in range(10):
            assert name_of(await log_in(harness, "wrong", "203.0.113.99")) == "REFUSED"
        limited = await log_in(harness, PASSWORD, HOME)
        assert (name_of(limited), limited.retry_after_s) == ("LIMITED", 30)
        assert name_of(await log_in(harness, PASSWORD, HOME, token)) == "OK"
        harness.clock.move(30)
        assert name_of(await log_in(harness, PASSWORD, HOME)) == "OK"


async def test_a_refused_attempt_costs_the_address(harness: AccountsHarness) -> None:
    async with harness.running():
        await harness.user("alice")
        await harness.user("bob")
        for _ in range(50):
            await log_in(harness, "wrong", "198.51.100.1")  # ten are compared, the others refused
        other = await harness.log_in("bob", PASSWORD, address="198.51.100.1")
        assert (name_of(other), other.retry_after_s) == ("LIMITED", 5)
        harness.clock.move(4)
        assert await harness.result("bob", address="198.51.100.1") == "LIMITED"
        harness.clock.move(5)
        assert await harness.result("bob", address="198.51.100.1") == "OK"
        assert await harness.result("bob", address="198.51.100.2") == "OK"


async def test_a_browser_has_attempts_of_its_own_and_no_more_than_ten(harness: AccountsHarness) -> None:
    async with harness.running():
        await harness.user("alice")
        token = (await log_in(harness)).browser_token
        for _ in range(10):
            assert name_of(await log_in(harness, "wrong", HOME, token)) == "REFUSED"
        limited = await log_in(harness, PASSWORD, HOME, token)
        assert (name_of(limited), limited.retry_after_s) == ("LIMITED", 30)
        assert name_of(await log_in(harness, PASSWORD, HOME)) == "OK"
        harness.clock.move(30)
        renewed = await log_in(harness, PASSWORD, HOME, "", "other", token)
        assert name_of(renewed) == "OK"
        for _ in range(9):
            await log_in(harness, "wrong", HOME, renewed.browser_token)
        await log_in(harness, "wrong", HOME, token)  # the same browser as before
        assert name_of(await log_in(harness, PASSWORD, HOME, renewed.browser_token)) == "LIMITED"


async def test_a_token_is_of_its_user_and_ends_with_the_sessions_and_after_a_time(harness: AccountsHarness) -> None:
    tokens = BrowserTokens(harness.keys)
    async with harness.running():
        alice = await harness.user("alice")
        bob = await harness.user("bob")
        token = (await log_in(harness)).browser_token
        await harness.directory_of_accounts.refresh()
        known = harness.directory_of_accounts.session(alice.user_id, alice.session_epoch)
        other = harness.directory_of_accounts.session(bob.user_id, bob.session_epoch)
        now_ms = harness.clock.now_ms()
        assert tokens.known([token], known, now_ms)
        assert tokens.known([token], known, now_ms + TOKEN_MS - 1)
        for wrong in ([], ["x"], [token[:-4]], [token + "A" * 300], ["ä"], ["a", "b", "c", "d", token]):
            assert not tokens.known(wrong, known, now_ms), wrong
        assert not tokens.known([token], other, now_ms)
        assert not tokens.known([token], None, now_ms)
        assert not tokens.known([token], known, now_ms + TOKEN_MS)
        change = ChangePasswordRequest(password=PASSWORD, new_password="quite another one", origin=origin_of(alice))
        changed = await harness.log_ins.ChangePassword(change)
        await harness.directory_of_accounts.refresh()
        known = harness.directory_of_accounts.session(alice.user_id, changed.user.session_epoch)
        assert not tokens.known([token], known, now_ms)
        assert tokens.known([changed.browser_token], known, now_ms)


async def test_known_networks_are_the_latest_ones_and_end_with_the_sessions(harness: AccountsHarness) -> None:
    async def attack() -> None:
        for address in strangers(30):
            await log_in(harness, "wrong", address)

    async with harness.running():
        alice = await harness.user("alice")
        assert name_of(await log_in(harness)) == "OK"
        await attack()
        assert name_of(await log_in(harness, PASSWORD, "198.51.100.1")) == "LIMITED"
        assert name_of(await log_in(harness, PASSWORD, "203.0.113.77")) == "OK"
    async with harness.running():  # the networks are in the log
        await attack()
        assert name_of(await log_in(harness, PASSWORD, HOME)) == "OK"
        end = UpdateUserRequest(user_id=alice.user_id, end_sessions=True, origin=OPERATOR)
        await harness.accounts.UpdateUser(end)
        assert name_of(await log_in(harness, PASSWORD, HOME)) == "LIMITED"
        harness.clock.move(HOUR_MS / 1000)
        for number in range(MAX_NETWORKS):
            harness.clock.move(60)
            assert name_of(await log_in(harness, PASSWORD, f"192.0.{number}.1")) == "OK"
        await attack()
        assert name_of(await log_in(harness, PASSWORD, "192.0.0.9")) == "OK"
        assert name_of(await log_in(harness, PASSWORD, HOME)) == "LIMITED"
        harness.clock.move(NETWORK_MS / 1000)
        await attack()
        assert name_of(await log_in(harness, PASSWORD, "192.0.0.9")) == "LIMITED"
    assert await harness.rebuilt_digest() == harness.digest()


async def test_codes_after_a_right_password_are_few(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        totp, _ = await enrol(harness, alice)
        harness.clock.move(90)
        token = (await log_in(harness, code=code_at(harness, totp))).browser_token
        answers = []
        for number in range(24):
            harness.clock.move(60)
            answers.append(name_of(await log_in(harness, PASSWORD, f"198.51.{number}.1", code="00000x")))
        assert answers.count("REFUSED") == 11  # ten, and one after 15 minutes
        assert name_of(await log_in(harness, PASSWORD, "198.51.99.1", code=code_at(harness, totp))) == "LIMITED"
        assert name_of(await log_in(harness, PASSWORD, "198.51.99.1", token, code=code_at(harness, totp))) == "OK"


def test_a_network_is_a_24_of_ipv4_and_a_48_of_ipv6() -> None:
    assert site_of("203.0.113.1") == site_of("203.0.113.255") == site_of("::ffff:203.0.113.9")
    assert site_of("203.0.113.1") != site_of("203.0.114.1")
    assert site_of("2001:db8:1:ffff::1") == site_of("2001:db8:1::")
    assert site_of("2001:db8:1::") != site_of("2001:db8:2::")
    assert site_of("") == ""


async def test_a_flood_of_log_ins_lets_known_browsers_and_networks_take_turns(harness: AccountsHarness) -> None:
    hasher = harness.hasher = OneAtATime()
    async with harness.running():
        await harness.user("alice")
        token = (await log_in(harness)).browser_token
        hasher.order.clear()
        hasher.may_go_on.clear()

        async def attempt(login: str, *tokens: str, password: str = "", address: str = HOME) -> str:
            origin = Origin(interface="console", address=address)
            request = LogInRequest(login=login, password=password, browser_tokens=tokens, origin=origin)
            try:
                return name_of(await harness.log_ins.LogIn(request))
            except BusyError:
                return "BUSY"

        flood = [
            asyncio.create_task(attempt(f"name{number}", password="guess", address=address))
            for number, address in enumerate(strangers(200))
        ]
        await asyncio.sleep(0)
        mine = [
            asyncio.create_task(attempt("alice", token, password=PASSWORD)),
            asyncio.create_task(attempt("alice", password=PASSWORD)),
        ]
        refused: list[int] = []

        def all_wait() -> bool:
            """Say whether all attempts that are not refused wait: no more are refused for a while."""
            refused.append(sum(each.done() for each in flood))
            return refused[-1] > 100 and refused[-10:] == [refused[-1]] * 10

        await until_holds(all_wait)
        hasher.may_go_on.set()
        assert await asyncio.gather(*mine) == ["OK", "OK"]
        answers = await asyncio.gather(*flood)
        assert answers.count("BUSY") > 100
        assert hasher.most == 1
        assert hasher.order.index(PASSWORD) < 5
        assert len(hasher.order) < 100


class OneAtATime(argon2.PasswordHasher):
    """Notes which passwords are compared, and how many at the same time at most."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.order: list[str] = []
        self.most = self._now = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def verify(self, hash: Any, password: Any) -> Any:
        self.may_go_on.wait(60)
        self._now += 1
        self.most = max(self.most, self._now)
        self.order.append(str(password))
        try:
            return super().verify(hash, password)
        finally:
            self._now -= 1


async def test_passwords_are_compared_in_a_thread_of_low_priority() -> None:
    class Asking(OneAtATime):
        def hash(self, *arguments: Any, **named: Any) -> str:
            self.most = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            return super().hash(*arguments, **named)

    hasher = Asking()
    await Passwords(hasher).hash(PASSWORD)
    assert hasher.most >= 10
