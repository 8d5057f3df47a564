"""Server-sent events of an open page, and the streams of the overview, of the list of pushes, and of one push."""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response, SSEvent

from console.overview.installation import InstallationState
from console.overview.pages import overview_values
from console.pushes.actions import LatestPushes, latest_pushes, push_of, statistics_of
from console.pushes.pages import MAX_APPS, MAX_ROWS
from console.pushes.view import funnel, is_moving, questions_behind
from console.shell.feeds import Feed, FeedQuestion, PageStream
from console.shell.languages import Language
from console.shell.page import Page, sought_words, visit_of
from console.shell.visit import Visit
from protos.registry.v1.apps_pb2 import App
from services.domain.permissions import Action
from services.process.clock import wait_for_first

# Server-sent events: the stream of one open page, whose parts are sent again when what they show has changed.

HEARTBEAT_S = 10
"""Interval of a stream's heartbeats, at which it also notices that its session or a right of its user has ended."""

PUSHES_S = 5
_RECONNECT_MS = 3_000
_LATE = "late"
_OVER = "over"
"""The event after which the page loads itself anew: its reader may not see it any more, or sees something else."""

_ENOUGH = "enough"
"""The event after which the page does not connect again: nothing changes any more, or too many pages are open."""


class SharedView(NamedTuple):
    """The language and time zone of many readers, for whom a part is rendered once.

    It lacks values of a single user, such as a visit's CSRF token: a template that asks for one cannot be rendered.
    """

    language: Language
    zone: ZoneInfo


class LivePart(NamedTuple):
    """A part of a page. `html` renders the answer of its question, once for all readers with the same `key`."""

    event: str
    question: FeedQuestion
    key: Hashable
    html: Callable[[Any], Awaitable[str]]


class LivePage(Page):
    """The base of streams. `events` of a page are the names in the `sse-swap` attributes of its template."""

    def open_stream(
        self,
        request: Request,
        response: Response,
        parts: Sequence[LivePart],
        is_same: Callable[[], bool] = lambda: True,
        is_final: Callable[[Sequence[Feed]], bool] = lambda feeds: False,
    ) -> None:
        """Answer with the parts as events, until the reader's session or rights change, or `is_same` returns False.

        `is_final`: after these answers nothing changes any more.
        """
        visit = visit_of(request)
        # Proxies such as nginx would otherwise keep the events until many have come together.
        response.set_header("X-Accel-Buffering", "no")
        self.site.feeds.check_free()
        response.sse = self._events(visit, parts, is_same, is_final)

    def part(
        self,
        visit: Visit,
        event: str,
        question: FeedQuestion,
        template: str,
        values: Callable[[Any], Mapping[str, Any]],
        depends_on: Hashable = (),
    ) -> LivePart:
        """Return a part that shows a template without a layout.

        `values` returns the template's values for an answer. `depends_on`: what else they depend on, such as what the
        reader may see; readers share the text if it is equal.
        """
        view = SharedView(visit.language, visit.zone)

        async def html(answer: Any) -> str:
            text = await self.site.renderer.render(template, view, values(answer))
            return " ".join(text.splitlines())

        return LivePart(event, question, (template, view, depends_on), html)

    def latest(self, visit: Visit, apps: list[App], most: int, words: str = "") -> LivePart:
        """Return the part with the latest pushes of these apps, `most` of them, with `words` in their content."""

        async def ask() -> LatestPushes:
            return await latest_pushes(self.site, apps, most, words=words)

        question = FeedQuestion(("pushes", most, words, *(app.appkey for app in apps)), ask, PUSHES_S)
        return self.part(visit, "pushes", question, "pushes/rows.html", LatestPushes._asdict)

    def same_apps(self, visit: Visit) -> Callable[[], bool]:
        """Return a function that tells whether the user sees the same apps as now."""
        before = [app.appkey for app in self.visible_apps(visit)]
        return lambda: [app.appkey for app in self.visible_apps(visit)] == before

    async def _events(
        self,
        visit: Visit,
        parts: Sequence[LivePart],
        is_same: Callable[[], bool],
        is_final: Callable[[Sequence[Feed]], bool],
    ) -> AsyncIterator[SSEvent]:
        yield SSEvent(retry=_RECONNECT_MS, comment="live")
        with self.site.feeds.stream(visit.actor.name) as stream:
            async for event in self._changes(visit, stream, parts, is_same, is_final):
                yield event
        if stream.is_replaced:
            yield SSEvent(event=_ENOUGH, text="-")

    async def _changes(
        self,
        visit: Visit,
        stream: PageStream,
        parts: Sequence[LivePart],
        is_same: Callable[[], bool],
        is_final: Callable[[Sequence[Feed]], bool],
    ) -> AsyncIterator[SSEvent]:
        sent: dict[LivePart, str] = {}
        numbers = dict.fromkeys(parts, 0)
        was_late = False
        clock = self.site.clock
        with self.site.feeds.follow([part.question for part in parts]) as feeds:
            while not stream.ending.is_set():
                status = visit.session_status()
                if status == "over" or not is_same():
                    yield SSEvent(event=_OVER, text="-")
                    return
                if status == "due":  # the browser connects again, and the access is checked
                    return
                changes = [feed.change for feed in feeds]
                for part, feed in zip(parts, feeds, strict=True):
                    if feed.number == numbers[part] or feed.answer is None:
                        continue
                    numbers[part] = feed.number
                    html = await feed.text(part.key, part.html)
                    if html != sent.get(part):  # a screen reader shall not read the same twice
                        sent[part] = html
                        yield SSEvent(event=part.event, text=html)
                if (is_late := any(feed.is_late for feed in feeds)) != was_late:
                    was_late = is_late
                    yield SSEvent(event=_LATE, text=self._late_words(visit) if is_late else "")
                if all(feed.answer is not None for feed in feeds) and is_final(feeds):
                    yield SSEvent(event=_ENOUGH, text="-")
                    return
                heartbeat_ms = clock.now_ms() + HEARTBEAT_S * 1000
                await wait_for_first(clock, heartbeat_ms, stream.ending, *changes)
                if clock.now_ms() >= heartbeat_ms:
                    yield SSEvent(comment="here")

    def _late_words(self, visit: Visit) -> str:
        return visit.gettext("A part of the service does not answer at present; the numbers shown are older ones.")


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

        def values(found: InstallationState) -> dict[str, Any]:
            present = [app for appkey in appkeys if (app := self.site.apps.get(appkey))]
            return overview_values(present, self.site.apps.installation_pause, found, sees_all=sees_all)

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
        chosen = [app for app in apps if (request.get_param("appkey") or "") in ("", app.appkey)][:MAX_APPS]
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
