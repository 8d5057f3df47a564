"""Sessions that ended by a log-out: the fact in the log, and the directory by which front ends refuse them."""

import hashlib

import pytest

from protos.accounts.v1.service_pb2 import EndSessionRequest
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.decide import MAX_SESSION_MS
from services.domain.accounts import AccountDirectory
from services.errors import InputError, PermissionDeniedError
from testkit.services import running_services
from tests.services.accounts.conftest import FRONT_END, OPERATOR, AccountsHarness, origin_of

WEEK_MS = 7 * 24 * 3_600_000


def ending(harness: AccountsHarness, name: str, origin: Origin, days: int = 7) -> EndSessionRequest:
    session_hash = hashlib.sha256(name.encode()).digest()
    return EndSessionRequest(
        session_hash=session_hash, until_ms=harness.clock.now_ms() + days * 24 * 3_600_000, origin=origin
    )


async def test_a_log_out_is_a_fact_that_every_directory_follows_until_the_session_is_over(
    harness: AccountsHarness,
) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        ended = ending(harness, "first", origin_of(alice))
        assert not harness.directory_of_accounts.is_session_ended(ended.session_hash)
        await harness.log_ins.EndSession(ended)
        await harness.directory_of_accounts.refresh()
        assert harness.directory_of_accounts.is_session_ended(ended.session_hash)
        assert not harness.directory_of_accounts.is_session_ended(ending(harness, "other", FRONT_END).session_hash)
        (fact,) = await harness.facts("accounts", "session_ended")
        assert (fact.session_ended.user_id, fact.meta.origin.actor) == (alice.user_id, f"user/{alice.user_id}")
    beside = AccountDirectory(harness.log)  # of a front end that starts later
    async with running_services([beside]):
        assert beside.is_session_ended(ended.session_hash)
    async with harness.running():
        harness.clock.move(WEEK_MS / 1000)
        later = ending(harness, "second", origin_of(alice))
        await harness.log_ins.EndSession(later)
        await harness.directory_of_accounts.refresh()
        assert harness.directory_of_accounts.is_session_ended(later.session_hash)
        assert not harness.directory_of_accounts.is_session_ended(ended.session_hash)  # it is over by itself
    assert await harness.rebuilt_digest() == harness.digest()


async def test_only_a_user_ends_an_own_session_and_not_for_ever(harness: AccountsHarness) -> None:
    async with harness.running():
        alice = await harness.user("alice")
        for origin in (FRONT_END, OPERATOR, Origin(interface="console", actor="user/nobody")):
            with pytest.raises(PermissionDeniedError):
                await harness.log_ins.EndSession(ending(harness, "x", origin))
        wrong = ending(harness, "x", origin_of(alice))
        wrong.session_hash = b"short"
        too_long = ending(harness, "x", origin_of(alice))
        too_long.until_ms = harness.clock.now_ms() + MAX_SESSION_MS + 1
        for request in (wrong, too_long, ending(harness, "x", origin_of(alice), days=-1)):
            with pytest.raises(InputError, match="session_hash must be"):
                await harness.log_ins.EndSession(request)
        assert await harness.facts("accounts", "session_ended") == []
