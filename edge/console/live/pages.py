"""The streams of the overview, of the list of pushes, and of one push."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from falcon.asgi import Request, Response

from edge.console.actions.pushes import push_of, statistics_of
from edge.console.live.feeds import Feed, Topic
from edge.console.live.installation import Installation
from edge.console.live.stream import LivePage, Part
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
        topic = Topic("installation", self.site.observer.read, _INSTALLATION_S)
        state = _WhenDifferent(lambda found: self.fragment(visit, "overview/state.html", installation=found))

        async def numbers(found: Installation) -> str:
            return await self.fragment(visit, "overview/numbers.html", **overview_values(apps, found))

        async def processes(found: Installation) -> str:
            return await self.fragment(visit, "overview/processes.html", installation=found)

        parts = [Part("state", topic, state), Part("numbers", topic, numbers)]
        if visit.may(Action.MANAGE_INSTALLATION):
            parts.append(Part("processes", topic, processes))
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
    """GET streams the numbers of a push, until they do not change any more."""

    async def on_get(self, request: Request, response: Response, appkey: str, msgid: str) -> None:
        visit, app, site = visit_of(request), self.app(appkey), self.site
        await push_of(site, appkey, msgid)

        async def ask() -> Any:
            answer = await push_of(site, appkey, msgid)
            return answer, await statistics_of(site, answer)

        async def numbers(found: Any) -> str:
            answer, row = found
            values = {"push": answer, "funnel": funnel(answer, row), "questions": questions_behind(answer, int(msgid))}
            return await self.fragment(visit, "pushes/numbers.html", app=app, msgid=msgid, **values)

        def is_final(feeds: Sequence[Feed]) -> bool:
            return not is_moving(feeds[0].answer[0], site.clock.now_ms())

        part = Part("numbers", Topic(("push", appkey, msgid), ask, _PUSH_S), numbers)
        self.open_stream(request, response, [part], is_final=is_final)


class _WhenDifferent:
    """Renders, and returns None where the text is the same as before: a screen reader shall not read it twice."""

    def __init__(self, render: Callable[[Any], Awaitable[str]]) -> None:
        self._render = render
        self._before = ""

    async def __call__(self, found: Any) -> str | None:
        text = await self._render(found)
        if text == self._before:
            return None
        self._before = text
        return text
