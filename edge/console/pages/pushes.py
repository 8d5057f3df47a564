"""Pushes: the list of broadcasts and multicasts, and one push with its funnel."""

import asyncio
from typing import NamedTuple

import falcon
from falcon.asgi import Request, Response

from edge.console.gate.visit import Visit
from edge.console.numbers import MAX_MSGID, whole_number
from edge.console.pages.page import Page, Site, go_to, problem_of, visit_of
from edge.console.roles import ANALYTICS_S
from edge.console.view.push_view import UNICAST, content, funnel, is_moving, may_be_cancelled
from protos.analytics.v1.analytics_pb2 import (
    AuditPushRequest,
    AuditPushResponse,
    BroadcastRow,
    StatisticsKind,
    StatisticsRequest,
)
from protos.registry.v1.apps_pb2 import App
from services.domain.accounts.permissions import Action
from services.runtime.errors import CarillonError, NotFoundError

MAX_APPS = 30
"""The list asks for this many apps at once; further ones are chosen by name."""

MAX_ROWS = 100


class PushRow(NamedTuple):
    """A push with the app that sent it."""

    app: App
    counts: BroadcastRow


class PushesPage(Page):
    """GET lists pushes, the newest first; with a message id in `q` it goes to that push. `latest` bounds the list."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        sought = (request.get_param("q") or "").strip()
        problem = ""
        if sought:
            found = await find_push(self.site, visit, sought)
            if found is not None:
                raise go_to(f"/apps/{found.appkey}/pushes/{sought}")
            problem = visit.gettext("No push of your apps has this message id.")
        apps = self.visible_apps(visit)
        chosen = [app for app in apps if app.appkey == request.get_param("appkey")] or apps[:MAX_APPS]
        rows = await latest_pushes(self.site, chosen)
        template = "pushes/rows.html" if visit.is_fragment else "pushes/list.html"
        self.show(
            request,
            response,
            template,
            404 if problem else 200,
            apps=apps,
            chosen=chosen,
            rows=rows[: request.get_param_as_int("latest", min_value=1, max_value=MAX_ROWS) or MAX_ROWS],
            problem=problem,
            sought=sought,
        )


class OfPush(Page):
    """The base of the page of a push and of its form."""

    template = "pushes/push.html"

    async def show_push(self, request: Request, response: Response, appkey: str, msgid: str, problem: str = "") -> None:
        """Answer with the page of the push. `problem`: why it could not be cancelled."""
        visit, app = visit_of(request), self.app(appkey)
        answer = await push_of(self.site, appkey, msgid)
        row = await statistics_of(self.site, answer)
        self.show(
            request,
            response,
            self.template,
            400 if problem else 200,
            app=app,
            msgid=int(msgid),
            problem=problem,
            may_cancel=visit.may_app(Action.SEND, appkey) and may_be_cancelled(answer),
            may_pause=visit.may_app(Action.PAUSE, appkey) and not app.HasField("pause"),
            push=answer,
            content=content(answer.request_json),
            funnel=funnel(answer, row),
            is_moving=is_moving(answer, self.site.clock.now_ms()),
        )


class PushPage(OfPush):
    """GET shows a push: content, audience, funnel, states with their reasons, and the timeline."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        await self.show_push(request, response, appkey, msgid)


class CancelPushPage(OfPush):
    """POST cancels a push for the devices that have not received it."""

    async def on_post(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        visit, app = visit_of(request), self.app(appkey)
        push = await push_of(self.site, appkey, msgid)
        try:
            await self.site.broadcasts.cancel(app.appkey, push.msgid, visit.origin)
        except CarillonError as error:
            await self.show_push(request, response, appkey, msgid, problem_of(error))
            return
        visit.notify(visit.gettext("The push is cancelled: devices that have not received it do not get it."))
        raise go_to(f"/apps/{appkey}/pushes/{msgid}")


class PushNumbersFragment(PushPage):
    """GET shows the numbers of a push alone, for its page to fetch while they change."""

    template = "pushes/numbers.html"


async def latest_pushes(site: Site, apps: list[App]) -> list[PushRow]:
    """Return the broadcasts and multicasts of these apps, the newest first."""

    async def of_app(app: App) -> list[PushRow]:
        asked = StatisticsRequest(appkey=app.appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS)
        answer = await site.roles.analytics.Statistics(asked, timeout=ANALYTICS_S)
        return [PushRow(app, row) for row in answer.broadcasts]

    found = await asyncio.gather(*(of_app(app) for app in apps))
    return sorted((row for rows in found for row in rows), key=lambda row: -row.counts.msgid)


async def push_of(site: Site, appkey: str, msgid: str, token: str = "") -> AuditPushResponse:
    """Return the audit of a push of this app. HTTP 404: the app has none with this id."""
    if not (number := whole_number(msgid, MAX_MSGID)):
        raise falcon.HTTPNotFound
    asked = AuditPushRequest(msgid=number, token=token, allow_behind=True)
    answer = await site.roles.analytics.AuditPush(asked, timeout=ANALYTICS_S)
    if answer.appkey != appkey:
        raise falcon.HTTPNotFound
    return answer


async def statistics_of(site: Site, answer: AuditPushResponse) -> BroadcastRow | None:
    """Return the counts of a broadcast or multicast; None for a push to a list, or one that has not started."""
    if answer.kind == UNICAST:
        return None
    asked = StatisticsRequest(appkey=answer.appkey, kind=StatisticsKind.STATISTICS_KIND_BROADCASTS, msgid=answer.msgid)
    try:
        rows = (await site.roles.analytics.Statistics(asked, timeout=ANALYTICS_S)).broadcasts
    except NotFoundError:
        return None
    return rows[0] if rows else None


async def find_push(site: Site, visit: Visit, sought: str) -> AuditPushResponse | None:
    """Return the push with this message id, if there is one that the user may see."""
    if not (number := whole_number(sought, MAX_MSGID)):
        return None
    asked = AuditPushRequest(msgid=number, allow_behind=True)
    try:
        answer = await site.roles.analytics.AuditPush(asked, timeout=ANALYTICS_S)
    except NotFoundError:
        return None
    return answer if visit.may_app(Action.VIEW, answer.appkey) else None
