"""Reached quotas are told to the registry: once an hour by each process, and again soon when it did not answer."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from protos.registry.v1.registry_pb2 import NoteQuotaReachedRequest, NoteQuotaReachedResponse
from services.domain import quota_notices
from services.domain.quota_notices import QUIET_MS, RETRY_MS, QuotaNotices
from services.errors import UnavailableError
from services.process.clock import ManualClock
from services.replica.peers import Peers
from testkit.waiting import run_ready_tasks


class Registry:
    """Takes notes, or is away."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, int]] = []
        self.is_away = False

    async def NoteQuotaReached(self, request: NoteQuotaReachedRequest, timeout: float) -> NoteQuotaReachedResponse:
        self.noted.append((request.appkey, request.quota, request.limit))
        if self.is_away:
            raise UnavailableError("away")
        return NoteQuotaReachedResponse()


async def test_a_quota_is_told_once_an_hour_and_again_soon_if_the_registry_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry, clock = Registry(), ManualClock(1_000_000_000)
    monkeypatch.setattr(quota_notices, "RegistryServiceStub", lambda channel: registry)
    peers: Any = SimpleNamespace(all=lambda role: [role])
    notices = QuotaNotices(cast(Peers, peers), clock)

    async def told(after_ms: int = 0) -> list[tuple[str, str, int]]:
        """Return what the registry is told of three refusals after this time."""
        clock.move(after_ms / 1000)
        registry.noted.clear()
        for _ in range(3):
            notices.note("1", "devices", 5)
            await run_ready_tasks()
        return list(registry.noted)

    assert await told() == [("1", "devices", 5)]
    assert await told(QUIET_MS - 1) == []
    registry.is_away = True
    assert len(await told(1)) == 1
    assert await told(RETRY_MS - 1) == []
    registry.is_away = False
    assert len(await told(1)) == 1
    assert await told(RETRY_MS) == []
