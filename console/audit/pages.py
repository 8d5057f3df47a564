"""The audit: what accounts and operators did, filtered, in pages, and as CSV."""

from datetime import datetime
from zoneinfo import ZoneInfo

from falcon.asgi import Request, Response

from console.audit.actions import SUBJECTS, Filters, Line, actions, filters_of, lines
from console.audit.words import action_words
from console.shell.csv_file import answer_csv
from console.shell.page import Page, problem_of, unknown_app, visit_of
from protos.analytics.v1.analytics_pb2 import ActionEntry, AuditActionsResponse
from services.errors import InputError

ROWS = 100
MAX_CSV_ROWS = 20_000
_PAGE = 1000


class AuditPage(Page):
    """GET lists actions, the newest first, from `pos` on."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        filters = _filters(request, self.site.clock.now_ms(), visit.zone)
        apps, answer = self.visible_apps(visit), AuditActionsResponse()
        problem = unknown_app(visit, filters.app, apps)
        try:
            answer = await actions(self.site, visit, filters, visit.zone, request.get_param("pos") or "", ROWS)
        except InputError as error:
            problem = problem_of(error, visit)
        self.show(
            request,
            response,
            "audit/audit.html",
            400 if problem else 200,
            lines=await lines(self.site, visit, answer.actions),
            filters=filters,
            apps=apps,
            teams=self.visible_teams(visit),
            subjects=SUBJECTS,
            words=action_words(visit.gettext),
            older=answer.pos,
            records_behind=answer.records_behind,
            problem=problem,
        )


class AuditFile(Page):
    """GET answers with all actions that the filters let through as CSV, the newest MAX_CSV_ROWS at most.

    Where there are more, the last row says so.
    """

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        filters = _filters(request, self.site.clock.now_ms(), visit.zone)
        entries: list[ActionEntry] = []
        pos = ""
        while len(entries) < MAX_CSV_ROWS:
            answer = await actions(self.site, visit, filters, visit.zone, pos, _PAGE)
            entries += answer.actions
            pos = answer.pos
            if not pos:
                break
        head = (
            "time",
            "who",
            "account",
            "action",
            "team",
            "app",
            "appkey",
            "detail",
            "interface",
            "address",
            "request",
        )
        rows = [_row(line, visit.zone) for line in await lines(self.site, visit, entries)]
        if pos:
            rows.append([visit.gettext("Older actions are left out: choose fewer days.")])
        answer_csv(response, f"audit-{filters.first}-{filters.last}.csv", head, rows)


def _filters(request: Request, now_ms: int, zone: ZoneInfo) -> Filters:
    """Return the filters of a request."""
    given = {name: (request.get_param(name) or "").strip() for name in Filters.__struct_fields__}
    return filters_of(given, now_ms, zone)


def _row(line: Line, zone: ZoneInfo) -> list[str]:
    entry = line.entry
    time = datetime.fromtimestamp(entry.time_ms / 1000, zone).isoformat(timespec="milliseconds")
    names = [line.who, entry.actor, entry.action, line.team, line.app, entry.appkey, entry.detail]
    return [time, *names, entry.interface, entry.address, entry.request_id]
