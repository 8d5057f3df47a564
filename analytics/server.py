"""gRPC servicer that answers audits, statistics and pages of acknowledgements from the store."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar
from zoneinfo import ZoneInfo

from google.protobuf.message import Message

from analytics.acks import AckReader, decode_positions, encode
from analytics.audit.actions import audit_actions
from analytics.audit.app import audit_app
from analytics.audit.device import HistoryPart, audit_device
from analytics.audit.export import FORMATS, export
from analytics.audit.find_push import AppsOfPushes, find_push, no_such_push
from analytics.audit.push import audit_push, audit_push_on_device
from analytics.audit.push_speed import push_speed
from analytics.audit.refusals import list_refusals
from analytics.audit.states import devices_in_state, states_by_value
from analytics.ingestion.ingestion import Ingestion
from analytics.ingestion.tables.actions import ACTIONS_TABLE
from analytics.ingestion.translation import ACTIONS, SOURCES
from analytics.questions import (
    OPERATORS,
    AnswerCache,
    QueryLimiter,
    Question,
    check_limit,
    check_msgid,
    missing,
    missing_if_allowed,
    not_found,
    time_range,
)
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
    ListPushDevicesRequest,
    ListPushDevicesResponse,
    ListRefusalsRequest,
    ListRefusalsResponse,
    PushSpeedRequest,
    PushSpeedResponse,
    PushStatesRequest,
    PushStatesResponse,
    StatisticsKind,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceServicer
from services.domain.text import check_texts
from services.domain.topics import ACCOUNTS, DELIVERIES, DEVICES, DRAFTS, ERASURES, LOG_INS, REFUSALS
from services.errors import InputError, NotFoundError
from services.log.topics import Topic
from services.net.rpc.server import Context
from services.process.clock import Clock

if TYPE_CHECKING:
    from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceAsyncStub

A = TypeVar("A", bound=Message)
QuestionOfPush = AuditPushRequest | PushSpeedRequest | PushStatesRequest | ListPushDevicesRequest
P = TypeVar("P", AuditPushResponse, PushSpeedResponse, PushStatesResponse, ListPushDevicesResponse)
_MAX_SPAN_MS = 366 * 86_400_000
_MAX_ACKS = 1000
_MAX_APPS = 1000
_EXPORT_S = 3600
_AUDITED = tuple(topic for topic in SOURCES if topic not in (ACCOUNTS, LOG_INS, DRAFTS, ERASURES, REFUSALS))
"""Topics of audits of apps, devices and pushes. Not `log-ins`: each look at a device adds a record there."""

_BUT_OUTCOMES = tuple(topic for topic in _AUDITED if topic is not DELIVERIES)


class AnalyticsServicer(AnalyticsServiceServicer):
    """Answers calls. Audits and statistics wait until their topics are ingested up to the log's end.

    For outcomes they wait only until those of their own app are ingested. A wait that takes too long ends with
    UnavailableError, except for audits that allow missing records. Pages of acknowledgements do not wait.
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
        """`limits`: of a query. `others`: the other instances, which ingest the other partitions into this store."""
        self._ingestion = ingestion
        self._clickhouse = clickhouse.limited(limits)
        self._exports = clickhouse.limited(limits._replace(seconds=_EXPORT_S, rows=None))
        self._clock = clock
        self._zone = zone
        self._partitions = partitions
        self._ack_delay_ms = ack_delay_ms
        self._others = others
        self._limiter = QueryLimiter(clock)
        # Beside other instances no answer is kept, because this one does not notice what they insert.
        self._kept = None if others else AnswerCache(ingestion.changes, clock)
        self._apps_of_pushes = AppsOfPushes(self._clickhouse)

    async def AuditPush(self, request: AuditPushRequest, context: Context) -> AuditPushResponse:
        check_texts(request)
        check_msgid(request.msgid)
        if request.device_only and not request.token:
            raise InputError("device_only needs a token")
        audit_of = audit_push_on_device if request.device_only else audit_push
        return await self._of_push(
            request, lambda: audit_of(self._clickhouse, request.msgid, self._zone, request.token)
        )

    async def AuditDevice(self, request: AuditDeviceRequest, context: Context) -> AuditDeviceResponse:
        check_texts(request)
        if not request.appkey or not request.token:
            raise InputError("appkey and token are needed")
        part = HistoryPart.of(request)
        behind = missing_if_allowed(request, await self._catch_up(_AUDITED, request.appkey, request.max_age_ms))
        try:
            async with self._limiter.slot(OPERATORS):
                audit = await self._answer(
                    request,
                    lambda: audit_device(self._clickhouse, request.appkey, request.token, self._zone, part),
                    lambda made: [made.appkey],
                )
        except NotFoundError as error:
            raise not_found(error, behind) from None
        audit.records_behind = behind
        return audit

    async def AuditApp(self, request: AuditAppRequest, context: Context) -> AuditAppResponse:
        check_texts(request)
        if not request.appkey:
            raise InputError("appkey is needed")
        span = time_range(request)
        behind = missing_if_allowed(request, await self._catch_up(_BUT_OUTCOMES))
        try:
            async with self._limiter.slot(OPERATORS):
                audit = await audit_app(self._clickhouse, request.appkey, span, request.pos, request.limit, self._zone)
        except NotFoundError as error:
            raise not_found(error, behind) from None
        audit.records_behind = behind
        return audit

    async def AuditActions(self, request: AuditActionsRequest, context: Context) -> AuditActionsResponse:
        check_texts(request)
        span = time_range(request)
        behind = missing_if_allowed(request, await self._catch_up(ACTIONS, max_age_ms=request.max_age_ms))
        async with self._limiter.slot(OPERATORS):
            audit = await self._answer(
                request, lambda: audit_actions(self._clickhouse, request, span), lambda made: [ACTIONS_TABLE.name]
            )
        audit.records_behind = behind
        return audit

    async def ExportPush(
        self, requests: AsyncIterator[ExportPushRequest], context: Context
    ) -> AsyncGenerator[ExportPushResponse, None]:
        request = await anext(requests, ExportPushRequest())
        check_msgid(request.msgid)
        if request.format not in FORMATS:
            raise InputError("format must be CSV or Parquet")
        behind = missing_if_allowed(request, await self._catch_up_with_push(request.msgid))
        async with self._limiter.export():
            push = await find_push(self._clickhouse, "pushes", request.msgid)
            if push is None:
                raise not_found(no_such_push(request.msgid), behind)
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
        start = decode_positions(request.appkey, request.pos)
        now_ms = self._clock.now_ms()
        visible_ms = now_ms - self._ack_delay_ms
        ends = self._ingestion.ends(DELIVERIES)
        await self._ingestion.ingest_push_commands(visible_ms)
        reader = AckReader(
            *(self._clickhouse, request.appkey, self._partitions, ends, lambda: self._catch_up([DEVICES])),
            now_ms=now_ms,
            visible_ms=visible_ms,
        )
        async with self._limiter.slot(request.appkey):
            page = await reader.page(start, request.limit)
        return ListAcksResponse(acks=page.acks, pos=encode(request.appkey, page.positions), has_more=page.has_more)

    async def Statistics(self, request: StatisticsRequest, context: Context) -> StatisticsResponse:
        check_texts(request)
        query = StatisticsQuery.of(request, self._clock.now_ms(), self._zone)
        if behind := await self._catch_up(TOPICS[query.kind], request.appkey, request.max_age_ms):
            raise missing(behind)
        async with self._limiter.slot(request.appkey):
            return await self._answer(request, lambda: answer(self._clickhouse, query), lambda made: [query.appkey])

    async def LatestPushes(self, request: LatestPushesRequest, context: Context) -> LatestPushesResponse:
        check_texts(request)
        check_limit(request.limit)
        if len(request.appkeys) > _MAX_APPS:
            raise InputError(f"give at most {_MAX_APPS} apps")
        topics = TOPICS[StatisticsKind.STATISTICS_KIND_BROADCASTS]
        only_app = request.appkeys[0] if len(request.appkeys) == 1 else ""
        behind = missing_if_allowed(request, await self._catch_up(topics, only_app, request.max_age_ms))
        async with self._limiter.slot(OPERATORS):
            latest = await self._answer(
                request, lambda: latest_pushes(self._clickhouse, request), lambda made: request.appkeys
            )
        latest.records_behind = behind
        return latest

    async def PushSpeed(self, request: PushSpeedRequest, context: Context) -> PushSpeedResponse:
        check_msgid(request.msgid)
        if request.within_ms > _MAX_SPAN_MS:
            raise InputError("within_ms must be at most a year")
        return await self._of_push(request, lambda: push_speed(self._clickhouse, request.msgid, request.within_ms))

    async def PushStates(self, request: PushStatesRequest, context: Context) -> PushStatesResponse:
        check_msgid(request.msgid)
        return await self._of_push(request, lambda: states_by_value(self._clickhouse, request))

    async def ListPushDevices(self, request: ListPushDevicesRequest, context: Context) -> ListPushDevicesResponse:
        check_texts(request)
        check_msgid(request.msgid)
        check_limit(request.limit)
        return await self._of_push(request, lambda: devices_in_state(self._clickhouse, request))

    async def ListRefusals(self, request: ListRefusalsRequest, context: Context) -> ListRefusalsResponse:
        check_texts(request)
        check_limit(request.limit)
        behind = missing_if_allowed(request, await self._catch_up([REFUSALS], max_age_ms=request.max_age_ms))
        async with self._limiter.slot(OPERATORS):
            found = await list_refusals(self._clickhouse, request.appkey, request.limit)
        found.records_behind = behind
        return found

    async def CatchUp(self, request: CatchUpRequest, context: Context) -> CatchUpResponse:
        topics = [topic for topic in SOURCES if topic.name in request.topics or not request.topics]
        return CatchUpResponse(
            records_behind=await self._ingestion.catch_up(topics, request.appkey, request.max_age_ms)
        )

    async def _of_push(self, request: QuestionOfPush, make: Callable[[], Awaitable[P]]) -> P:
        """Catch up with the push, and make the answer about it. NotFoundError: there is no such push."""
        behind = missing_if_allowed(request, await self._catch_up_with_push(request.msgid, request.max_age_ms))
        try:
            async with self._limiter.slot(OPERATORS):
                made = await self._answer(request, make, lambda made: [made.appkey])
        except NotFoundError as error:
            raise not_found(error, behind) from None
        made.records_behind = behind
        return made

    async def _catch_up_with_push(self, msgid: int, max_age_ms: int = 0) -> int:
        """Catch up with all that an audit of the push is made of; its app is known once its command is ingested."""
        behind = await self._catch_up(_BUT_OUTCOMES, max_age_ms=max_age_ms)
        appkey = "" if behind else await self._apps_of_pushes.find(msgid)
        return await self._catch_up(_AUDITED, appkey, max_age_ms) if appkey else behind

    async def _answer(
        self,
        request: Question,
        make: Callable[[], Awaitable[A]],
        names: Callable[[A], Sequence[str]],
    ) -> A:
        """Make the answer, or return the kept one if the request allows missing records; `names`: see AnswerCache."""
        if self._kept is None or not request.max_age_ms:
            return await make()
        return await self._kept.answer(request, make, names)

    async def _catch_up(self, topics: Collection[Topic], appkey: str = "", max_age_ms: int = 0) -> int:
        """Have all instances ingest the topics up to their present ends; see `Ingestion.catch_up` for `appkey`.

        Return how many records are missing after that.
        """
        request = CatchUpRequest(topics=[topic.name for topic in topics], appkey=appkey, max_age_ms=max_age_ms)
        others = asyncio.gather(*(other.CatchUp(request) for other in self._others))
        behind, answers = await asyncio.gather(self._ingestion.catch_up(topics, appkey, max_age_ms), others)
        return behind + sum(answer.records_behind for answer in answers)
