"""gRPC servicer that answers audits, statistics and pages of acknowledgements from the store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from analytics.acks.positions import decode, encode
from analytics.acks.reader import AckReader
from analytics.audit.actions import audit_actions
from analytics.audit.app import TimeRange, audit_app
from analytics.audit.device import audit_device
from analytics.audit.export import FORMATS, export
from analytics.audit.find_push import find_planned, find_push, no_such_push
from analytics.audit.push import audit_push, audit_push_on_device
from analytics.audit.push_speed import push_speed
from analytics.ingestion.ingestion import Ingestion
from analytics.ingestion.translation import ACTIONS, SOURCES
from analytics.query_turns import OPERATORS, QueryTurns
from analytics.statistics.answers import TOPICS, answer
from analytics.statistics.latest_pushes import latest_pushes
from analytics.statistics.query import StatisticsQuery
from analytics.store.clickhouse import ClickHouse
from analytics.store.query_limits import NO_LIMITS, QueryLimits
from protos.analytics.v1.analytics_pb2 import (
    AuditActionsRequest,
    AuditActionsResponse,
    AuditAppRequest,
    AuditAppResponse,
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
    CatchUpRequest,
    CatchUpResponse,
    ExportPushRequest,
    ExportPushResponse,
    LatestPushesRequest,
    LatestPushesResponse,
    ListAcksRequest,
    ListAcksResponse,
    PushSpeedRequest,
    PushSpeedResponse,
    StatisticsKind,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceServicer
from services.domain.text import check_texts
from services.domain.topics import ACCOUNTS, DELIVERIES, DEVICES, DRAFTS, LOG_INS
from services.runtime.errors import InputError, NotFoundError, UnavailableError
from services.runtime.log.topics import Topic
from services.runtime.process.clock import Clock
from services.runtime.rpc.server import Context

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

_MAX_MSGID = 2**63
_MAX_TIME_MS = 7_258_118_400_000
"""The year 2200."""

_MAX_SPAN_MS = 366 * 86_400_000
_MAX_ACKS = 1000
_MAX_LINES = 1000
_MAX_APPS = 1000
_EXPORT_S = 3600
_AUDITED = tuple(topic for topic in SOURCES if topic not in (ACCOUNTS, LOG_INS, DRAFTS))
"""What audits of apps, devices and pushes are made of. Looking at a device writes a record of its own to `log-ins`."""

_BUT_OUTCOMES = tuple(topic for topic in _AUDITED if topic is not DELIVERIES)
_Audit = (
    AuditPushRequest
    | AuditDeviceRequest
    | AuditAppRequest
    | AuditActionsRequest
    | ExportPushRequest
    | LatestPushesRequest
    | PushSpeedRequest
)


class AnalyticsServicer(AnalyticsServiceServicer):
    """Audits and statistics first ingest what they are made of up to the log's end, of outcomes those of their app.

    While that takes too long they are unavailable, apart from audits that allow missing records. Pages of
    acknowledgements do not need that.
    """

    def __init__(
        self,
        ingestion: Ingestion,
        clickhouse: ClickHouse,
        clock: Clock,
        zone: ZoneInfo,
        *,
        partitions: int,
        ack_delay_ms: int,
        limits: QueryLimits = NO_LIMITS,
        others: "Sequence[AnalyticsServiceAsyncStub]" = (),
    ) -> None:
        """`limits`: of each query. `others`: the other instances, which ingest the other partitions into this store."""
        self._ingestion = ingestion
        self._clickhouse = clickhouse.limited(limits)
        self._exports = clickhouse.limited(limits._replace(seconds=_EXPORT_S, rows=None))
        self._clock = clock
        self._zone = zone
        self._partitions = partitions
        self._ack_delay_ms = ack_delay_ms
        self._others = others
        self._turns = QueryTurns(clock)

    async def AuditPush(self, request: AuditPushRequest, context: Context) -> AuditPushResponse:
        check_texts(request)
        _check_msgid(request.msgid)
        if request.device_only and not request.token:
            raise InputError("device_only needs a token")
        behind = _allowed(request, await self._catch_up_with_push(request.msgid))
        try:
            async with self._turns.turn(OPERATORS):
                audit_of = audit_push_on_device if request.device_only else audit_push
                audit = await audit_of(self._clickhouse, request.msgid, self._zone, request.token)
        except NotFoundError as error:
            raise _not_found(error, behind) from None
        audit.records_behind = behind
        return audit

    async def AuditDevice(self, request: AuditDeviceRequest, context: Context) -> AuditDeviceResponse:
        check_texts(request)
        if not request.appkey or not request.token:
            raise InputError("appkey and token are needed")
        behind = _allowed(request, await self._catch_up(_AUDITED, request.appkey))
        try:
            async with self._turns.turn(OPERATORS):
                audit = await audit_device(self._clickhouse, request.appkey, request.token)
        except NotFoundError as error:
            raise _not_found(error, behind) from None
        audit.records_behind = behind
        return audit

    async def AuditApp(self, request: AuditAppRequest, context: Context) -> AuditAppResponse:
        check_texts(request)
        if not request.appkey:
            raise InputError("appkey is needed")
        time_range = _time_range(request)
        behind = _allowed(request, await self._catch_up(_BUT_OUTCOMES))
        try:
            async with self._turns.turn(OPERATORS):
                audit = await audit_app(self._clickhouse, request.appkey, time_range, request.pos, request.limit)
        except NotFoundError as error:
            raise _not_found(error, behind) from None
        audit.records_behind = behind
        return audit

    async def AuditActions(self, request: AuditActionsRequest, context: Context) -> AuditActionsResponse:
        check_texts(request)
        time_range = _time_range(request)
        behind = _allowed(request, await self._catch_up(ACTIONS))
        async with self._turns.turn(OPERATORS):
            audit = await audit_actions(self._clickhouse, request, time_range)
        audit.records_behind = behind
        return audit

    async def ExportPush(
        self, requests: AsyncIterator[ExportPushRequest], context: Context
    ) -> AsyncGenerator[ExportPushResponse, None]:
        request = await anext(requests, ExportPushRequest())
        _check_msgid(request.msgid)
        if request.format not in FORMATS:
            raise InputError("format must be CSV or Parquet")
        behind = _allowed(request, await self._catch_up_with_push(request.msgid))
        push = await find_push(self._clickhouse, "pushes", request.msgid)
        if push is None:
            raise _not_found(no_such_push(request.msgid), behind)
        async with export(self._exports, push, request.msgid, FORMATS[request.format], self._zone) as exported:
            yield ExportPushResponse(rows=exported.rows, records_behind=behind)
            async for piece in exported.pieces:
                yield ExportPushResponse(piece=piece)

    async def ListAcks(self, request: ListAcksRequest, context: Context) -> ListAcksResponse:
        check_texts(request)
        if not request.appkey:
            raise InputError("appkey is needed")
        if not 0 < request.limit <= _MAX_ACKS:
            raise InputError(f"limit must be from 1 to {_MAX_ACKS}")
        start = decode(request.appkey, request.pos)
        now_ms = self._clock.now_ms()
        visible_ms = now_ms - self._ack_delay_ms
        ends = self._ingestion.ends(DELIVERIES)
        await self._ingestion.ingest_push_commands(visible_ms)
        reader = AckReader(
            *(self._clickhouse, request.appkey, self._partitions, ends, lambda: self._catch_up([DEVICES])),
            now_ms=now_ms,
            visible_ms=visible_ms,
        )
        async with self._turns.turn(request.appkey):
            page = await reader.page(start, request.limit)
        return ListAcksResponse(acks=page.acks, pos=encode(request.appkey, page.positions), has_more=page.has_more)

    async def Statistics(self, request: StatisticsRequest, context: Context) -> StatisticsResponse:
        check_texts(request)
        query = StatisticsQuery.of(request, self._clock.now_ms(), self._zone)
        async with self._turns.turn(request.appkey):
            if behind := await self._catch_up(TOPICS[query.kind], request.appkey):
                raise _behind(behind)
            return await answer(self._clickhouse, query)

    async def LatestPushes(self, request: LatestPushesRequest, context: Context) -> LatestPushesResponse:
        check_texts(request)
        _check_limit(request.limit)
        if len(request.appkeys) > _MAX_APPS:
            raise InputError(f"give at most {_MAX_APPS} apps")
        topics = TOPICS[StatisticsKind.STATISTICS_KIND_BROADCASTS]
        only_app = request.appkeys[0] if len(request.appkeys) == 1 else ""
        behind = _allowed(request, await self._catch_up(topics, only_app))
        async with self._turns.turn(OPERATORS):
            found = await latest_pushes(self._clickhouse, request)
        return LatestPushesResponse(pushes=found, records_behind=behind)

    async def PushSpeed(self, request: PushSpeedRequest, context: Context) -> PushSpeedResponse:
        _check_msgid(request.msgid)
        if request.within_ms > _MAX_SPAN_MS:
            raise InputError("within_ms must be at most a year")
        behind = _allowed(request, await self._catch_up_with_push(request.msgid))
        try:
            async with self._turns.turn(OPERATORS):
                speed = await push_speed(self._clickhouse, request.msgid, request.within_ms)
        except NotFoundError as error:
            raise _not_found(error, behind) from None
        speed.records_behind = behind
        return speed

    async def CatchUp(self, request: CatchUpRequest, context: Context) -> CatchUpResponse:
        topics = [topic for topic in SOURCES if topic.name in request.topics or not request.topics]
        return CatchUpResponse(records_behind=await self._ingestion.catch_up(topics, request.appkey))

    async def _catch_up_with_push(self, msgid: int) -> int:
        """Catch up with all that an audit of the push is made of; its app is known once its command is ingested."""
        behind = await self._catch_up(_BUT_OUTCOMES)
        push = None if behind else await find_planned(self._clickhouse, msgid)
        return await self._catch_up(_AUDITED, push.appkey) if push else behind

    async def _catch_up(self, topics: Collection[Topic], appkey: str = "") -> int:
        """Have all instances ingest what is in the topics now, of outcomes those of the app.

        Return how many records are missing after that.
        """
        request = CatchUpRequest(topics=[topic.name for topic in topics], appkey=appkey)
        others = asyncio.gather(*(other.CatchUp(request) for other in self._others))
        behind, answers = await asyncio.gather(self._ingestion.catch_up(topics, appkey), others)
        return behind + sum(answer.records_behind for answer in answers)


def _allowed(request: _Audit, behind: int) -> int:
    """Return how many records are missing, if the request allows that. UnavailableError: records are missing."""
    if behind and not request.allow_behind:
        raise UnavailableError(f"{_lag(behind)}; try again later, or see without them with --allow-behind")
    return behind


def _time_range(request: AuditAppRequest | AuditActionsRequest) -> TimeRange:
    """Return the time range of a request for a page. InputError: it, or the limit of the page, is out of bounds."""
    if not 0 <= request.from_ms < request.to_ms < _MAX_TIME_MS:
        raise InputError("from must be earlier than to, and both after 1970")
    _check_limit(request.limit)
    return TimeRange(request.from_ms, request.to_ms)


def _check_limit(limit: int) -> None:
    if not 0 < limit <= _MAX_LINES:
        raise InputError(f"limit must be from 1 to {_MAX_LINES}")


def _check_msgid(msgid: int) -> None:
    if not 0 < msgid < _MAX_MSGID:
        raise InputError("msgid is not a message id")


def _not_found(error: NotFoundError, behind: int) -> NotFoundError | UnavailableError:
    """Return the error, or UnavailableError while records are missing that may contain what was looked for."""
    return _behind(behind) if behind else error


def _behind(records: int) -> UnavailableError:
    return UnavailableError(f"{_lag(records)}; try again later")


def _lag(records: int) -> str:
    return f"analytics is {records} {'record' if records == 1 else 'records'} behind the event log"
