"""Statistics: the four types of the interface, with categories, as charts, tables and CSV."""

import msgspec
from falcon.asgi import Request, Response

from console.shell.csv_file import answer_csv
from console.shell.page import Page, Site, problem_of, unknown_app, visit_of
from console.shell.visit import Visit
from console.statistics.actions import CATEGORIES, KINDS, StatisticsQuestion, question_of, statistics
from console.statistics.table import StatisticsTable, largest_first, links_of, statistics_table, with_channel_columns
from protos.registry.v1.apps_pb2 import App
from services.errors import Code, InputError, NotFoundError


class StatisticsPage(Page):
    """GET answers the question of the form; without one, it is the connections of the last days."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        apps = self.visible_apps(visit)
        question = _question(request, self.site, apps)
        named = (request.get_param("appkey") or "").strip()
        problem, table = unknown_app(visit, named, apps), StatisticsTable([], [])
        try:
            if question.appkey:
                table = await self.answer(visit, question)
        except (InputError, NotFoundError) as error:
            problem = problem_of(error, visit)
        self.show(
            request,
            response,
            "statistics/statistics.html",
            400 if problem else 200,
            named=named,
            apps=apps,
            question=question,
            table=table,
            series=[list(values) for values in zip(*(row.values for row in table.rows), strict=True)],
            links_of=links_of,
            zone=self.site.zone.key,
            kinds=tuple(KINDS),
            categories=CATEGORIES,
            problem=problem,
        )

    async def answer(self, visit: Visit, question: StatisticsQuestion) -> StatisticsTable:
        """Return the numbers. InputError: the question is invalid; NotFoundError: there is no such push."""
        return largest_first(statistics_table(await statistics(self.site, question), visit.gettext))


class StatisticsFile(StatisticsPage):
    """GET answers with the same numbers as CSV, those by channel in columns of their own."""

    async def on_get(self, request: Request, response: Response) -> None:
        visit = visit_of(request)
        question = _question(request, self.site, self.visible_apps(visit))
        if not question.appkey:
            raise NotFoundError(Code.NO_OWN_APP)
        table = with_channel_columns(await self.answer(visit, question), visit.gettext)
        head = [visit.gettext("Day"), question.category or visit.gettext("Value"), visit.gettext("Push"), *table.names]
        rows = [[row.date, row.info or "", row.msgid or "", *row.values] for row in table.rows]
        answer_csv(response, f"{question.kind}-{question.first}-{question.last}.csv", head, rows)


def _question(request: Request, site: Site, apps: list[App]) -> StatisticsQuestion:
    """Return the question of a request: of an app that the user may see, the first one unless another is named."""
    given = {name: (request.get_param(name) or "").strip() for name in StatisticsQuestion.__struct_fields__}
    named = {name: text for name, text in given.items() if text}
    question = question_of(site, {"appkey": apps[0].appkey if apps else ""} | named)
    is_visible = question.appkey in {app.appkey for app in apps}
    return question if is_visible else msgspec.structs.replace(question, appkey="")
