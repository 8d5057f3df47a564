"""Every call of `/console/v1`, with the access that it needs, and the OpenAPI 3.1 document made of them."""

import functools
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from falcon.asgi import Request, Response

from console.apps import calls as apps
from console.devices import calls as devices
from console.people import calls as people
from console.pushes import calls as pushes
from console.send import calls as sending
from console.shell import call_problems
from console.shell.access import LOGGED_IN, PUBLIC, Access, of_app, of_team
from console.shell.bearer import API_PREFIX
from console.shell.call_problems import Problem
from console.shell.calls import MEDIA_TYPE, Call, Types
from console.shell.middleware import Accesses
from console.statistics import calls as numbers
from console.tasks import calls as tasks
from console.webhooks import calls as webhooks
from edge.core.parsing.canonical import without_sign
from edge.core.parsing.fields import described
from edge.openapi.document import IDEMPOTENCY_KEY, RETRY_AFTER
from edge.openapi.schema import Component, Components, Json, with_digit_strings
from edge.openapi.v2_examples import PUSHES
from edge.v2.push.requests import PushRequest
from services.domain.permissions import NEEDED_ROLE, Action

# Every call of `/console/v1`, with the access that it needs.
#
# A call is added here; one that is not declared is refused, and a test makes each with wrong tokens.

DOCUMENT_PATH = f"{API_PREFIX}/openapi.json"
EVENTS_PATH = f"{API_PREFIX}/events"
"""Server-sent events, which the document does not describe: its answers are JSON."""

_VIEW, _SEND = of_app(Action.VIEW), of_app(Action.SEND)
_DEVICES, _PAUSE = of_app(Action.VIEW_DEVICES), of_app(Action.PAUSE)
_CHANGE, _CHANGE_APPS = of_app(Action.CHANGE_APP), of_team(Action.CHANGE_APP)
_APP = f"{API_PREFIX}/apps/{{appkey}}"
_OF_PUSH = f"{_APP}/pushes/{{msgid}}"
_TASK = f"{_APP}/tasks/{{task_key}}"
_WEBHOOK = f"{_APP}/webhooks/{{webhook_id}}"
_TEAM = f"{API_PREFIX}/teams/{{team_id}}"
_TEAM_WEBHOOK = f"{_TEAM}/webhooks/{{webhook_id}}"
_DRAFT = f"{API_PREFIX}/drafts/{{team_id}}/{{draft_id}}"

CALLS: Sequence[Call] = (
    Call("GET", f"{API_PREFIX}/token", LOGGED_IN, people.own_token),
    Call("GET", f"{API_PREFIX}/apps", LOGGED_IN, apps.list_apps),
    Call("GET", _APP, _VIEW, apps.app),
    Call("POST", f"{_APP}/secret", of_app(Action.CHANGE_APP), apps.rotate_secret),
    Call("POST", f"{_APP}/settings", of_app(Action.CHANGE_APP), apps.set_app),
    Call("POST", f"{_APP}/pause", _PAUSE, apps.pause),
    Call("POST", f"{_APP}/resume", _PAUSE, apps.resume),
    Call("GET", f"{_APP}/refused-requests", _VIEW, apps.list_refused_requests),
    Call("GET", f"{API_PREFIX}/pushes", LOGGED_IN, pushes.list_pushes),
    Call("GET", f"{API_PREFIX}/pushes/{{msgid}}", LOGGED_IN, pushes.find_push),
    Call("POST", f"{_APP}/estimate", _SEND, sending.estimate),
    Call("GET", f"{_APP}/audience-values", _SEND, sending.audience_values),
    Call("GET", f"{_APP}/audiences", _SEND, sending.list_audiences),
    Call("POST", f"{_APP}/audiences", _SEND, sending.save_audience),
    Call("DELETE", f"{_APP}/audiences", _SEND, sending.remove_audience),
    Call("POST", f"{_APP}/pushes", _SEND, sending.send_push),
    Call("GET", _OF_PUSH, _VIEW, pushes.push),
    Call("GET", f"{_OF_PUSH}/speed", _VIEW, pushes.speed),
    Call("GET", f"{_OF_PUSH}/states", _VIEW, pushes.states),
    Call("GET", f"{_OF_PUSH}/devices", _DEVICES, devices.list_push_devices),
    Call("POST", f"{_OF_PUSH}/cancel", _SEND, pushes.cancel_push),
    Call("GET", f"{API_PREFIX}/drafts", LOGGED_IN, sending.list_drafts),
    Call("GET", _DRAFT, of_team(Action.VIEW), sending.draft),
    Call("POST", f"{_DRAFT}/withdraw", of_team(Action.SEND), sending.withdraw_draft),
    Call("GET", f"{API_PREFIX}/tasks", LOGGED_IN, tasks.list_tasks),
    Call("GET", _TASK, _VIEW, tasks.task),
    Call("POST", f"{_TASK}/cancel", _SEND, tasks.cancel_task),
    Call("GET", f"{_APP}/webhooks", _CHANGE, webhooks.list_webhooks),
    Call("POST", f"{_APP}/webhooks", _CHANGE, webhooks.add_webhook),
    Call("POST", _WEBHOOK, _CHANGE, webhooks.set_webhook),
    Call("POST", f"{_WEBHOOK}/secret", _CHANGE, webhooks.rotate_webhook_secret),
    Call("POST", f"{_WEBHOOK}/resume", _CHANGE, webhooks.resume_webhook),
    Call("POST", f"{_WEBHOOK}/remove", _CHANGE, webhooks.remove_webhook),
    Call("GET", f"{_WEBHOOK}/attempts", _CHANGE, webhooks.list_attempts),
    Call("POST", f"{_WEBHOOK}/test", _CHANGE, webhooks.send_test),
    Call("POST", f"{_WEBHOOK}/resend", _CHANGE, webhooks.resend),
    Call("GET", f"{_APP}/devices", _DEVICES, devices.find_devices),
    Call("GET", f"{_APP}/device-history", _DEVICES, devices.device_history),
    Call("GET", f"{_APP}/person", of_app(Action.EXPORT_PERSON), devices.export_person),
    Call("DELETE", f"{_APP}/person", of_app(Action.ERASE_PERSON), devices.erase_person),
    Call("GET", f"{_APP}/erasures", of_app(Action.EXPORT_PERSON), devices.list_erasures),
    Call("GET", f"{_APP}/addresses", _DEVICES, devices.list_addresses),
    Call("GET", f"{_APP}/why", _DEVICES, devices.why_not),
    Call("GET", f"{_APP}/statistics", _VIEW, numbers.statistics_of_app),
    Call("GET", f"{_APP}/timeline", _VIEW, numbers.app_timeline),
    Call("GET", f"{API_PREFIX}/audit", LOGGED_IN, numbers.list_actions),
    Call("GET", f"{API_PREFIX}/teams", LOGGED_IN, people.list_teams),
    Call("GET", _TEAM, of_team(Action.VIEW), people.team),
    Call("GET", f"{_TEAM}/webhooks", _CHANGE_APPS, webhooks.list_team_webhooks),
    Call("POST", f"{_TEAM}/webhooks", _CHANGE_APPS, webhooks.add_team_webhook),
    Call("POST", _TEAM_WEBHOOK, _CHANGE_APPS, webhooks.set_team_webhook),
    Call("POST", f"{_TEAM_WEBHOOK}/secret", _CHANGE_APPS, webhooks.rotate_team_webhook_secret),
    Call("POST", f"{_TEAM_WEBHOOK}/resume", _CHANGE_APPS, webhooks.resume_team_webhook),
    Call("POST", f"{_TEAM_WEBHOOK}/remove", _CHANGE_APPS, webhooks.remove_team_webhook),
    Call("GET", f"{_TEAM_WEBHOOK}/attempts", _CHANGE_APPS, webhooks.list_team_attempts),
    Call("POST", f"{_TEAM_WEBHOOK}/test", _CHANGE_APPS, webhooks.send_team_test),
    Call("POST", f"{_TEAM_WEBHOOK}/resend", _CHANGE_APPS, webhooks.resend_to_team),
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
    return {DOCUMENT_PATH: {"GET": PUBLIC}, EVENTS_PATH: {"GET": LOGGED_IN}, **paths}


_TEXT = """The actions of the console for programs: by API tokens of a team, with the rights of the token's role.

Errors are problem details (RFC 9457) whose `detail` says what to do. Lists come in pages: `next` of one is the `cursor`
of the following. Times are milliseconds since 1970 UTC; days are those of the service's time zone. Each change, and
each reading of a device, is in the audit with the token. Registering apps, approving drafts, and changing teams and
tokens stays with people."""
_PROBLEMS = {
    400: "A parameter or the body is wrong.",
    401: "There is no valid API token.",
    403: "The token may not do this, or the app is paused; nothing was done.",
    404: "There is none that the token may see.",
    429: "Too many calls, or the app is over a quota; nothing was done.",
    503: "A part of the service does not answer at present.",
}
_PROBLEMS_OF_CHANGES = {
    408: "The body did not arrive in time.",
    409: "It is not possible in the present state; nothing was done.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


class _UnreadSign(msgspec.Struct, frozen=True):
    sign: Annotated[str | None, described("Is not read: the API token takes its place.")] = None


_PUSH = Component(PushRequest, "PushRequest", (_UnreadSign,))


@functools.cache
def document() -> Json:
    """Return the document as JSON data."""
    components = Components()
    every = [(call, call.types) for call in CALLS]
    kinds: list[Any] = []
    for _, types in every:
        kinds += [types.answer, _body_kind(types) or Problem, *(field.type for field in _params(types))]
    (*found, _), schemas = components.schemas(*kinds, Problem)
    schemas_left = iter(found)
    paths: dict[str, Json] = {}
    for call, types in every:
        answer, body = next(schemas_left), next(schemas_left)
        parameters = [_parameter(call, field, next(schemas_left)) for field in _params(types)]
        if types.body is bytes:
            body = with_digit_strings(body, schemas)
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, types, answer, body, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Carillon console", "version": version("carillon"), "description": _TEXT},
        "servers": [{"url": "http://localhost:8080"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "An API token of a team."}
            },
            "schemas": schemas,
        },
    }


class CallsDocumentEndpoint:
    """GET of the document."""

    async def on_get(self, request: Request, response: Response) -> None:
        response.content_type = MEDIA_TYPE
        response.data = written()


@functools.cache
def written() -> bytes:
    """Return the document as it is served and stored in docs/openapi."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=2) + b"\n"


def _params(types: Types) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(types.params)


def _body_kind(types: Types) -> Any:
    return _PUSH if types.body is bytes else types.body


def _parameter(call: Call, field: msgspec.structs.FieldInfo, schema: Json) -> Json:
    in_path = f"{{{field.name}}}" in call.path
    schema = dict(schema)
    text = schema.pop("description", "")
    if not field.required and field.default is not None:
        schema["default"] = field.default
    place = {"in": "path" if in_path else "query", "required": field.required}
    return {"name": field.name, **place, "description": text, "schema": schema}


def _operation(call: Call, types: Types, answer: Json, body: Json, parameters: list[Json]) -> Json:
    summary, _, text = call.text.partition("\n")
    access = call.access
    role = NEEDED_ROLE[access.action].name.lower() if access.action else ""
    needed = f"Needs the role {role} or one above it." if role else "Any API token may make it."
    words = re.sub(r"[^a-z0-9]+", "_", call.path.removeprefix("/console/v1").replace("{", "of_")).strip("_")
    parameters = parameters + ([IDEMPOTENCY_KEY] if types.is_repeatable else [])
    of_changes = {409: _PROBLEMS_OF_CHANGES[409]} if call.method == "DELETE" else _PROBLEMS_OF_CHANGES
    known = _PROBLEMS | (of_changes if call.method != "GET" else {})
    found: Json = {
        "operationId": f"{call.method.lower()}_{words}",
        "summary": summary.rstrip("."),
        "description": f"{text.strip()} {needed}".strip(),
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": {MEDIA_TYPE: {"schema": answer}}},
            **{str(status): _problem(status, words) for status, words in sorted(known.items())},
        },
    }
    if types.body is not None:
        examples = {"examples": {name: {"value": without_sign(value)} for name, value in PUSHES.items()}}
        shown = {"schema": body, **(examples if types.is_repeatable else {})}
        found["requestBody"] = {"required": types.body is bytes, "content": {MEDIA_TYPE: shown}}
    return found


def _problem(status: int, words: str) -> Json:
    schema = {"$ref": "#/components/schemas/Problem"}
    headers = {"headers": RETRY_AFTER} if status == 429 else {}
    return {"description": words, "content": {call_problems.MEDIA_TYPE: {"schema": schema}}, **headers}
