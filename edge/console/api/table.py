"""Every call of `/console/v1`, with the access that it needs.

A call is added here; one that is not declared is refused, and a test makes each with wrong tokens.
"""

from collections.abc import Mapping, Sequence

from edge.console.access_control.access import LOGGED_IN, PUBLIC, Access, of_app, of_team
from edge.console.access_control.bearer import API_PREFIX
from edge.console.access_control.middleware import Accesses
from edge.console.api.calls import Call
from edge.console.api.handlers import apps, devices, numbers, people, pushes, sending, tasks
from services.domain.accounts.permissions import Action

DOCUMENT_PATH = f"{API_PREFIX}/openapi.json"

_VIEW, _SEND = of_app(Action.VIEW), of_app(Action.SEND)
_DEVICES, _PAUSE = of_app(Action.VIEW_DEVICES), of_app(Action.PAUSE)
_APP = f"{API_PREFIX}/apps/{{appkey}}"
_PUSH = f"{_APP}/pushes/{{msgid}}"
_TASK = f"{_APP}/tasks/{{task_key}}"
_DRAFT = f"{API_PREFIX}/drafts/{{team_id}}/{{draft_id}}"

CALLS: Sequence[Call] = (
    Call("GET", f"{API_PREFIX}/token", LOGGED_IN, people.own_token),
    Call("GET", f"{API_PREFIX}/apps", LOGGED_IN, apps.list_apps),
    Call("GET", _APP, _VIEW, apps.app),
    Call("POST", f"{_APP}/secret", of_app(Action.CHANGE_APP), apps.rotate_secret),
    Call("POST", f"{_APP}/settings", of_app(Action.CHANGE_APP), apps.set_app),
    Call("POST", f"{_APP}/pause", _PAUSE, apps.pause),
    Call("POST", f"{_APP}/resume", _PAUSE, apps.resume),
    Call("GET", f"{API_PREFIX}/pushes", LOGGED_IN, pushes.list_pushes),
    Call("GET", f"{API_PREFIX}/pushes/{{msgid}}", LOGGED_IN, pushes.find_push),
    Call("POST", f"{_APP}/estimate", _SEND, sending.estimate),
    Call("POST", f"{_APP}/pushes", _SEND, sending.send_push),
    Call("GET", _PUSH, _VIEW, pushes.push),
    Call("GET", f"{_PUSH}/speed", _VIEW, pushes.speed),
    Call("GET", f"{_PUSH}/states", _VIEW, pushes.states),
    Call("GET", f"{_PUSH}/devices", _DEVICES, devices.list_push_devices),
    Call("POST", f"{_PUSH}/cancel", _SEND, pushes.cancel_push),
    Call("GET", f"{API_PREFIX}/drafts", LOGGED_IN, sending.list_drafts),
    Call("GET", _DRAFT, of_team(Action.VIEW), sending.draft),
    Call("POST", f"{_DRAFT}/withdraw", of_team(Action.SEND), sending.withdraw_draft),
    Call("GET", f"{API_PREFIX}/tasks", LOGGED_IN, tasks.list_tasks),
    Call("GET", _TASK, _VIEW, tasks.task),
    Call("POST", f"{_TASK}/cancel", _SEND, tasks.cancel_task),
    Call("GET", f"{_APP}/devices", _DEVICES, devices.find_devices),
    Call("GET", f"{_APP}/device-history", _DEVICES, devices.device_history),
    Call("GET", f"{_APP}/why", _DEVICES, devices.why_not),
    Call("GET", f"{_APP}/statistics", _VIEW, numbers.statistics_of_app),
    Call("GET", f"{_APP}/timeline", _VIEW, numbers.app_timeline),
    Call("GET", f"{API_PREFIX}/audit", LOGGED_IN, numbers.list_actions),
    Call("GET", f"{API_PREFIX}/teams", LOGGED_IN, people.list_teams),
    Call("GET", f"{API_PREFIX}/teams/{{team_id}}", of_team(Action.VIEW), people.team),
)


def by_path() -> Mapping[str, Sequence[Call]]:
    """Return the calls of each path."""
    found: dict[str, list[Call]] = {}
    for call in CALLS:
        found.setdefault(call.path, []).append(call)
    return found


def accesses_of_calls() -> Accesses:
    """Return what each call needs, for the class `AccessControl`; anybody may read the document."""
    paths: dict[str, Mapping[str, Access]] = {
        path: {call.method: call.access for call in calls} for path, calls in by_path().items()
    }
    return {DOCUMENT_PATH: {"GET": PUBLIC}, **paths}
