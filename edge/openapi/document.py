"""An OpenAPI 3.1 document for a door."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import msgspec

from edge.core.idempotency import HEADER, MAX_KEY_LENGTH
from edge.openapi.schema import Json, completed, one_of, schemas

MEDIA_TYPE = "application/json"


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """400: a parameter is wrong, `desc` says which. 401: the sign is wrong. 500: a fault of the service."""

    result: Literal[400, 401, 500]
    desc: str


class TransportError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request was not read; `result` is the HTTP status."""

    result: int
    desc: str


class Operation(NamedTuple):
    """One method of one path. `answers`: what HTTP 200 may carry; `examples` together show every property.

    `repeatable`: an Idempotency-Key makes a repeat harmless.
    """

    method: Literal["post", "delete"]
    path: str
    summary: str
    request: Any
    answers: Sequence[Any]
    examples: Mapping[str, Any]
    repeatable: bool = False


class DoorDocument(NamedTuple):
    """What a door's document is made of. `parts`: types inside `one_of`; `texts`: see `schemas`."""

    title: str
    text: str
    port: int
    operations: Sequence[Operation]
    parts: Sequence[Any]
    texts: Mapping[str, str]


SIGN_TEXT = (
    "32 lowercase hexadecimal digits: MD5 of the canonical text of the request without `sign`, followed by the secrets"
)
RESULT_TEXTS = {
    "Refusal.result": "What went wrong.",
    "Refusal.desc": "In words; for 400 the first field that is wrong.",
    "TransportError.result": "The HTTP status.",
    "TransportError.desc": "In words.",
}
_ABOUT = """

Every answer is JSON with `result`: 0 is success. Answers have HTTP status 200 whatever `result` says; another status
means that the request was not read. Fields that are not shown here are ignored, null counts as absent, and a body has
at most 1 MiB. Integers are written without fraction and exponent: `3`, not `3.0`. Every request is signed:
docs/app-servers.md shows how."""


def openapi(door: DoorDocument) -> Json:
    """The document as JSON data."""
    kinds = [kind for operation in door.operations for kind in (operation.request, one_of(*operation.answers))]
    parts = [*door.parts, *(answer for operation in door.operations for answer in operation.answers), TransportError]
    made, components = schemas(kinds, parts, {**RESULT_TEXTS, **door.texts})
    paths: dict[str, Json] = {}
    for operation, request, answer in zip(door.operations, made[::2], made[1::2], strict=True):
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, request, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": door.title, "version": version("carillon"), "description": door.text + _ABOUT},
        "servers": [{"url": f"http://localhost:{door.port}"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def signed(struct: type[msgspec.Struct], **fields: Any) -> Any:
    """A request as `completed` shows it, with its sign."""
    return completed(struct, sign=str, **fields)


def _operation(operation: Operation, request: Json, answer: Json) -> Json:
    examples = {name: {"value": value} for name, value in operation.examples.items()}
    words = operation.path.strip("/").replace("/", " ").split()
    described = {"parameters": [_IDEMPOTENCY_KEY]} if operation.repeatable else {}
    return described | {
        "operationId": "_".join([operation.method, *words]),
        "summary": operation.summary,
        "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": request, "examples": examples}}},
        "responses": {
            "200": _response("The answer.", answer),
            "408": _response("The body did not come in time.", _TRANSPORT_ERROR),
            "413": _response("The body is too large.", _TRANSPORT_ERROR),
        },
    }


def _response(text: str, schema: Json) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": schema}}}


_IDEMPOTENCY_KEY = {
    "name": HEADER,
    "in": "header",
    "description": "A text of the sender's own. For 10 minutes the same request under the same key sends nothing again"
    " and gets the first answer; another request under it is refused.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[ -~]+$"},
}
_TRANSPORT_ERROR = {"$ref": "#/components/schemas/TransportError"}
