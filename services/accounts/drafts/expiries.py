"""Notes that drafts have expired, so that every reader of the log learns of it."""

import asyncio

from protos.accounts.v1.drafts_pb2 import DraftFact
from protos.runtime.v1.log_pb2 import Origin
from services.accounts.drafts import decide
from services.accounts.fact_writer import FactWriter
from services.accounts.store import AccountTable
from services.errors import BusyError, UnavailableError
from services.process.clock import Clock, wait_for_first
from services.process.logs import logger
from services.process.metrics import DRAFTS_EXPIRED
from services.replica.follower import Follower

MAX_LATE_MS = 7 * 86_400_000
"""A draft that expired longer than this before the start is not noted: it is no news, such as one of a former release.
"""

_STORED_MS = 3_600_000
"""Longest time between the decision that a draft waits and its storing, as while the log is away."""

_AT_ONCE = 100
_RETRY_MS = 1_000


class DraftExpiries:
    """Service that writes a fact for each draft whose time is over without a decision.

    The drafts are chosen between two other decisions: what is noted as expired was not approved, and will not be.
    """

    name = "draft expiries"

    def __init__(self, follower: Follower, committed: AccountTable, writer: FactWriter, clock: Clock) -> None:
        self._follower = follower
        self._committed = committed
        self._writer = writer
        self._clock = clock
        self._since_ms = 0

    async def run(self, ready: asyncio.Event) -> None:
        self._since_ms = self._clock.now_ms() - MAX_LATE_MS
        ready.set()
        while True:
            change = self._follower.applied.change
            try:
                next_ms = await self._note_until_none_is_due()
            except (BusyError, UnavailableError) as error:
                logger.warning("expired drafts cannot be noted yet; trying again", error=str(error))
                next_ms = self._clock.now_ms() + _RETRY_MS
            await wait_for_first(self._clock, next_ms, change)

    async def _note_until_none_is_due(self) -> int | None:
        """Note the drafts that have expired; return when the next one does."""
        while True:
            now_ms = self._clock.now_ms()
            next_ms = await self._follower.query(self._committed.next_expiry_ms, self._since_ms)
            if next_ms is None or next_ms > now_ms:
                self._since_ms = max(self._since_ms, now_ms - _STORED_MS)
                return next_ms
            DRAFTS_EXPIRED.inc(await self._writer.write(self._choose, Origin()))

    def _choose(self, accounts: AccountTable, now_ms: int) -> tuple[int, list[DraftFact]]:
        facts = decide.expired(accounts.expired(self._since_ms, now_ms, _AT_ONCE))
        return len(facts), facts
