"""Records that a compromised role appends to the topic of accounts under epochs of nobody: accounts goes on."""

import json

import pytest

from protos.accounts.v1.accounts_pb2 import AccountFact, User, UserChanged
from protos.accounts.v1.service_pb2 import ListUsersRequest
from protos.runtime.v1.log_pb2 import Meta
from services.domain.ids import event_id
from services.domain.signed_log import SignedLog
from services.domain.signing_keys import derive_signing_key
from services.domain.topics import ACCOUNTS, decode
from services.log.port import NewRecord, Partition, Record
from services.process.metrics import DEAD_LETTERS
from testkit.faults.crashing_log import records_of
from tests.services.accounts.conftest import AccountsHarness

PARTITION = Partition(ACCOUNTS.name, 0)
MOST = (1 << 64) - 1


async def forge(harness: AccountsHarness, ahead: int, *, has_fact: bool) -> None:
    """Append a record whose epoch is by so much above that of the owner, MOST at most."""
    (present, *_) = (decode(record).meta.epoch for record in reversed(await records_of(harness.log, PARTITION)))
    changed = UserChanged(user=User(user_id="0" * 16, login="forged", administrator=True, version=1))
    meta = Meta(event_id=event_id(), time_ms=harness.clock.now_ms(), epoch=min(MOST, present + ahead))
    fact = AccountFact(meta=meta, user=changed if has_fact else None)
    await harness.log.append([NewRecord(*PARTITION, b"user/0", fact.SerializeToString())])


async def users(harness: AccountsHarness) -> list[str]:
    found = await harness.accounts.ListUsers(ListUsersRequest())
    return [each.login for each in found.users]


@pytest.mark.parametrize(("ahead", "has_fact"), [(MOST, False), (MOST, True), (1 << 24, True), (1, True)])
async def test_accounts_goes_on_behind_an_epoch_that_follows_from_no_claim(
    harness: AccountsHarness, ahead: int, has_fact: bool
) -> None:
    """Now, after a restart, in front ends and in a replay; the record is a dead letter and counted."""
    counted = DEAD_LETTERS.labels("accounts")._value
    before = counted.get()
    async with harness.running():
        await harness.user("before")
        await forge(harness, ahead, has_fact=has_fact)
        await harness.user("behind")
        assert await users(harness) == ["before", "behind"]
        assert harness.directory_of_accounts.actor_of_user("0" * 16).is_disabled
    async with harness.running():
        await harness.user("later")
        assert await users(harness) == ["before", "behind", "later"]
    letters = (harness.directory / "dead-letters" / "accounts.jsonl").read_text().splitlines()
    assert [json.loads(letter)["topic"] for letter in letters] == [ACCOUNTS.name]
    assert counted.get() - before == 1
    assert await harness.rebuilt_digest() == harness.digest()


async def test_a_forged_administrator_under_the_owners_epoch_is_refused_by_the_signature(
    harness: AccountsHarness,
) -> None:
    """Without signatures the same record makes one. Whoever may append to the topic needs the key of accounts too."""
    raw, refused = harness.log, list[Record]()
    key = derive_signing_key(bytes(32), "accounts")
    signed = SignedLog(
        raw, {"accounts": key}, {"accounts": [key.public_key()]}, lambda record, error: refused.append(record)
    )
    harness.log = signed  # type: ignore[assignment]
    async with harness.running():
        await harness.user("before")
        harness.log = raw
        await forge(harness, 0, has_fact=True)
        harness.log = signed  # type: ignore[assignment]
        await harness.user("behind")
        assert harness.directory_of_accounts.actor_of_user("0" * 16).is_disabled
    async with harness.running():
        assert await users(harness) == ["before", "behind"]
    assert await harness.rebuilt_digest() == harness.digest()
    assert {record.key for record in refused} == {b"user/0"}
    harness.log = raw
    await harness.rebuilt_digest()
    async with harness.running():
        assert not harness.directory_of_accounts.actor_of_user("0" * 16).is_disabled
