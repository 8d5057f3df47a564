"""Routes and endpoints of the legacy Android interface."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.android.replies import Timed, acks_reply, push_reply
from edge.android.requests import acks_query, cancelled_push, cancelled_task, push_order, timed_order
from edge.core.admission import Admission
from edge.core.analytics_calls import AckPages
from edge.core.answers import Done, JsonApi, answer, json_api
from edge.core.idempotency import IdempotentPushes
from edge.core.push import RequestedPushes
from edge.core.tasks import BroadcastCancel, TaskCalls
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.process.clock import Clock

# The endpoints of the legacy Android interface.

_CANCELLED = Done(result=0, desc="cancel succ")


class AndroidPushEndpoint:
    """POST and DELETE /push"""

    def __init__(self, admission: Admission, pushes: IdempotentPushes, broadcasts: BroadcastCancel) -> None:
        self._admission = admission
        self._pushes = pushes
        self._broadcasts = broadcasts

    async def on_post(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_ANDROID)

        def requested(raw: bytes) -> RequestedPushes:
            order = push_order(raw, app)
            return RequestedPushes(order.pushes, lambda results, _: push_reply(order, results))

        answer(response, await self._pushes.handle(signed, requested))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_ANDROID)
        await self._broadcasts.cancel(app.appkey, await signed.read(cancelled_push), signed.origin)
        answer(response, _CANCELLED)


class SendTimes(NamedTuple):
    """The context of send times: the clock, the time zone they are in, and their minimum lead, seconds."""

    clock: Clock
    zone: ZoneInfo
    min_lead_s: int


class TimedEndpoint:
    """POST and DELETE /timed_msg"""

    def __init__(self, admission: Admission, pushes: IdempotentPushes, tasks: TaskCalls, times: SendTimes) -> None:
        self._admission = admission
        self._pushes = pushes
        self._tasks = tasks
        self._times = times

    async def on_post(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_ANDROID)

        def requested(raw: bytes) -> RequestedPushes:
            clock, zone, lead_s = self._times
            order, due_ms = timed_order(raw, app, clock.now_ms(), zone, lead_s)
            return RequestedPushes(order.pushes, lambda _, key: Timed(result=0, desc="ok", task_key=key), due_ms)

        answer(response, await self._pushes.handle(signed, requested))

    async def on_delete(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_ANDROID)
        await self._tasks.cancel(await signed.read(cancelled_task), [app.appkey], signed.origin)
        answer(response, _CANCELLED)


class AckEndpoint:
    """POST /getAckInfo"""

    def __init__(self, admission: Admission, acks: AckPages) -> None:
        self._admission = admission
        self._acks = acks

    async def on_post(self, request: Request, response: Response) -> None:
        signed, app = await self._admission.admit_app(request, PLATFORM_ANDROID)
        await self._acks.check_enabled(app)
        query = await signed.read(acks_query)
        answer(response, acks_reply(await self._acks.read(request, app, *query)))


def android_app(
    settings: Settings,
    min_lead_s: int,
    context: RoleContext,
    admission: Admission,
    pushes: IdempotentPushes,
    writer: CommandWriter,
) -> JsonApi:
    """Return the ASGI application. `min_lead_s`: minimum lead of a timed message, seconds."""
    tasks = TaskCalls(writer, context.peers, settings.partitions)
    app = json_api("android", admission.note_refusal)
    app.add_route("/push", AndroidPushEndpoint(admission, pushes, BroadcastCancel(writer, context.peers)))
    times = SendTimes(context.clock, settings.zone(), min_lead_s)
    app.add_route("/timed_msg", TimedEndpoint(admission, pushes, tasks, times))
    app.add_route("/getAckInfo", AckEndpoint(admission, AckPages(context.apps, context.peers)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("android"))
    return app
