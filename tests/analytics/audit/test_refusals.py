"""The latest refused requests of an app, the newest first."""

from pathlib import Path

import pytest

from analytics.store.clickhouse import ClickHouse
from protos.analytics.v1.analytics_pb2 import ListRefusalsRequest, RefusedRequest
from protos.runtime.v1.log_pb2 import Origin
from protos.runtime.v1.refusals_pb2 import Refusal, RefusalFact, Refusals
from services.domain.topics import REFUSALS
from services.errors import InputError
from services.log.port import NewRecord
from services.log.sqlite.log import SqliteLog
from services.process.clock import SystemClock
from tests.analytics.records import APP, meta, new_record
from tests.analytics.service import running_service

NOW_MS = SystemClock().now_ms()
"""Older ones leave the store after 30 days of real time."""


def refused(seed: str, *refusals: Refusal) -> NewRecord:
    return new_record(REFUSALS.name, 0, RefusalFact(meta=meta(seed, NOW_MS), refusals=Refusals(refusals=refusals)))


async def test_refusals_of_an_app_are_listed(log: SqliteLog, clickhouse: ClickHouse, tmp_path: Path) -> None:
    paused = Refusal(
        appkey=APP,
        time_ms=NOW_MS - 3,
        origin=Origin(interface="v2", address="192.0.2.7"),
        call="POST /v2/push",
        result=403,
        answer="app is paused",
        code="APP_PAUSED",
        is_signed=True,
        left_out=2,
    )
    wrong = Refusal(appkey=APP, time_ms=NOW_MS - 2, result=401)
    other = Refusal(appkey="2", time_ms=NOW_MS, result=429)
    first = refused("first", paused, other)
    await log.append([first, refused("second", wrong), first])
    async with running_service(log, clickhouse, tmp_path) as analytics:
        listed = await analytics.ListRefusals(ListRefusalsRequest(appkey=APP, limit=10))
        assert list(listed.refusals) == [
            RefusedRequest(time_ms=NOW_MS - 2, result=401),
            RefusedRequest(
                time_ms=NOW_MS - 3,
                interface="v2",
                call="POST /v2/push",
                result=403,
                answer="app is paused",
                code="APP_PAUSED",
                address="192.0.2.7",
                is_signed=True,
                left_out=2,
            ),
        ]
        newest = await analytics.ListRefusals(ListRefusalsRequest(appkey=APP, limit=1))
        assert [each.result for each in newest.refusals] == [401]
        for limit in (0, 1001):
            with pytest.raises(InputError):
                await analytics.ListRefusals(ListRefusalsRequest(appkey=APP, limit=limit))
