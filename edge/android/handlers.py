"""The endpoints of the legacy Android interface."""

from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.android.replies import Timed, acks_reply, push_reply
from edge.android.requests import acks_query, cancelled_push, cancelled_task, push_order, timed_order
from edge.core.acks import Acks
from edge.core.answers import Done, answer
from edge.core.authentication import AppAuthenticator
from edge.core.broadcast_cancel import BroadcastCancel
from edge.core.idempotency import Idempotency, RequestedPushes
from edge.core.tasks import Tasks
from services.runtime.process.clock import Clock

_CANCELLED = Done(result=0, desc="cancel succ")


class PushEndpoint:
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
        self, authenticator: AppAuthenticator, idempotency: Idempotency, tasks: Tasks, times: SendTimes
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

    def __init__(self, authenticator: AppAuthenticator, acks: Acks) -> None:
        self._authenticator = authenticator
        self._acks = acks

    async def on_post(self, request: Request, response: Response) -> None:
        signed = await self._authenticator.authenticate(request)
        await self._acks.check_enabled(signed.app)
        query = await signed.read(acks_query)
        answer(response, acks_reply(await self._acks.read(request, signed.app, *query)))
