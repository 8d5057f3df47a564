"""Answers of analytics that pages share: for two seconds, never after a change, and never an error."""

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from console.shell import backend
from console.shell.backend import MAX_AGE_MS, SharedAnswers
from protos.analytics.v1.analytics_pb2 import LatestPushesRequest, LatestPushesResponse
from services.errors import UnavailableError
from services.process.clock import ManualClock

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub


class CountingAnalytics:
    """Answers with the number of the question; while `is_away`, with an error."""

    def __init__(self) -> None:
        self.asked = 0
        self.max_ages_ms: list[int] = []
        self.is_away = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _answer(self, request: LatestPushesRequest, timeout: float) -> LatestPushesResponse:
        self.asked += 1
        self.max_ages_ms.append(request.max_age_ms)
        answer = LatestPushesResponse(records_behind=self.asked)
        await self.may_answer.wait()
        if self.is_away:
            raise UnavailableError("away")
        return answer

    AuditPush = AuditDevice = AuditActions = Statistics = LatestPushes = _answer
    PushSpeed = PushStates = ListPushDevices = ListRefusals = _answer


async def test_the_same_question_is_asked_once_in_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_AGE_MS", MAX_AGE_MS)
    analytics, clock = CountingAnalytics(), ManualClock(1_000_000)
    shared = SharedAnswers(cast("AnalyticsServiceAsyncStub", analytics), clock)

    async def ask(appkey: str = "1") -> int:
        request = LatestPushesRequest(appkeys=[appkey], limit=10)
        return int((await shared.stub.LatestPushes(request, timeout=1)).records_behind)

    analytics.may_answer.clear()
    readers = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    analytics.may_answer.set()
    assert await asyncio.gather(*readers[1:]) == [1, 1]
    assert await ask("2") == 2
    clock.move(MAX_AGE_MS / 1000 - 0.001)
    assert await ask() == 1
    clock.move(0.001)
    assert await ask() == 3


async def test_errors_are_asked_again() -> None:
    analytics = CountingAnalytics()
    shared = SharedAnswers(cast("AnalyticsServiceAsyncStub", analytics), ManualClock(0))
    request = LatestPushesRequest(appkeys=["1"], limit=10)
    analytics.is_away = True
    with pytest.raises(UnavailableError):
        await shared.stub.LatestPushes(request, timeout=1)
    analytics.is_away = False
    assert (await shared.stub.LatestPushes(request, timeout=1)).records_behind == 2


async def test_after_a_change_answers_lack_no_records_for_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_AGE_MS", MAX_AGE_MS)
    analytics, clock = CountingAnalytics(), ManualClock(1_000_000)
    shared = SharedAnswers(cast("AnalyticsServiceAsyncStub", analytics), clock)

    async def ask_after(seconds: float) -> None:
        clock.move(seconds)
        await shared.stub.LatestPushes(LatestPushesRequest(appkeys=["1"], limit=10), timeout=1)

    async def request(method: str) -> None:
        await shared.process_response(cast(Any, SimpleNamespace(method=method)), cast(Any, None), None, True)

    await ask_after(0)
    await request("GET")
    await ask_after(MAX_AGE_MS / 1000)
    await request("POST")
    await ask_after(0)
    await ask_after(2 * MAX_AGE_MS / 1000 - 0.001)
    await ask_after(MAX_AGE_MS / 1000)
    assert analytics.max_ages_ms == [MAX_AGE_MS, MAX_AGE_MS, 0, 0, MAX_AGE_MS]
