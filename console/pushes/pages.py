"""Pushes: the list of broadcasts and multicasts, and one push with its funnel."""

import asyncio

from falcon.asgi import Request, Response

from console.pushes.actions import (
    Before,
    cancel_push,
    done_by,
    find_push,
    latest_pushes,
    push_of,
    speed_of,
    states_of,
    statistics_of,
)
from console.pushes.view import (
    RequestFacts,
    content,
    failures,
    funnel,
    is_moving,
    may_be_cancelled,
    questions_behind,
    request_facts,
    speed_chart,
)
from console.pushes.words import unsent_task_sentence
from console.shell.page import Page, go_to, problem_of, sought_words, unknown_app, visit_of
from console.shell.visit import Visit
from console.statistics.actions import CATEGORIES
from console.tasks.actions import may_cancel, unsent_task
from protos.analytics.v1.analytics_pb2 import AuditPushResponse
from protos.scheduling.v1.scheduling_pb2 import Task
from services.domain.permissions import Action
from services.errors import CarillonError, InputError

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
        appkey = request.get_param("appkey") or ""
        chosen = [app for app in apps if appkey in ("", app.appkey)][:MAX_APPS]
        problem = unknown_app(visit, appkey, apps)
        most = request.get_param_as_int("latest", min_value=1, max_value=MAX_ROWS) or MAX_ROWS
        before = Before.of(request.get_param("before") or "0-0")
        latest = await latest_pushes(self.site, chosen, most, before, words=sought)
        if sought and not problem and not latest.rows:
            problem = visit.gettext(
                "No push of your apps has this message id, "
                "and no broadcast or multicast has these words in its title or text."
            )
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
        task = await unsent_task(self.site, answer)
        row = await statistics_of(self.site, answer) if task is None else None
        made_by, cancelled_by = await asyncio.gather(
            done_by(self.site, answer, "command", "task scheduled"),
            done_by(self.site, answer, "cancel command", "task cancelled"),
        )
        self.show(
            request,
            response,
            "pushes/push.html",
            400 if problem else 200,
            app=app,
            msgid=int(msgid),
            problem=problem,
            may_cancel=visit.may_app(Action.SEND, appkey) and may_be_cancelled(answer),
            task=task,
            task_sentence=self._task_sentence(visit, task) if task else "",
            may_cancel_task=task is not None and may_cancel(visit, task),
            may_pause=visit.may_app(Action.PAUSE, appkey) and not app.HasField("pause"),
            sees_devices=visit.may_app(Action.VIEW_DEVICES, appkey),
            push=answer,
            made_by=made_by,
            cancelled_by=cancelled_by,
            facts=self._facts(visit, answer, appkey),
            content=content(answer.request_json),
            funnel=funnel(answer, row),
            questions=questions_behind(answer, int(msgid)),
            is_moving=task is None and is_moving(answer, app, self.site.clock.now_ms()),
            divided_by=CATEGORIES if row is not None else (),
        )

    def _facts(self, visit: Visit, answer: AuditPushResponse, appkey: str) -> RequestFacts | None:
        """Return what the request says; None if it is none of the v2 interface, or is not recorded."""
        accepted_ms = min((entry.first_ms for entry in answer.timeline), default=None)
        try:
            composed = self.site.composed_pushes.read(answer.request_json, at_ms=accepted_ms)
        except InputError:
            return None
        return request_facts(composed, appkey, visit.gettext)

    def _task_sentence(self, visit: Visit, task: Task) -> str:
        return unsent_task_sentence(task, visit.gettext, lambda ms: visit.language.moment(ms, visit.zone))


class PushPage(PushPageBase):
    """GET shows a push: content, audience, funnel, states with their reasons, and the timeline."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        await self.show_push(request, response, appkey, msgid)


class SpeedPage(Page):
    """GET shows how fast a push was: as a part of its page, or as a page of its own."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        app, within = self.app(appkey), request.get_param("within") or ""
        speed = await speed_of(self.site, appkey, msgid, within)
        template = "pushes/speed.html" if visit_of(request).is_fragment else "pushes/speed_page.html"
        self.show(
            request,
            response,
            template,
            app=app,
            msgid=int(msgid),
            speed=speed,
            within=within,
            as_of_ms=self.site.clock.now_ms(),
            chart=speed_chart(speed),
        )


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
