"""Bounds how many pages and calls are made at once, so that many operators delay the pushes only a little."""

from typing import Any

from falcon.asgi import Request, Response

from edge.console.access_control.bearer import is_call
from edge.console.access_control.requester import Requester
from edge.core.parsing.body import Application, Receive, Send
from services.runtime.fairness.semaphore import FairSemaphore, Slot

AT_ONCE = 16
"""Pages that are made at once. Most of the time of a page passes in other roles."""

MAX_WAITING = 32
"""Requests of one account, or of one address before the log-in, that wait; more are answered with HTTP 503."""

_SLOT = "carillon.slot"
_FILES = "/static/"


class PageLimiter:
    """Falcon middleware that limits how many requests are answered at once, those of different accounts alternately.

    A request holds a slot until its answer is made, or until the browser closes the connection.
    """

    def __init__(self, at_once: int = AT_ONCE, max_waiting: int = MAX_WAITING) -> None:
        self._semaphore = FairSemaphore("pages", at_once, max_waiting=max_waiting)

    async def process_resource(self, request: Request, response: Response, resource: Any, params: Any) -> None:
        """Wait for a slot. BusyError: too many requests of the account wait."""
        if request.path.startswith(_FILES):
            return
        who: Requester = request.context.requester if is_call(request.path) else request.context.visit
        request.scope[_SLOT] = await self._semaphore.acquire(who.actor.name or who.origin.address)

    async def process_response(self, request: Request, response: Response, resource: Any, succeeded: bool) -> None:
        _release(request.scope)


def releasing_slots(application: Application) -> Application:
    """Return the application that also releases the slot of a request that was cancelled."""

    async def releasing(scope: Any, receive: Receive, send: Send) -> None:
        try:
            await application(scope, receive, send)
        finally:
            _release(scope)

    return releasing


def _release(scope: Any) -> None:
    slot: Slot | None = scope.get(_SLOT)
    if slot is not None:
        slot.release()
