"""Analytics as a process of a world: its ingestion on a model of the store. What needs SQL is left out."""

import asyncio
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

from analytics.ingestion.batch_reader import IngestionLimits
from analytics.ingestion.ingestion import Ingestion
from analytics.projection import open_ingestion
from analytics.settings import ROLE_NAME, AnalyticsSettings
from analytics.store.clickhouse import ClickHouse
from services.domain.role import BuiltRole, RoleContext, RoleDefinition
from services.domain.topics import DELIVERIES
from services.log.port import Log
from tests.simulation.kernel.clock import START_MS
from tests.simulation.kernel.hosts import ZONE, RoleHost
from tests.simulation.kernel.installation import Installation
from tests.simulation.kernel.latency import Latency
from tests.simulation.kernel.world import World
from tests.simulation.world.analytics.answer_checks import EndedWorld, answer_violations
from tests.simulation.world.analytics.row_checks import row_violations
from tests.simulation.world.analytics.store import ModelStore
from tests.simulation.world.plan import Plan
from tests.soak.checks import Observations, Violation
from tests.soak.settled_checks import SETTLE_S

_STORE_S = 0.01
_FLUSH_S = 0.5
_POLL_S = 1.0


class SimulatedAnalytics:
    """The store of a world, and the role whose processes fill it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self.store = self._new_store("analytics store")
        self._ingestion: Ingestion | None = None

    def definition(self) -> RoleDefinition[Any]:
        return RoleDefinition(ROLE_NAME, AnalyticsSettings, self._build)

    async def unfinished(self, installation: Installation) -> list[Violation]:
        """Wait until the store has all records that the log holds now; return what is missing after SETTLE_S."""
        assert self._ingestion is not None
        ends = {partition: installation.broker.end(partition) for partition in installation.partitions()}
        until_s = self._world.loop.time() + SETTLE_S
        while not self._ingestion.applied.has_all(ends):
            if self._world.loop.time() > until_s:
                return [Violation("stuck", "analytics has not ingested the log")]
            await asyncio.sleep(_POLL_S)
        return []

    async def checked(
        self, host: RoleHost, log: Log, installation: Installation, observed: Observations
    ) -> list[Violation]:
        """Ingest the rest of the log, once its process has been stopped; compare the store with the log.

        A second store is filled in one go, without faults, and must have the same rows. If the plan says so, a real
        store has to answer what follows from them.
        """
        settings = cast(AnalyticsSettings, host.settings())
        rebuilt = self._new_store("store that was rebuilt")
        offsets_of_rebuilt = self._new_directory("rebuilt-analytics") / "offsets.db"
        ends = await log.ends(installation.partitions())
        for store, file in ((self.store, settings.offsets_file()), (rebuilt, offsets_of_rebuilt)):
            await open_ingestion(settings, log, cast(ClickHouse, store), file).apply_until(ends, lambda count: None)
        await observed.history.read()
        found = list(row_violations(self.store, rebuilt, observed.history))
        if self._plan.asks_real_store and not found:
            found += answer_violations(
                EndedWorld(
                    self.store,
                    observed,
                    sorted({sent.send.appkey for sent in observed.history.sent.values()}),
                    {partition.number: end for partition, end in ends.items() if partition.topic == DELIVERIES.name},
                    START_MS + int(self._world.loop.time() * 1000),
                    ZoneInfo(ZONE),
                ),
                self._new_directory("real-store"),
            )
        return found

    def _build(self, settings: AnalyticsSettings, context: RoleContext) -> BuiltRole:
        store, limits = cast(ClickHouse, self.store), IngestionLimits(flush_s=_FLUSH_S)
        self._ingestion = open_ingestion(settings, context.log, store, settings.offsets_file(), limits)
        return BuiltRole(ROLE_NAME, services=[self._ingestion])

    def _new_store(self, name: str) -> ModelStore:
        random = self._world.random(name)
        return ModelStore(self._world.loop, Latency(random, _STORE_S), random.random)

    def _new_directory(self, name: str) -> Path:
        directory = self._world.directory / name
        directory.mkdir()
        return directory
