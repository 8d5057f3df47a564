"""Pushes: the list of broadcasts and multicasts, and one push with its funnel."""

from falcon.asgi import Request, Response

from edge.console.actions.pushes import (
    Before,
    cancel_push,
    find_push,
    latest_pushes,
    push_of,
    speed_of,
    states_of,
    statistics_of,
)
from edge.console.actions.statistics import CATEGORIES
from edge.console.pages.page import Page, go_to, problem_of, sought_words, visit_of
from edge.console.view.push_speed import speed_chart
from edge.console.view.push_states import failures
from edge.console.view.push_view import content, funnel, is_moving, may_be_cancelled, questions_behind
from services.domain.accounts.permissions import Action
from services.runtime.errors import CarillonError

MAX_APPS = 1000
"""The list is of this many apps at once; further ones are chosen by name."""

MAX_ROWS = 100


class PushesPage(Page):
    """GET lists pushes, the newest first: those with `q` in their title or text. With a message id in `q` it goes to
    that push. `latest` bounds the list, and `before` is where a further page starts."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        sought = sought_words(request)
        found = await find_push(self.site, visit, sought) if sought else None
        if found is not None:
            raise go_to(f"/apps/{found.appkey}/pushes/{sought}")
        apps = self.visible_apps(visit)
        chosen = [app for app in apps if app.appkey == request.get_param("appkey")] or apps[:MAX_APPS]
        most = request.get_param_as_int("latest", min_value=1, max_value=MAX_ROWS) or MAX_ROWS
        before = Before.of(request.get_param("before") or "0-0")
        latest = await latest_pushes(self.site, chosen, most, before, words=sought)
        problem = ""
        if sought and not latest.rows:
            problem = visit.gettext("No push of your apps has this message id, or these words in its title or text.")
        template = "pushes/rows.html" if visit.is_fragment else "pushes/list.html"
        self.show(
            request,
            response,
            template,
            404 if problem else 200,
            apps=apps,
            chosen=chosen,
            rows=latest.rows,
            is_newest=before == Before(),
            older=latest.older,
            records_behind=latest.records_behind,
            problem=problem,
            sought=sought,
        )


class PushPageBase(Page):
    """The base of the page of a push and of its form."""

    async def show_push(self, request: Request, response: Response, appkey: str, msgid: str, problem: str = "") -> None:
        """Answer with the page of the push. `problem`: why it could not be cancelled."""
        visit, app = visit_of(request), self.app(appkey)
        answer = await push_of(self.site, appkey, msgid)
        row = await statistics_of(self.site, answer)
        self.show(
            request,
            response,
            "pushes/push.html",
            400 if problem else 200,
            app=app,
            msgid=int(msgid),
            problem=problem,
            may_cancel=visit.may_app(Action.SEND, appkey) and may_be_cancelled(answer),
            may_pause=visit.may_app(Action.PAUSE, appkey) and not app.HasField("pause"),
            sees_devices=visit.may_app(Action.VIEW_DEVICES, appkey),
            push=answer,
            content=content(answer.request_json),
            funnel=funnel(answer, row),
            questions=questions_behind(answer, int(msgid)),
            is_moving=is_moving(answer, self.site.clock.now_ms()),
            divided_by=CATEGORIES if row is not None else (),
        )


class PushPage(PushPageBase):
    """GET shows a push: content, audience, funnel, states with their reasons, and the timeline."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        await self.show_push(request, response, appkey, msgid)


class SpeedPage(Page):
    """GET shows how fast a push was: as a part of its page, or as a page of its own."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        app = self.app(appkey)
        speed = await speed_of(self.site, appkey, msgid, request.get_param("within") or "")
        template = "pushes/speed.html" if visit_of(request).is_fragment else "pushes/speed_page.html"
        self.show(request, response, template, app=app, msgid=int(msgid), speed=speed, chart=speed_chart(speed))


class FailuresPage(Page):
    """GET shows why devices did not receive a push, divided by `category`, the first one unless it is given."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        app, category = self.app(appkey), request.get_param("category") or CATEGORIES[0]
        answer = await states_of(self.site, appkey, msgid, category)
        self.show(
            request,
            response,
            "pushes/failures.html",
            app=app,
            msgid=int(msgid),
            category=category,
            categories=CATEGORIES,
            failures=failures(answer),
            records_behind=answer.records_behind,
        )


class CancelPushPage(PushPageBase):
    """POST cancels a push for the devices that have not received it."""

    async def on_post(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        visit = visit_of(request)
        try:
            await cancel_push(self.site, visit, appkey, msgid)
        except CarillonError as error:
            await self.show_push(request, response, appkey, msgid, problem_of(error, visit))
            return
        visit.notify(visit.gettext("The push is cancelled: devices that have not received it do not get it."))
        raise go_to(f"/apps/{appkey}/pushes/{msgid}")
