"""Which topics of the log an audit waits for."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from analytics.server import AnalyticsServicer
from analytics.store.changes import StoreChanges
from protos.analytics.v1.analytics_pb2 import (
    AuditActionsRequest,
    AuditAppRequest,
    AuditDeviceRequest,
    AuditPushRequest,
)
from services.domain.topics import ACCOUNTS, DEVICES, DRAFTS, LOG_INS, PUSH_COMMANDS
from services.errors import UnavailableError
from services.log.topics import Topic
from services.process.clock import ManualClock


class LaggingIngestion:
    """An ingestion that is behind the log in every topic, and records the topics that it was asked to ingest."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.changes = StoreChanges()

    async def catch_up(self, topics: Collection[Topic], appkey: str, max_age_ms: int) -> int:
        self.asked |= {topic.name for topic in topics}
        return 1


async def _topics_of(method: str, request: Any) -> set[str]:
    behind, store = LaggingIngestion(), SimpleNamespace(limited=lambda limits: None)
    parts: Any = (behind, store, ManualClock(0), ZoneInfo("UTC"))
    servicer = AnalyticsServicer(*parts, partitions=4, ack_delay_ms=0)
    with pytest.raises(UnavailableError, match="behind the event log"):
        await getattr(servicer, method)(request, None)
    return behind.asked


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AuditPush", AuditPushRequest(msgid=1)),
        ("AuditDevice", AuditDeviceRequest(appkey="1", token="t")),
        ("AuditApp", AuditAppRequest(appkey="1", from_ms=0, to_ms=1, limit=1)),
    ],
)
async def test_audits_of_pushes_devices_and_apps_do_not_wait_for_what_accounts_did(method: str, request_: Any) -> None:
    asked = await _topics_of(method, request_)
    assert {DEVICES.name, PUSH_COMMANDS.name} <= asked
    assert not asked & {ACCOUNTS.name, LOG_INS.name, DRAFTS.name}


async def test_the_audit_of_actions_waits_for_what_accounts_did() -> None:
    asked = await _topics_of("AuditActions", AuditActionsRequest(from_ms=0, to_ms=1, limit=1))
    assert {ACCOUNTS.name, LOG_INS.name, DRAFTS.name} <= asked
