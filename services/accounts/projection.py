"""The projection of accounts: users, teams, tokens and drafts in SQLite, folded from facts that the role wrote."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from protos.accounts.v1.accounts_pb2 import AccountFact
from protos.registry.v1.erasures_pb2 import ErasureFact
from services.accounts.settings import ROLE_NAME, AccountsSettings
from services.accounts.state import apply
from services.accounts.store import DDL, AccountTable
from services.domain.sealed_log import FORGOTTEN_LATE_MS, sealer_of
from services.domain.sealing import Sealer
from services.domain.topics import ACCOUNTS, DRAFTS, ERASURES_PARTITION, LOG_INS
from services.log.identity import check_log_identity
from services.log.port import Log, Partition, Record
from services.process.clock import Clock
from services.replica.dead_letters import DeadLetters
from services.replica.epochs import Epochs
from services.replica.fencing import Fencing
from services.replica.follower import Follower
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact

OWN = tuple(Partition(topic.name, 0) for topic in (ACCOUNTS, LOG_INS, DRAFTS))


class AccountRules:
    """The follower's rules for accounts. There are no commands: calls are decided at once, by `FactWriter`."""

    def __init__(self, accounts: AccountTable, log: Log) -> None:
        self._accounts = accounts
        self._log = log

    def apply(self, record: Record, message: Any) -> None:
        if isinstance(message, ErasureFact):
            if message.HasField("erased"):
                self._forget(message)
        else:
            apply(self._accounts, message)

    def _forget(self, fact: ErasureFact) -> None:
        """Take out of drafts, test devices and erasures that were asked for what is about an erased person."""
        if (sealer := sealer_of(self._log)) is None:
            return
        until_ms = fact.meta.time_ms + FORGOTTEN_LATE_MS
        self._accounts.forget_in_drafts(
            until_ms, lambda submitted: sealer.without(DRAFTS.name, 0, submitted, fact.erased)
        )
        left = partial(_left, sealer, fact)
        self._accounts.forget_in_teams(left)
        self._accounts.forget_in_changes(until_ms, left)

    def decide(self, record: Record, message: Any) -> Sequence[Fact]:
        return ()


def _left(sealer: Sealer, erasure: ErasureFact, fact: AccountFact) -> AccountFact | None:
    """Return what is left of a fact after an erasure; None: it does not change."""
    return sealer.without(ACCOUNTS.name, 0, fact, erasure.erased)


class AccountsProjection:
    """The account store and its follower. A service that runs the follower and closes the store when it stops.

    `accounts` reads and writes in the follower's transaction, `committed` reads over a connection of its own.
    """

    name = ROLE_NAME

    def __init__(self, settings: AccountsSettings, directory: Path, log: Log, clock: Clock) -> None:
        check_log_identity(directory, log, ROLE_NAME)
        self.store = SqliteStore(directory / "accounts.sqlite", DDL)
        self.accounts = AccountTable(self.store.rows)
        self.committed = AccountTable(self.store.reading())
        self.follower = Follower(
            ROLE_NAME,
            log,
            AccountRules(self.accounts, log),
            self.store,
            DeadLetters(settings.data / "dead-letters" / f"{ROLE_NAME}.jsonl", ROLE_NAME),
            applies=[ERASURES_PARTITION],
            own=OWN,
            fencing=Fencing(ROLE_NAME, log.topics, Epochs(self.store.epochs(), self.store.set_epoch), clock),
        )
        self.followers = (self.follower,)

    async def run(self, ready: asyncio.Event) -> None:
        try:
            await self.follower.run(ready)
        finally:
            self.close()

    def digest(self) -> str:
        return self.store.digest()

    def save(self) -> None:
        """Do nothing: each batch of facts has been committed."""

    def close(self) -> None:
        self.committed.close()
        self.store.close()
