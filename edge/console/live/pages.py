"""The streams of the overview, of the list of pushes, and of one push."""

from collections.abc import Sequence
from typing import Any

from falcon.asgi import Request, Response

from edge.console.actions.pushes import push_of, statistics_of
from edge.console.live.feeds import Feed, FeedQuestion
from edge.console.live.installation import Installation
from edge.console.live.stream import LivePage
from edge.console.pages.overview import overview_values
from edge.console.pages.page import sought_words, visit_of
from edge.console.pages.pushes import MAX_APPS, MAX_ROWS
from edge.console.view.push_view import funnel, is_moving, questions_behind
from services.domain.accounts.permissions import Action

_INSTALLATION_S = 5
_PUSH_S = 3
LATEST = 5
"""Pushes that the overview lists."""


class LiveOverview(LivePage):
    """GET streams the state of the installation, its numbers, and the latest pushes of the user's apps."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        appkeys = tuple(app.appkey for app in apps)
        sees_all = visit.may(Action.MANAGE_INSTALLATION)
        question = FeedQuestion("installation", self.site.observer.read, _INSTALLATION_S)

        def values(found: Installation) -> dict[str, Any]:
            present = [app for appkey in appkeys if (app := self.site.apps.get(appkey))]
            return overview_values(present, found, sees_all=sees_all)

        parts = [
            self.part(visit, name, question, f"overview/{name}.html", values, (appkeys, sees_all))
            for name in ("state", "numbers", *(["processes"] if sees_all else []))
        ]
        if apps:
            parts.append(self.latest(visit, apps[:MAX_APPS], LATEST))
        self.open_stream(request, response, parts, self.same_apps(visit))


class LivePushes(LivePage):
    """GET streams the rows of the list of pushes; `appkey` and `q` choose as on the page."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        chosen = [app for app in apps if app.appkey == request.get_param("appkey")] or apps[:MAX_APPS]
        words = sought_words(request)
        self.open_stream(request, response, [self.latest(visit, chosen, MAX_ROWS, words)], self.same_apps(visit))


class LivePush(LivePage):
    """GET streams the numbers of a push and what happened to it, until they do not change any more."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        visit, app, site = visit_of(request), self.app(appkey), self.site
        sees_devices = visit.may_app(Action.VIEW_DEVICES, appkey)
        await push_of(site, appkey, msgid)

        async def ask() -> Any:
            answer = await push_of(site, appkey, msgid)
            return answer, await statistics_of(site, answer)

        def values(found: Any) -> dict[str, Any]:
            answer, row = found
            behind = questions_behind(answer, int(msgid))
            numbers = {"push": answer, "funnel": funnel(answer, row), "questions": behind}
            return {"app": app, "msgid": msgid, "sees_devices": sees_devices, **numbers}

        def is_final(feeds: Sequence[Feed]) -> bool:
            return not is_moving(feeds[0].answer[0], app, site.clock.now_ms())

        question = FeedQuestion(("push", appkey, msgid), ask, _PUSH_S)
        parts = [
            self.part(visit, name, question, f"pushes/{name}.html", values, sees_devices)
            for name in ("numbers", "timeline")
        ]
        self.open_stream(request, response, parts, is_final=is_final)
