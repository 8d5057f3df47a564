"""Routes and endpoints of the legacy Android interface."""

from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.android.replies import Timed, acks_reply, push_reply
from edge.android.requests import acks_query, cancelled_push, cancelled_task, push_order, timed_order
from edge.core.admission import Admission, AppAuthenticator, Authenticator, Origins
from edge.core.analytics_calls import AckPages
from edge.core.answers import Done, JsonApi, answer, json_api
from edge.core.idempotency import Idempotency, RequestedPushes
from edge.core.message_ids import MessageIds
from edge.core.parsing.body import BodyBudget
from edge.core.push import Pushes
from edge.core.quotas import PushQuotas, rate_quotas
from edge.core.replay_protection import ReplayProtection
from edge.core.request_limiter import RequestLimiter
from edge.core.signature import SignatureVerifier
from edge.core.tasks import BroadcastCancel, TaskCalls
from edge.openapi.documents import OPENAPI_PATH, DocumentEndpoint
from edge.settings import ROLE_NAME
from protos.registry.v1.apps_pb2 import PLATFORM_ANDROID
from services.domain.command_writer import CommandWriter
from services.domain.role import RoleContext
from services.domain.settings import Settings
from services.domain.token_resolver import TokenAndAliasResolver
from services.process.clock import Clock

# The endpoints of the legacy Android interface.

_CANCELLED = Done(result=0, desc="cancel succ")


class AndroidPushEndpoint:
    """POST and DELETE /push"""

    def __init__(self, authenticator: AppAuthenticator, idempotency: Idempotency, broadcasts: BroadcastCancel) -> None:
        self._authenticator = authenticator
        self._idempotency = idempotency
        self._broadcasts = broadcasts

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)

        def requested(raw: bytes) -> RequestedPushes:
            order = push_order(raw, signed.app)
            return RequestedPushes(order.pushes, lambda results, _: push_reply(order, results))

        read = partial(signed.read, requested)
        reply = await self._idempotency.execute(request, signed.app.appkey, signed.origin, signed.text, read)
        answer(response, reply)

    async def on_delete(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._broadcasts.cancel(signed.app.appkey, await signed.read(cancelled_push), signed.origin)
        answer(response, _CANCELLED)


class SendTimes(NamedTuple):
    """The context of send times: the clock, the time zone they are in, and their minimum lead, seconds."""

    clock: Clock
    zone: ZoneInfo
    min_lead_s: int


class TimedEndpoint:
    """POST and DELETE /timed_msg"""

    def __init__(
        self, authenticator: AppAuthenticator, idempotency: Idempotency, tasks: TaskCalls, times: SendTimes
    ) -> None:
        self._authenticator = authenticator
        self._idempotency = idempotency
        self._tasks = tasks
        self._times = times

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)

        def requested(raw: bytes) -> RequestedPushes:
            clock, zone, lead_s = self._times
            order, due_ms = timed_order(raw, signed.app, clock.now_ms(), zone, lead_s)
            return RequestedPushes(order.pushes, lambda _, key: Timed(result=0, desc="ok", task_key=key), due_ms)

        read = partial(signed.read, requested)
        reply = await self._idempotency.execute(request, signed.app.appkey, signed.origin, signed.text, read)
        answer(response, reply)

    async def on_delete(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._tasks.cancel(await signed.read(cancelled_task), [signed.app.appkey], signed.origin)
        answer(response, _CANCELLED)


class AckEndpoint:
    """POST /getAckInfo"""

    def __init__(self, authenticator: AppAuthenticator, acks: AckPages) -> None:
        self._authenticator = authenticator
        self._acks = acks

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._acks.check_enabled(signed.app)
        query = await signed.read(acks_query)
        answer(response, acks_reply(await self._acks.read(request, signed.app, *query)))


def android_app(
    settings: Settings,
    min_lead_s: int,
    context: RoleContext,
    ids: MessageIds,
    limiter: RequestLimiter,
    budget: BodyBudget,
    replays: ReplayProtection,
) -> JsonApi:
    """Return the ASGI application. `min_lead_s`: minimum lead of a timed message, seconds."""
    writer = CommandWriter(ROLE_NAME, context.log, context.peers, context.clock, settings.partitions)
    resolver = TokenAndAliasResolver(context.peers, settings.partitions)
    rates = rate_quotas(settings, context)
    quotas = PushQuotas(context.apps, rates, context.peers, context.clock)
    pushes = Pushes(context.apps, quotas, writer, resolver, ids, context.clock)
    idempotency = Idempotency(pushes, context.peers, context.clock, settings.partitions, limiter)
    broadcasts = BroadcastCancel(writer, context.peers)
    tasks = TaskCalls(writer, context.peers, settings.partitions)
    origins = Origins("android", settings.client_addresses())
    signatures = SignatureVerifier(context.apps, context.keys, context.clock)
    admission = Admission(context.apps, rates, context.clock)
    authenticator = AppAuthenticator(
        PLATFORM_ANDROID, context.apps, Authenticator(signatures, admission, origins, limiter, budget, replays)
    )
    app = json_api("android")
    app.add_route("/push", AndroidPushEndpoint(authenticator, idempotency, broadcasts))
    times = SendTimes(context.clock, settings.zone(), min_lead_s)
    app.add_route("/timed_msg", TimedEndpoint(authenticator, idempotency, tasks, times))
    app.add_route("/getAckInfo", AckEndpoint(authenticator, AckPages(context.apps, context.peers)))
    app.add_route(OPENAPI_PATH, DocumentEndpoint("android"))
    return app
