"""Calls for statistics and audits."""

import msgspec

from console.audit import actions
from console.audit.answers import ActionEntry, ActionList, AppTimeline, channels_answer, timeline_answer
from console.devices.answers import Statistics, StatisticsRow
from console.shell.access import Requester
from console.shell.backend import ANALYTICS_S, Backend, app_of
from console.shell.requests import ActionListParams, StatisticsParams, TimelineParams
from console.statistics.actions import question_of, statistics
from console.statistics.table import statistics_table
from protos.analytics.v1.analytics_pb2 import AuditAppRequest


async def statistics_of_app(backend: Backend, requester: Requester, params: StatisticsParams) -> Statistics:
    """Return statistics of an app: connections, broadcasts, users or logins, by day or divided by a category.

    Without days they are those of the last seven.
    """
    app_of(backend, params.appkey)
    given = {name: value for name, value in msgspec.structs.asdict(params).items() if value}
    table = statistics_table(await statistics(backend, question_of(backend, given)), str)
    names = [name.lower() for name in table.names]
    rows = [
        StatisticsRow(
            row.date,
            row.info,
            row.msgid or None,
            dict(zip(names, row.values, strict=True)),
            channels_answer(row.channels),
        )
        for row in table.rows
    ]
    return Statistics(params.kind, rows)


async def list_actions(backend: Backend, requester: Requester, params: ActionListParams) -> ActionList:
    """List what accounts and operators did with the team and its apps, the newest first.

    Without days it is what they did in the last 30.
    """
    given = {name: getattr(params, name) for name in actions.Filters.__struct_fields__}
    filters = actions.filters_of(given, backend.clock.now_ms(), backend.zone)
    page = await actions.actions(backend, requester, filters, backend.zone, params.cursor, params.limit)
    entries = [
        ActionEntry(
            line.entry.time_ms,
            line.entry.actor,
            line.who,
            line.entry.action,
            line.entry.team_id,
            line.entry.appkey,
            line.entry.detail,
            line.entry.interface,
            line.entry.address,
            line.entry.request_id,
        )
        for line in await actions.lines(backend, requester, page.actions)
    ]
    return ActionList(entries, page.pos, page.records_behind)


async def app_timeline(backend: Backend, requester: Requester, params: TimelineParams) -> AppTimeline:
    """Return what happened to an app, the oldest first.

    These are pushes, tasks, changed settings, and by the hour the requests of its devices.
    """
    app = app_of(backend, params.appkey)
    asked = AuditAppRequest(
        appkey=app.appkey,
        from_ms=params.from_ms,
        to_ms=params.to_ms,
        pos=params.cursor,
        limit=params.limit,
        allow_behind=params.allow_behind,
    )
    page = await backend.roles.analytics.AuditApp(asked, timeout=ANALYTICS_S)
    return AppTimeline(timeline_answer(page.timeline), page.pos, page.records_behind)
