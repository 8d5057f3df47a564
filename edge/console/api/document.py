"""The OpenAPI 3.1 document of `/console/v1`, made of the declarations that validate its requests."""

import functools
import re
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
from falcon.asgi import Request, Response

from edge.console.api import problems
from edge.console.api.calls import Call, Types
from edge.console.api.endpoint import MEDIA_TYPE
from edge.console.api.problems import Problem
from edge.console.api.table import CALLS
from edge.core.parsing.canonical import without_sign
from edge.core.parsing.fields import described
from edge.openapi.document import IDEMPOTENCY_KEY, RETRY_AFTER
from edge.openapi.schema import Component, Components, Json, with_digit_strings
from edge.openapi.v2_examples import PUSHES
from edge.v2.push.requests import PushRequest
from services.domain.accounts.permissions import NEEDED_ROLE

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


class DocumentEndpoint:
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
    known = _PROBLEMS | (_PROBLEMS_OF_CHANGES if call.method == "POST" else {})
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
    return {"description": words, "content": {problems.MEDIA_TYPE: {"schema": schema}}, **headers}
