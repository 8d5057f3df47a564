"""Wiring of the analytics role, which fills ClickHouse from the log and answers statistics and audits."""

from typing import TYPE_CHECKING

from analytics.erasure_batches import ErasureBatches
from analytics.ingestion.batch_reader import IngestionLimits
from analytics.projection import AnalyticsStore, DeferredIngestion, StoreStartTimeouts, connect, open_ingestion
from analytics.replay import fill, rebuild, verify
from analytics.server import AnalyticsServicer
from analytics.settings import ROLE_NAME, AnalyticsSettings
from analytics.statistics.prewarm import Prewarm
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.domain.role import BuiltRole, ReplaySupport, RoleContext, RoleDefinition

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

_START_TIMEOUTS = StoreStartTimeouts(after_failure_s=5.0, at_most_s=5.0)
_START_TIMEOUTS_WITH_CHDB = StoreStartTimeouts(after_failure_s=10.0, at_most_s=60.0)
_PREWARM_S = 300
_FLUSH_S = 5.0
"""How long a batch gathers records while nobody asks: few inserts cost less, and leave fewer parts to merge."""


def build(settings: AnalyticsSettings, context: RoleContext) -> BuiltRole:
    """Wire the role: the store, its ingestion, prewarming of counts, and the servicer of audits and statistics."""
    clickhouse = connect(settings)
    limits = IngestionLimits(flush_s=_FLUSH_S)
    ingestion = open_ingestion(settings, context.log, clickhouse, settings.offsets_file(), limits)
    servicer = AnalyticsServicer(
        *(ingestion, clickhouse, context.clock, settings.zone()),
        partitions=settings.partitions,
        ack_delay_ms=settings.ack_delay_s * 1000,
        limits=settings.query_limits(),
        others=_others(settings, context),
    )
    timeouts = _START_TIMEOUTS if settings.clickhouse_url else _START_TIMEOUTS_WITH_CHDB
    is_first = settings.shard == 0
    days, zone = settings.retention_days(), settings.zone()
    store = AnalyticsStore(clickhouse, days, zone, is_first=is_first, timeouts=timeouts)
    ahead = clickhouse.limited(settings.query_limits()._replace(seconds=_PREWARM_S))
    prewarm = [Prewarm(ahead, context.clock, zone)] if is_first else []
    erasures = ErasureBatches(context.log, store, clickhouse, ingestion, context.clock, settings.erasure_batch_s)
    return BuiltRole(
        ROLE_NAME,
        services=[
            store,
            DeferredIngestion(store, ingestion, timeouts.at_most_s),
            *prewarm,
            *([erasures] if is_first else []),
        ],
        servicers=[lambda server: add_AnalyticsServiceServicer_to_server(servicer, server)],
    )


def _others(settings: AnalyticsSettings, context: RoleContext) -> "list[AnalyticsServiceAsyncStub]":
    channels = context.peers.all(ROLE_NAME) if settings.shards > 1 else []
    return [AnalyticsServiceStub(channel) for shard, channel in enumerate(channels) if shard != settings.shard]


ROLE = RoleDefinition(
    ROLE_NAME,
    AnalyticsSettings,
    build,
    replay=ReplaySupport(rebuild, verify, fill, reads_device_records=True, reads_app_changes=True),
)
