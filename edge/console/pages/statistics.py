"""Statistics: the four types of the interface, with categories, as charts, tables and CSV."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from urllib.parse import urlencode

import msgspec
from falcon.asgi import Request, Response

from edge.console.gate.visit import Visit
from edge.console.numbers import MAX_MSGID, whole_number
from edge.console.pages.page import Page, Site, problem_of, visit_of
from edge.console.roles import ANALYTICS_S
from edge.console.view.csv_file import answer_csv
from edge.console.view.statistics_table import StatisticsTable, statistics_table
from protos.analytics.v1.analytics_pb2 import (
    USER_KIND_CUMULATIVE,
    USER_KIND_NEW,
    Category,
    Dates,
    StatisticsKind,
    StatisticsRequest,
)
from protos.registry.v1.apps_pb2 import App
from services.runtime.errors import InputError, NotFoundError

KINDS: Mapping[str, "StatisticsKind.ValueType"] = MappingProxyType(
    {
        "connections": StatisticsKind.STATISTICS_KIND_CONNECTIONS,
        "broadcasts": StatisticsKind.STATISTICS_KIND_BROADCASTS,
        "users": StatisticsKind.STATISTICS_KIND_USERS,
        "logins": StatisticsKind.STATISTICS_KIND_LOGINS,
    }
)
"""The types, in the order of their numbers in the interface."""

CATEGORIES = tuple(value.name.removeprefix("CATEGORY_").lower() for value in Category.DESCRIPTOR.values)[1:]
_ALL = "all"
_DAYS = 6


class Question(msgspec.Struct, frozen=True):
    """What is asked for, as the texts of the form. Days are those of the service's time zone, both included."""

    appkey: str = ""
    kind: str = "connections"
    category: str = ""
    info: str = ""
    users: str = "new"
    push: str = ""
    first: str = ""
    last: str = ""

    def query(self, **changes: str) -> str:
        """Return the query of the address that asks this, with other texts in place of some."""
        return urlencode(msgspec.structs.asdict(self) | changes)


class StatisticsPage(Page):
    """GET answers the question of the form; without one, it is the connections of the last days."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        question = _question(request, self.site, apps)
        problem, table = "", StatisticsTable([], [])
        try:
            if question.appkey:
                table = await self.answer(visit, question)
        except (InputError, NotFoundError) as error:
            problem = problem_of(error)
        self.show(
            request,
            response,
            "statistics/statistics.html",
            400 if problem else 200,
            apps=apps,
            question=question,
            table=table,
            series=[list(values) for values in zip(*(row.values for row in table.rows), strict=True)],
            zone=self.site.zone.key,
            kinds=tuple(KINDS),
            categories=CATEGORIES,
            problem=problem,
        )

    async def answer(self, visit: Visit, question: Question) -> StatisticsTable:
        """Return the numbers. InputError: the question is none; NotFoundError: there is no such push."""
        answer = await self.site.roles.analytics.Statistics(_asked(question), timeout=ANALYTICS_S)
        return statistics_table(answer, visit.gettext)


class StatisticsFile(StatisticsPage):
    """GET answers with the same numbers as CSV."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        question = _question(request, self.site, self.visible_apps(visit))
        if not question.appkey:
            raise NotFoundError("no app of yours is asked for")
        table = await self.answer(visit, question)
        head = [visit.gettext("Day"), question.category or visit.gettext("Value"), visit.gettext("Push"), *table.names]
        rows = [[row.date, row.info or "", row.msgid or "", *row.values] for row in table.rows]
        answer_csv(response, f"{question.kind}-{question.first}-{question.last}.csv", head, rows)


def _question(request: Request, site: Site, apps: list[App]) -> Question:
    """Return the question of a request: of an app that the user may see, the first one unless another is named."""
    given = {name: (request.get_param(name) or "").strip() for name in Question.__struct_fields__}
    today = datetime.fromtimestamp(site.clock.now_ms() / 1000, site.zone).date()
    default = Question(
        appkey=apps[0].appkey if apps else "", first=(today - timedelta(days=_DAYS)).isoformat(), last=today.isoformat()
    )
    question = Question(**(msgspec.structs.asdict(default) | {name: text for name, text in given.items() if text}))
    is_visible = question.appkey in {app.appkey for app in apps}
    return question if is_visible else msgspec.structs.replace(question, appkey="")


def _asked(question: Question) -> StatisticsRequest:
    """Return the call. InputError: a text of the form means nothing."""
    if question.kind not in KINDS or question.category not in ("", *CATEGORIES):
        raise InputError("choose one of the types and categories")
    asked = StatisticsRequest(
        appkey=question.appkey,
        kind=KINDS[question.kind],
        dates=Dates(**{"from": question.first, "to": question.last}),
        user_kind=USER_KIND_CUMULATIVE if question.users == "cumulative" else USER_KIND_NEW,
    )
    if question.category:
        asked.category = Category.Value(f"CATEGORY_{question.category.upper()}")
        asked.info = question.info or _ALL
    if question.kind == "broadcasts" and question.push:
        if not (number := whole_number(question.push, MAX_MSGID)):
            raise InputError("the message id must be a number")
        asked.msgid = number
    elif question.kind == "broadcasts" and question.category:
        raise InputError("give the message id of the push that is to be divided by a category")
    return asked
