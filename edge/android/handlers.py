"""The endpoints of the legacy Android door."""

from typing import NamedTuple
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from edge.android.replies import push_reply
from edge.android.requests import asked_acks, cancelled_push, cancelled_task, push_order, timed_order
from edge.core.acks import Acks
from edge.core.answers import answer
from edge.core.authentication import Entry
from edge.core.broadcast_cancel import Broadcasts
from edge.core.idempotency import Idempotency, Wanted
from edge.core.tasks import Tasks
from services.runtime.process.clock import Clock


class PushEndpoint:
    """POST and DELETE /push"""

    def __init__(self, entry: Entry, first_answers: Idempotency, broadcasts: Broadcasts) -> None:
        self._entry = entry
        self._first_answers = first_answers
        self._broadcasts = broadcasts

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)

        def read() -> Wanted:
            order = push_order(caller.raw, caller.ref, caller.app.default_period_s)
            return Wanted(order.pushes, lambda receipts, _: push_reply(order, receipts))

        answer(response, await self._first_answers.give(request, caller.app.appkey, caller.origin, caller.text, read))

    async def on_delete(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        await self._broadcasts.cancel(caller.app.appkey, cancelled_push(caller.raw), caller.origin)
        answer(response, {"result": 0, "desc": "cancel succ"})


class Times(NamedTuple):
    """What send times are read by: the clock, the zone they are in, and how far ahead they must lie, seconds."""

    clock: Clock
    zone: ZoneInfo
    min_lead_s: int


class TimedEndpoint:
    """POST and DELETE /timed_msg"""

    def __init__(self, entry: Entry, first_answers: Idempotency, tasks: Tasks, times: Times) -> None:
        self._entry = entry
        self._first_answers = first_answers
        self._tasks = tasks
        self._times = times

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)

        def read() -> Wanted:
            clock, zone, lead_s = self._times
            period_s = caller.app.default_period_s
            order, due_ms = timed_order(caller.raw, caller.ref, period_s, clock.now_ms(), zone, lead_s)
            return Wanted(order.pushes, lambda _, key: {"result": 0, "desc": "ok", "task_key": key}, due_ms)

        answer(response, await self._first_answers.give(request, caller.app.appkey, caller.origin, caller.text, read))

    async def on_delete(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        await self._tasks.cancel(cancelled_task(caller.raw), [caller.app.appkey], caller.origin)
        answer(response, {"result": 0, "desc": "cancel succ"})


class AckEndpoint:
    """POST /getAckInfo"""

    def __init__(self, entry: Entry, acks: Acks) -> None:
        self._entry = entry
        self._acks = acks

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        await self._acks.check_enabled(caller.app)
        page = await self._acks.read(caller.app, *asked_acks(caller.raw))
        acks = [{"msgid": ack.msgid, "token": ack.token} for ack in page.acks]
        answer(response, {"result": 0, "desc": "ok", "ack_info_list": acks, "has_more": page.has_more, "pos": page.pos})
