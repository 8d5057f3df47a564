"""The service that forgets erased persons in the analytics store, all of a while at once."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

from analytics.erasures import Erasure, forget
from analytics.ingestion.ingestion import Ingestion
from analytics.projection import AnalyticsStore
from analytics.settings import ROLE_NAME
from analytics.store.clickhouse import ClickHouse
from services.domain.topics import ERASURES_PARTITION, decode
from services.errors import UnavailableError
from services.log.port import Log, Partition
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import ERASURES_APPLIED
from services.process.retries import retry_until_available
from services.replica.catch_up import read_until

AGAIN_MS = 7 * 86_400_000
"""For how long each batch forgets a person again: records from before the erasure may be ingested that late."""


async def read_erasures(log: Log, ends: Mapping[Partition, int] | None = None) -> list[Erasure]:
    """Return all erasures in the log, up to the end of the topic if `ends` has it."""
    partition = ERASURES_PARTITION
    ends = {partition: ends[partition]} if ends and partition in ends else await log.ends([partition])
    found = []
    async with aclosing(read_until(ROLE_NAME, log, {partition: 0}, ends)) as batches:
        async for records, _ in batches:
            for record in records:
                fact = decode(record)
                if fact.WhichOneof("fact") == "erased":
                    found.append(Erasure(fact.erased, fact.meta.time_ms))
    return found


class ErasureBatches:
    """Forgets all erased persons of the log at its start, and then those of the last days at intervals.

    So what a kill has interrupted is completed by the next start.
    """

    name = "analytics erasures"

    def __init__(
        self,
        log: Log,
        store: AnalyticsStore,
        clickhouse: ClickHouse,
        ingestion: Ingestion,
        clock: Clock,
        batch_s: int,
    ) -> None:
        self._log = log
        self._store = store
        self._clickhouse = clickhouse
        self._ingestion = ingestion
        self._clock = clock
        self._batch_ms = batch_s * 1000
        self._since_ms = 0
        self._applied_until = 0

    async def run(self, ready: asyncio.Event) -> None:
        ERASURES_APPLIED.labels(ROLE_NAME, "tables").set_function(lambda: self._applied_until)
        ready.set()
        await self._store.opened.wait()
        while True:
            await retry_until_available("erased persons cannot be forgotten in the analytics store yet", self.forget)
            await self._clock.sleep_until(self._clock.now_ms() + self._batch_ms)

    async def forget(self) -> None:
        """Forget the persons, once everything in the log by now is in the store. UnavailableError: it is not yet."""
        now_ms = self._clock.now_ms()
        ends = await self._log.ends([ERASURES_PARTITION])
        found = [erasure for erasure in await read_erasures(self._log, ends) if erasure.time_ms >= self._since_ms]
        if found:
            if behind := await self._ingestion.catch_up():
                raise UnavailableError(f"analytics is {behind} records behind the event log")
            if statements := await forget(self._clickhouse, found):
                self._ingestion.changes.note_all()
                logger.info("erased persons are forgotten", persons=len(found), statements=statements)
        self._since_ms = now_ms - AGAIN_MS
        self._applied_until = ends[ERASURES_PARTITION]
