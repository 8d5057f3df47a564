"""Analytics for tests of pages: answers what a test gave it, so that they need no store."""

import asyncio

from protos.analytics.v1.analytics_pb2 import (
    ActionEntry,
    AuditActionsRequest,
    AuditActionsResponse,
    AuditAppRequest,
    AuditAppResponse,
    AuditDeviceRequest,
    AuditDeviceResponse,
    AuditPushRequest,
    AuditPushResponse,
    DeviceOfPush,
    LatestPush,
    LatestPushesRequest,
    LatestPushesResponse,
    ListPushDevicesRequest,
    ListPushDevicesResponse,
    ListRefusalsRequest,
    ListRefusalsResponse,
    PushSpeedRequest,
    PushSpeedResponse,
    PushStatesRequest,
    PushStatesResponse,
    RefusedRequest,
    StatisticsRequest,
    StatisticsResponse,
)
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceServicer
from services.errors import Code, InputError, NotFoundError, UnavailableError
from services.net.rpc.server import Context


class ScriptedAnalytics(AnalyticsServiceServicer):
    """Answers `pushes`, `speeds` and `states` by message id, `timelines`, `refusals` and `statistics` by appkey.

    `devices` are by token, and `devices_in_state` tokens by message id, state and reason.

    The latest pushes are those in `statistics`, with the title and text in `words`. Requests for statistics and for the
    latest pushes wait until `may_answer` is set. `asked` holds all requests.
    A `refusal` refuses them all.
    """

    def __init__(self) -> None:
        self.is_away = False
        self.refusal: Code | None = None
        self.pushes: dict[int, AuditPushResponse] = {}
        self.speeds: dict[int, PushSpeedResponse] = {}
        self.states: dict[int, PushStatesResponse] = {}
        self.timelines: dict[str, AuditAppResponse] = {}
        self.devices: dict[str, AuditDeviceResponse] = {}
        self.devices_in_state: dict[tuple[int, str, str], list[str]] = {}
        self.actions: list[ActionEntry] = []
        self.statistics: dict[str, StatisticsResponse] = {}
        self.refusals: dict[str, list[RefusedRequest]] = {}
        self.words: dict[int, tuple[str, str]] = {}
        self.asked: list[object] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def AuditPush(self, request: AuditPushRequest, context: Context) -> AuditPushResponse:
        self._note(request)
        if request.msgid not in self.pushes:
            raise NotFoundError(f"no push has the message id {request.msgid}")
        return self.pushes[request.msgid]

    async def AuditApp(self, request: AuditAppRequest, context: Context) -> AuditAppResponse:
        self._note(request)
        return self.timelines.get(request.appkey, AuditAppResponse())

    async def ListRefusals(self, request: ListRefusalsRequest, context: Context) -> ListRefusalsResponse:
        self._note(request)
        return ListRefusalsResponse(refusals=self.refusals.get(request.appkey, [])[: request.limit])

    async def AuditActions(self, request: AuditActionsRequest, context: Context) -> AuditActionsResponse:
        """Answer in pages of two at most; a position is the number of the entries before it."""
        self._note(request)
        start = int(request.pos or 0)
        end = start + min(2, request.limit)
        return AuditActionsResponse(actions=self.actions[start:end], pos=str(end) if end < len(self.actions) else "")

    async def AuditDevice(self, request: AuditDeviceRequest, context: Context) -> AuditDeviceResponse:
        """Answer with the entries before the asked time; with a limit, the entries before the latest ones may miss."""
        self._note(request)
        found = AuditDeviceResponse(appkey=request.appkey, token=request.token)
        if request.token not in self.devices:
            return found
        found.CopyFrom(self.devices[request.token])
        entries = [one for one in found.timeline if not request.before_ms or one.first_ms < request.before_ms]
        if request.limit and len(entries) > request.limit:
            found.complete_from_ms = entries[-request.limit].first_ms
        del found.timeline[:]
        found.timeline.extend(entries)
        return found

    async def Statistics(self, request: StatisticsRequest, context: Context) -> StatisticsResponse:
        self._note(request)
        await self.may_answer.wait()
        return self.statistics.get(request.appkey, StatisticsResponse())

    async def LatestPushes(self, request: LatestPushesRequest, context: Context) -> LatestPushesResponse:
        self._note(request)
        await self.may_answer.wait()
        found = [
            LatestPush(appkey=appkey, counts=row, title=title, text=text)
            for appkey in request.appkeys
            for row in self.statistics.get(appkey, StatisticsResponse()).broadcasts
            for title, text in [self.words.get(row.msgid, ("", ""))]
            if request.words.casefold() in f"{title} {text}".casefold()
            and row.sent_ms >= request.from_ms
            and (row.sent_ms, row.msgid) < (request.to_ms or row.sent_ms + 1, request.below_msgid)
        ]
        found.sort(key=lambda push: (push.counts.sent_ms, push.counts.msgid), reverse=True)
        return LatestPushesResponse(pushes=found[: request.limit])

    async def PushSpeed(self, request: PushSpeedRequest, context: Context) -> PushSpeedResponse:
        self._note(request)
        if request.msgid not in self.speeds:
            raise NotFoundError(f"no push has the message id {request.msgid}")
        return self.speeds[request.msgid]

    async def PushStates(self, request: PushStatesRequest, context: Context) -> PushStatesResponse:
        self._note(request)
        if request.msgid not in self.states:
            raise NotFoundError(f"no push has the message id {request.msgid}")
        return self.states[request.msgid]

    async def ListPushDevices(self, request: ListPushDevicesRequest, context: Context) -> ListPushDevicesResponse:
        """Answer in pages of two at most; a position is the number of the devices before it."""
        self._note(request)
        found = self.devices_in_state.get((request.msgid, request.state, request.reason), [])
        start = int(request.pos or 0)
        end = start + min(2, request.limit)
        appkey = self.pushes[request.msgid].appkey if request.msgid in self.pushes else ""
        devices = (DeviceOfPush(msgid=request.msgid, token=token) for token in found[start:end])
        return ListPushDevicesResponse(appkey=appkey, devices=devices, pos=str(end) if end < len(found) else "")

    def _note(self, request: object) -> None:
        if self.is_away:
            raise UnavailableError("analytics is away")
        if self.refusal is not None:
            raise InputError(self.refusal)
        self.asked.append(request)
