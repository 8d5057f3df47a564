"""The audit: what accounts and operators did, filtered, in pages, and as CSV."""

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec
from falcon.asgi import Request, Response

from edge.console.gate.visit import Visit
from edge.console.numbers import MAX_MSGID, whole_number
from edge.console.pages.page import Page, visit_of
from edge.console.roles import ANALYTICS_S
from edge.console.view.csv_file import answer_csv
from protos.accounts.v1.accounts_pb2 import DataRead
from protos.accounts.v1.service_pb2 import GetUsersRequest, ListTokensRequest, NoteDataReadRequest
from protos.analytics.v1.analytics_pb2 import ActionEntry, ActionScope, AuditActionsRequest, AuditActionsResponse
from services.domain.accounts.permissions import Action
from services.runtime.errors import InputError

SUBJECTS = ("push", "task", "draft", "device", "data", "app", "team", "user", "token", "log-in")
"""The first words of actions, by which they are filtered."""

ROWS = 100
MAX_CSV_ROWS = 20_000
_PAGE = 1000
_DAYS = 30


class Filters(msgspec.Struct, frozen=True):
    """The filters of the form, as texts. Days are those of the reader's time zone, both included."""

    team: str = ""
    app: str = ""
    who: str = ""
    subject: str = ""
    first: str = ""
    last: str = ""

    @property
    def query(self) -> str:
        return urlencode(msgspec.structs.asdict(self))


class Line(NamedTuple):
    """An action with the names of what it concerns."""

    entry: ActionEntry
    who: str
    team: str
    app: str


class AuditPage(Page):
    """GET lists actions, the newest first, from `pos` on."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        filters = _filters(request, self.site.clock.now_ms(), visit.zone)
        problem, answer = "", AuditActionsResponse()
        try:
            answer = await self.actions(visit, filters, request.get_param("pos") or "", ROWS)
        except InputError as error:
            problem = str(error)
        self.show(
            request,
            response,
            "audit/audit.html",
            400 if problem else 200,
            lines=await self.lines(visit, answer.actions),
            filters=filters,
            apps=self.visible_apps(visit),
            teams=self.visible_teams(visit),
            subjects=SUBJECTS,
            older=answer.pos,
            records_behind=answer.records_behind,
            problem=problem,
        )

    async def actions(self, visit: Visit, filters: Filters, pos: str, limit: int) -> AuditActionsResponse:
        """Return a page of what the user may see. InputError: a filter or the position is none."""
        from_ms, to_ms = _time_range(filters, visit.zone)
        asked = AuditActionsRequest(
            from_ms=from_ms,
            to_ms=to_ms,
            scope=self._scope(visit, filters),
            actor=await self._actor(filters.who),
            subject=filters.subject,
            pos=pos,
            limit=limit,
            allow_behind=True,
        )
        return await self.site.roles.analytics.AuditActions(asked, timeout=ANALYTICS_S)

    async def lines(self, visit: Visit, entries: Iterable[ActionEntry]) -> list[Line]:
        """Return the entries with names in place of ids."""
        entries = list(entries)
        user_ids = {entry.actor.removeprefix("user/") for entry in entries if entry.actor.startswith("user/")}
        accounts = self.site.roles.accounts
        users = (await accounts.GetUsers(GetUsersRequest(user_ids=sorted(user_ids)))).users if user_ids else []
        names = {f"user/{user.user_id}": user.login for user in users}
        teams = {team.team_id: team.name for team in self.visible_teams(visit)}
        if any(entry.actor.startswith("token/") for entry in entries) and teams:
            tokens = (await accounts.ListTokens(ListTokensRequest(team_ids=sorted(teams)))).tokens
            names |= {f"token/{token.token_id}": token.name for token in tokens}
        apps = {app.appkey: app.name for app in self.visible_apps(visit)}
        return [
            Line(
                entry,
                names.get(entry.actor, entry.actor),
                teams.get(entry.team_id, ""),
                apps.get(entry.appkey, entry.appkey),
            )
            for entry in entries
        ]

    def _scope(self, visit: Visit, filters: Filters) -> ActionScope | None:
        """Return the teams and apps to be asked for; None for everything, which administrators may see."""
        if visit.may(Action.MANAGE_INSTALLATION) and not filters.team and not filters.app:
            return None
        apps, teams = self.visible_apps(visit), self.visible_teams(visit)
        if filters.team:
            teams = [team for team in teams if team.team_id == filters.team]
            apps = [app for app in apps if self.site.accounts.team_of(app.appkey) == filters.team]
        if filters.app:
            teams, apps = [], [app for app in apps if app.appkey == filters.app]
        return ActionScope(team_ids=[team.team_id for team in teams], appkeys=[app.appkey for app in apps])

    async def _actor(self, who: str) -> str:
        """Return the account that a log-in name or an id names."""
        if not who or who.startswith(("user/", "token/")):
            return who
        users = (await self.site.roles.accounts.GetUsers(GetUsersRequest(logins=[who]))).users
        if not users:
            raise InputError(f"nobody has the log-in name {who}")
        return f"user/{users[0].user_id}"


class AuditFile(AuditPage):
    """GET answers with all actions that the filters let through as CSV, the newest MAX_CSV_ROWS at most."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        filters = _filters(request, self.site.clock.now_ms(), visit.zone)
        entries: list[ActionEntry] = []
        pos = ""
        while len(entries) < MAX_CSV_ROWS:
            answer = await self.actions(visit, filters, pos, _PAGE)
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
        rows = [_row(line, visit.zone) for line in await self.lines(visit, entries)]
        answer_csv(response, f"audit-{filters.first}-{filters.last}.csv", head, rows)


async def note_data_read(page: Page, visit: Visit, appkey: str, name: str, msgid: str = "") -> None:
    """Note in the log that the user looks at the devices of an alias or token; raises an error if that fails."""
    read = DataRead(appkey=appkey, name=name, msgid=whole_number(msgid, MAX_MSGID) or 0)
    await page.site.roles.log_ins.NoteDataRead(NoteDataReadRequest(read=read, origin=visit.origin))


def _filters(request: Request, now_ms: int, zone: ZoneInfo) -> Filters:
    """Return the filters of a request; without days the last ones up to today."""
    given = {name: (request.get_param(name) or "").strip() for name in Filters.__struct_fields__}
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    given["last"] = given["last"] or today.isoformat()
    given["first"] = given["first"] or (today - timedelta(days=_DAYS)).isoformat()
    return Filters(**given)


def _time_range(filters: Filters, zone: ZoneInfo) -> tuple[int, int]:
    """Return the first and the following millisecond of the days. InputError: a day is none."""
    try:
        first, last = date.fromisoformat(filters.first), date.fromisoformat(filters.last)
        starts = [datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, last + timedelta(days=1))]
    except (ValueError, OverflowError):
        raise InputError("give days as YYYY-MM-DD") from None
    return int(starts[0].timestamp() * 1000), int(starts[1].timestamp() * 1000)


def _row(line: Line, zone: ZoneInfo) -> list[str]:
    entry = line.entry
    time = datetime.fromtimestamp(entry.time_ms / 1000, zone).isoformat(timespec="milliseconds")
    names = [line.who, entry.actor, entry.action, line.team, line.app, entry.appkey, entry.detail]
    return [time, *names, entry.door, entry.address, entry.request_id]
