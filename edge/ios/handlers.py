"""The endpoints of the legacy iOS door."""

from falcon.asgi import Request, Response

from edge.core.answers import answer
from edge.core.entry import Entry
from edge.core.push import Pushes
from edge.ios.registrations import Registrations
from edge.ios.replies import push_reply
from edge.ios.requests import named_token, push_order


class PushEndpoint:
    """POST /push"""

    def __init__(self, entry: Entry, pushes: Pushes) -> None:
        self._entry = entry
        self._pushes = pushes

    async def on_post(self, request: Request, response: Response) -> None:
        caller = await self._entry.admit(request)
        push = push_order(caller.raw, caller.ref, caller.app.default_period_s)
        (receipt,) = await self._pushes.send([push], caller.origin, caller.text)
        answer(response, push_reply(receipt))


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
