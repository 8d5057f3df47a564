"""Refused requests of an app's servers: the page that lists them, and their reasons in words."""

from collections.abc import Callable, Sequence

from falcon.asgi import Request, Response

from console.shell.backend import ANALYTICS_S, Backend
from console.shell.page import Page, visit_of
from protos.analytics.v1.analytics_pb2 import ListRefusalsRequest, ListRefusalsResponse, RefusedRequest
from services.errors import CarillonError

MAX_REFUSALS = 1_000
_PUSHES = frozenset({"POST /v2/push", "POST /push", "POST /timed_msg"})
"""The calls that ask for a push, in all interfaces."""

_SHOWN_TO_EXPLAIN = 5


async def list_refusals(
    backend: Backend, appkey: str, limit: int = MAX_REFUSALS, *, allow_behind: bool = True
) -> ListRefusalsResponse:
    """Return the latest refusals of the last 30 days, the newest first."""
    asked = ListRefusalsRequest(appkey=appkey, limit=limit, allow_behind=allow_behind)
    return await backend.roles.analytics.ListRefusals(asked, timeout=ANALYTICS_S)


async def refused_pushes(backend: Backend, appkey: str, since_ms: int) -> Sequence[RefusedRequest]:
    """Return the latest refused requests for a push since a time; none while analytics does not answer."""
    try:
        found = await list_refusals(backend, appkey)
    except CarillonError:
        return []
    return [each for each in found.refusals if each.call in _PUSHES and each.time_ms >= since_ms][:_SHOWN_TO_EXPLAIN]


def refusal_reason(refusal: RefusedRequest, gettext: Callable[[str], str]) -> str:
    """Return why a request was refused, for people."""
    _ = gettext
    if refusal.code == "APP_PAUSED":
        return _("the app was paused")
    match refusal.result:
        case 401 if refusal.is_signed:
            return _("the replay-safe signature was wrong")
        case 401:
            return _("the sign was wrong: made with another secret key, such as one that was replaced")
        case 403:
            return _("the app's settings do not allow it")
        case 429 if refusal.code.startswith("OVER_"):
            return _("the app was over a quota")
        case 429:
            return _("too much was asked for at a time")
        case 400:
            return _("the request was wrong")
        case 503:
            return _("a part of the service did not answer")
        case _:
            return _("the service had a fault")


class RefusedRequestsPage(Page):
    """GET lists the refused requests of the app."""

    async def on_get(self, request: Request, response: Response, appkey: str) -> None:
        app, visit = self.app(appkey), visit_of(request)
        found = await list_refusals(self.site, appkey)
        rows = [(refusal, refusal_reason(refusal, visit.gettext)) for refusal in found.refusals]
        self.show(request, response, "apps/refused.html", app=app, rows=rows, records_behind=found.records_behind)
