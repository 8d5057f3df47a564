"""A filled analytics store for synchronous tests, which try many histories, each in a new app."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from analytics.acks import AckPage, AckReader, decode_positions, encode
from analytics.audit.push import audit_push
from analytics.audit.states import devices_in_state, states_by_value
from analytics.ingestion.ingestion import Ingestion
from analytics.statistics.answers import answer
from analytics.statistics.logins import count_days
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.migrate import migrate
from protos.analytics.v1.analytics_pb2 import (
    AuditPushResponse,
    Dates,
    ListPushDevicesRequest,
    ListPushDevicesResponse,
    PushStatesRequest,
    PushStatesResponse,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.gateway.v1.sessions_pb2 import SessionBatch, SessionEvent, SessionFact
from protos.registry.v1.apps_pb2 import Platform
from protos.registry.v1.devices_pb2 import Attributes, Device, DeviceFact
from services.domain.topics import DELIVERIES, DEVICES, SESSIONS, TOPICS
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from tests.analytics.records import PARTITIONS, meta, new_record
from tests.analytics.service import new_ingestion, running_ingestion

ZONES = (
    "Europe/Berlin",
    "Asia/Shanghai",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "America/Santiago",
)
"""Zones with changes by an hour, by half an hour and at midnight, and with offsets of no full hours."""


class SyncStore:
    """A store and its ingestion, kept open between the steps of a synchronous test."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._apps = (str(number) for number in itertools.count(3_000_000_000))
        self._seeds = itertools.count()
        self._runner.run(self._open(directory))

    async def _open(self, directory: Path) -> None:
        self._log = SqliteLog(directory / "log" / "events.db", TOPICS)
        self._stack.push_async_callback(self._log.close)
        self.clickhouse = ClickHouse(None, directory / "chdb", low_priority=False)
        await self.clickhouse.open()
        self._stack.push_async_callback(self.clickhouse.close)
        await migrate(self.clickhouse)
        self._ingestion: Ingestion = await self._stack.enter_async_context(
            running_ingestion(new_ingestion(self._log, self.clickhouse, directory))
        )

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def new_app(self) -> str:
        """Return the key of an app without records."""
        return next(self._apps)

    def ingest(self, new_records: Sequence[NewRecord]) -> None:
        """Append the records; return when they are in the store."""
        self._runner.run(self._ingest(new_records))

    async def _ingest(self, new_records: Sequence[NewRecord]) -> None:
        await self._log.append(new_records)
        assert await self._ingestion.catch_up() == 0

    def statistics(self, request: StatisticsRequest, now_ms: int, zone: str) -> StatisticsResponse:
        query = StatisticsQuery.of(request, now_ms, ZoneInfo(zone))
        self._runner.run(count_days(self.clickhouse, ZoneInfo(zone)))
        return self._runner.run(answer(self.clickhouse, query))

    def query(self, sql: str) -> pa.Table:
        return self._runner.run(self.clickhouse.arrow(sql))

    def audit(self, msgid: int) -> AuditPushResponse:
        return self._runner.run(audit_push(self.clickhouse, msgid, ZoneInfo("UTC")))

    def devices_in_state(self, request: ListPushDevicesRequest) -> ListPushDevicesResponse:
        return self._runner.run(devices_in_state(self.clickhouse, request))

    def states_by_value(self, request: PushStatesRequest) -> PushStatesResponse:
        return self._runner.run(states_by_value(self.clickhouse, request))

    def page(self, appkey: str, pos: str, limit: int, now_ms: int) -> tuple[AckPage, str]:
        """Return a page of receipts received until now, and the position after it."""
        ends = self._ingestion.ends(DELIVERIES)
        catch_up = self._ingestion.catch_up
        reader = AckReader(*(self.clickhouse, appkey, PARTITIONS, ends, catch_up), now_ms=now_ms, visible_ms=now_ms)
        page = self._runner.run(reader.page(decode_positions(appkey, pos), limit))
        return page, encode(appkey, page.positions)

    def device(self, appkey: str, partition: int, number: int, time_ms: int, **fields: Any) -> NewRecord:
        """Return a record of a device's state; its key is unique, so the compacted topic keeps every state."""
        attributes = Attributes(**fields.pop("attributes", {}))
        token = f"{partition}-{number}"
        state = Device(
            appkey=appkey,
            token=token,
            platform=Platform.PLATFORM_ANDROID,
            partition=partition,
            number=number,
            attributes=attributes,
            **{"registered_ms": time_ms, **fields},
        )
        seed = str(next(self._seeds))
        fact = DeviceFact(meta=meta(f"device {seed}", time_ms, "registry"), device=state)
        return NewRecord(DEVICES.name, partition, f"{appkey}/{token}/{seed}".encode(), fact.SerializeToString())

    def sessions_record(self, gateway: str, partition: int, events: Sequence[SessionEvent]) -> NewRecord:
        fact = SessionFact(meta=meta(f"sessions {next(self._seeds)}", 0, "gateway"), batch=SessionBatch(events=events))
        return NewRecord(SESSIONS.name, partition, gateway.encode(), fact.SerializeToString())

    def record(self, topic: str, partition: int, message: Any) -> NewRecord:
        message.meta.event_id = next(self._seeds).to_bytes(16, "big")
        return new_record(topic, partition, message)


def dates(first: str, last: str) -> Dates:
    return Dates(**{"from": first, "to": last})
