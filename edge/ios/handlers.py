"""The endpoints of the legacy iOS door."""

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.authentication import Entry
from edge.core.idempotency import Idempotency, Wanted
from edge.ios.registrations import Registrations
from edge.ios.replies import push_reply
from edge.ios.requests import named_token, push_order


class PushEndpoint:
    """POST /push"""

    def __init__(self, entry: Entry, first_answers: Idempotency) -> None:
        self._entry = entry
        self._first_answers = first_answers

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)

        def read() -> Wanted:
            push = push_order(caller.raw, caller.ref, caller.app.default_period_s)
            return Wanted([push], lambda receipts, _: push_reply(receipts[0]))

        answer(response, await self._first_answers.give(request, caller.app.appkey, caller.origin, caller.text, read))


class RegisterEndpoint:
    """POST and DELETE /register"""

    def __init__(self, entry: Entry, registrations: Registrations) -> None:
        self._entry = entry
        self._registrations = registrations

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        await self._registrations.register(caller.ref, named_token(caller.raw), caller.origin)
        answer(response, {"result": 0, "desc": "add token done"})

    async def on_delete(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        await self._registrations.remove(caller.ref, named_token(caller.raw), caller.origin)
        answer(response, {"result": 0, "desc": "delete token done"})
