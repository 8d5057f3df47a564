"""The audit of what accounts and operators did."""

from collections.abc import Mapping, Set
from typing import Any

from analytics.audit.app import TimeRange
from analytics.audit.details import read_details
from analytics.store.clickhouse import ClickHouse
from analytics.store.sql import sql
from protos.analytics.v1.analytics_pb2 import ActionEntry, AuditActionsRequest, AuditActionsResponse
from services.errors import InputError

_NEWEST = (2**62, "", 0)
_MAX_DIGITS = 15


async def audit_actions(
    clickhouse: ClickHouse, request: AuditActionsRequest, time_range: TimeRange
) -> AuditActionsResponse:
    """Return a page, descending by time. InputError: its `pos` is not the position of an earlier page.

    An action recorded without a team and an app gets those of the task or draft that it concerns.
    """
    before_ms, before, before_row = _position(request.pos)
    scope = {
        "is_everything": not request.HasField("scope"),
        "team_ids": [team_id for team_id in request.scope.team_ids if team_id],
        "appkeys": [appkey for appkey in request.scope.appkeys if appkey],
    }
    parameters = {
        **scope,
        **time_range._asdict(),
        "actor": request.actor,
        "subject": request.subject,
        "containing": [text for text in request.containing if text],
        "before_ms": before_ms,
        "before": before,
        "before_row": before_row,
        "limit": request.limit + 1,
    }
    rows = await clickhouse.rows(sql(__package__, "actions"), parameters)
    page = rows[: request.limit]
    following = "/".join(str(part) for part in page[-1][:3]) if len(rows) > request.limit else ""
    entries = [_entry(*row[:-1]) for row in page]
    unnamed = [(row[-1], entry) for row, entry in zip(page, entries, strict=True) if not entry.team_id + entry.appkey]
    owners = await _owners(clickhouse, {task_key for task_key, _ in unnamed if task_key}, scope)
    for task_key, entry in unnamed:
        entry.team_id, entry.appkey = owners.get(task_key, ("", ""))
    return AuditActionsResponse(actions=entries, pos=following)


async def _owners(
    clickhouse: ClickHouse, task_keys: Set[str], scope: Mapping[str, Any]
) -> Mapping[str, tuple[str, str]]:
    """Return the team and an app in the scope of each of these tasks and drafts."""
    if not task_keys:
        return {}
    rows = await clickhouse.rows(sql(__package__, "task_owners"), {**scope, "task_keys": sorted(task_keys)})
    return {task_key: (team_id, appkey) for task_key, team_id, appkey in rows}


def _entry(time_ms: int, _: str, __: int, *texts: str) -> ActionEntry:
    actor, action, team_id, appkey, detail, details, interface, address, request_id = texts
    return ActionEntry(
        time_ms=time_ms,
        actor=actor,
        action=action,
        team_id=team_id,
        appkey=appkey,
        detail=detail,
        details=read_details(details),
        interface=interface,
        address=address,
        request_id=request_id,
    )


def _position(pos: str) -> tuple[int, str, int]:
    if not pos:
        return _NEWEST
    parts = pos.split("/")
    numbers = parts[::2]
    is_right = len(parts) == 3 and all(text.isascii() and text.isdecimal() for text in numbers)
    if not is_right or max(map(len, numbers)) > _MAX_DIGITS or int(parts[2]) >= 2**32:
        raise InputError("pos is not a position that a page gave")
    return int(parts[0]), parts[1], int(parts[2])
