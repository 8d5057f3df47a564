"""The audit: what accounts and operators did, filtered, in pages."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import msgspec

from console.shell.access import Requester
from console.shell.backend import ANALYTICS_S, Backend, visible_apps, visible_teams
from protos.accounts.v1.service_pb2 import GetUsersRequest, ListTokensRequest
from protos.analytics.v1.analytics_pb2 import ActionEntry, ActionScope, AuditActionsRequest, AuditActionsResponse
from services.domain.permissions import Action
from services.errors import Code, InputError

SUBJECTS = ("push", "task", "draft", "device", "data", "app", "team", "user", "token", "log-in")
"""The first words of actions, by which they are filtered."""

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
    """An action with the names of what it concerns, and the path of its push, draft or task ("": none to be seen)."""

    entry: ActionEntry
    who: str
    team: str
    app: str
    path: str


def filters_of(given: Mapping[str, str], now_ms: int, zone: ZoneInfo) -> Filters:
    """Return the filters with these texts; without days, the last ones up to today."""
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    last = given.get("last") or today.isoformat()
    first = given.get("first") or (today - timedelta(days=_DAYS)).isoformat()
    return Filters(**(dict(given) | {"first": first, "last": last}))


async def actions(
    backend: Backend, requester: Requester, filters: Filters, zone: ZoneInfo, pos: str, limit: int
) -> AuditActionsResponse:
    """Return a page of the actions that the account may see. InputError: a filter or the position is invalid."""
    from_ms, to_ms = _time_range(filters, zone)
    asked = AuditActionsRequest(
        from_ms=from_ms,
        to_ms=to_ms,
        scope=_scope(backend, requester, filters),
        actor=await _actor(backend, requester, filters.who),
        subject=filters.subject,
        pos=pos,
        limit=limit,
        allow_behind=True,
    )
    return await backend.roles.analytics.AuditActions(asked, timeout=ANALYTICS_S)


async def lines(backend: Backend, requester: Requester, entries: Iterable[ActionEntry]) -> list[Line]:
    """Return the entries with names in place of ids."""
    entries = list(entries)
    mentioned = {text for entry in entries for text in (entry.actor, *_texts_with_accounts(entry))}
    user_ids = {text.removeprefix("user/") for text in mentioned if text.startswith("user/")}
    accounts = backend.roles.accounts
    users = (await accounts.GetUsers(GetUsersRequest(user_ids=sorted(user_ids)))).users if user_ids else []
    names = {f"user/{user.user_id}": user.login for user in users}
    teams = {team.team_id: team.name for team in visible_teams(backend, requester)}
    if any(text.startswith("token/") for text in mentioned) and teams:
        tokens = (await accounts.ListTokens(ListTokensRequest(team_ids=sorted(teams)))).tokens
        names |= {f"token/{token.token_id}": token.name for token in tokens}
    apps = {app.appkey: app.name for app in visible_apps(backend, requester)}
    return [
        Line(
            _with_names(entry, names, apps),
            names.get(entry.actor, entry.actor),
            teams.get(entry.team_id, ""),
            apps.get(entry.appkey, entry.appkey),
            _path(entry, apps, teams),
        )
        for entry in entries
    ]


def _texts_with_accounts(entry: ActionEntry) -> list[str]:
    """Return the texts of an entry that may be ids of accounts. In entries of other actions texts are no ids."""
    is_of_accounts = entry.action.startswith(("user ", "token "))
    return [detail.text for detail in entry.details if is_of_accounts and detail.text]


def _with_names(entry: ActionEntry, names: Mapping[str, str], apps: Mapping[str, str]) -> ActionEntry:
    """Return the entry with names in its details in place of the ids of accounts, and of the apps of test devices."""
    named = ActionEntry()
    named.CopyFrom(entry)
    accounts = _texts_with_accounts(entry)
    for detail in named.details:
        if detail.text in accounts:
            detail.text = names.get(detail.text, detail.text)
        elif entry.action.startswith("team test device"):
            appkey, space, device = detail.text.partition(" ")
            detail.text = f"{apps.get(appkey, appkey)}{space}{device}"
    return named


def _path(entry: ActionEntry, apps: Mapping[str, str], teams: Mapping[str, str]) -> str:
    """Return the path of the push, draft or tasks that an action was about; "" if the account sees no such page."""
    subject = entry.action.partition(" ")[0]
    for detail in entry.details:
        match detail.WhichOneof("detail"):
            case "push" if subject == "push" and entry.appkey in apps:
                return f"/apps/{entry.appkey}/pushes/{detail.push}"
            case "draft" if entry.team_id in teams:
                return f"/drafts/{entry.team_id}/{detail.draft}"
            case "task" if entry.appkey in apps:
                return f"/tasks?appkey={entry.appkey}"
    return ""


def _scope(backend: Backend, requester: Requester, filters: Filters) -> ActionScope | None:
    """Return the teams and apps to be asked for; None for everything, which administrators may see."""
    if requester.may(Action.MANAGE_INSTALLATION) and not filters.team and not filters.app:
        return None
    apps, teams = visible_apps(backend, requester), visible_teams(backend, requester)
    if filters.team:
        teams = [team for team in teams if team.team_id == filters.team]
        apps = [app for app in apps if backend.accounts.team_of(app.appkey) == filters.team]
    if filters.app:
        teams, apps = [], [app for app in apps if app.appkey == filters.app]
    return ActionScope(team_ids=[team.team_id for team in teams], appkeys=[app.appkey for app in apps])


async def _actor(backend: Backend, requester: Requester, who: str) -> str:
    """Return the account that a log-in name or an id names.

    Only accounts that manage users learn that a name does not exist; for others it is an account without actions.
    """
    if not who or who.startswith(("user/", "token/")):
        return who
    users = (await backend.roles.accounts.GetUsers(GetUsersRequest(logins=[who]))).users
    if users:
        return f"user/{users[0].user_id}"
    if requester.may(Action.MANAGE_USERS):
        raise InputError(Code.NO_SUCH_LOGIN, login=who)
    return f"user/{who}"


def _time_range(filters: Filters, zone: ZoneInfo) -> tuple[int, int]:
    """Return the first millisecond of the days, and the first after them. InputError: a day is invalid."""
    try:
        first, last = date.fromisoformat(filters.first), date.fromisoformat(filters.last)
        starts = [datetime(day.year, day.month, day.day, tzinfo=zone) for day in (first, last + timedelta(days=1))]
    except (ValueError, OverflowError):
        raise InputError(Code.NO_DAYS) from None
    return int(starts[0].timestamp() * 1000), int(starts[1].timestamp() * 1000)
