"""The OpenAPI 3.1 document of an HTTP interface."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import msgspec

from edge.core.answers import Denial, TransportError
from edge.core.idempotency import HEADER, MAX_KEY_LENGTH
from edge.core.replay_protection import NONCE, NONCE_HEADER, SIGNATURE_HEADER, TIME_HEADER
from edge.openapi.schema import Component, Components, Json, with_digit_strings

MEDIA_TYPE = "application/json"


class Operation(NamedTuple):
    """One method of one path. `answers`: types of the body of HTTP 200; `examples`: requests that show every property.

    `repeatable`: an Idempotency-Key makes a repeat harmless. `denial`: type of the body of HTTP 429, and of 403 for app
    servers.
    """

    method: Literal["post", "delete"]
    path: str
    summary: str
    request: Component | tuple[type[msgspec.Struct] | Component, ...]
    answers: Sequence[Any]
    examples: Mapping[str, Any]
    repeatable: bool = False
    denial: type[msgspec.Struct] | Component = Denial

    @property
    def is_of_app_servers(self) -> bool:
        return self.denial is Denial


class Interface(NamedTuple):
    """An HTTP interface as its document shows it."""

    title: str
    text: str
    port: int
    operations: Sequence[Operation]


_ABOUT = """

Every answer is JSON with `result`: 0 is success. Answers have HTTP status 200 whatever `result` says, except 403 and
429, which are the HTTP status too; another status means that the request was not read. Fields that are not shown here
are ignored, except that a push with a misspelt target (`tokens`, `stags`, `Alias`) is refused; null counts as absent,
and a body has at most 1 MiB. An integer may be written as a string of digits, within the same bounds. Every request is
signed: docs/app-servers.md shows how."""


def openapi(interface: Interface) -> Json:
    """Return the document as JSON data."""
    components = Components()
    kinds = [
        kind
        for operation in interface.operations
        for kind in (operation.request, components.any_of(*operation.answers), operation.denial)
    ]
    (*found, _), schemas = components.schemas(*kinds, TransportError)
    for place, operation in enumerate(interface.operations):
        if operation.is_of_app_servers:
            found[3 * place] = with_digit_strings(found[3 * place], schemas)
    paths: dict[str, Json] = {}
    for operation, *schemas_of in zip(interface.operations, found[::3], found[1::3], found[2::3], strict=True):
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, *schemas_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": interface.title, "version": version("carillon"), "description": interface.text + _ABOUT},
        "servers": [{"url": f"http://localhost:{interface.port}"}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(operation: Operation, request: Json, answer: Json, denial: Json) -> Json:
    examples = {name: {"value": value} for name, value in operation.examples.items()}
    words = operation.path.strip("/").replace("/", " ").split()
    headers = [
        *([IDEMPOTENCY_KEY] if operation.repeatable else []),
        *(REPLAY_SAFE if operation.is_of_app_servers else []),
    ]
    described = {"parameters": headers} if headers else {}
    forbidden = _response("The app is paused, or does not allow the client's address; nothing was done.", denial)
    busy = _response("Too many request bodies at once, or no answer to a query at present.", _TRANSPORT_ERROR) | {
        "headers": RETRY_AFTER
    }
    return described | {
        "operationId": "_".join([operation.method, *words]),
        "summary": operation.summary,
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": request, "examples": examples}}},
        "responses": {
            "200": _response("The answer.", answer),
            **({"403": forbidden, "503": busy} if operation.is_of_app_servers else {}),
            "408": _response("The body did not arrive in time.", _TRANSPORT_ERROR),
            "413": _response("The body is too large.", _TRANSPORT_ERROR),
            "429": _response("The app is over a quota; nothing was done.", denial) | {"headers": RETRY_AFTER},
        },
    }


def _response(text: str, schema: Json) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": schema}}}


IDEMPOTENCY_KEY = {
    "name": HEADER,
    "in": "header",
    "description": "A text of the caller's choice. For 10 minutes the same request under the same key sends nothing"
    " again and gets the first answer; another request under the key is refused.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[ -~]+$"},
}
REPLAY_SAFE = [
    {"name": name, "in": "header", "description": text, "schema": {"type": "string", "pattern": f"^{pattern}$"}}
    for name, pattern, text in (
        (TIME_HEADER, "[0-9]{1,12}", "Replay-safe signature: seconds since 1970 UTC. The three headers go together."),
        (NONCE_HEADER, NONCE, "Replay-safe signature: a text that no other request has."),
        (SIGNATURE_HEADER, "[0-9a-f]{64}", "Replay-safe signature: HMAC-SHA256, as docs/app-servers.md shows."),
    )
]
RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which the request may be repeated.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    }
}
_TRANSPORT_ERROR = {"$ref": "#/components/schemas/TransportError"}
