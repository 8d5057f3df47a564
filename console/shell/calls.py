"""A call of `/console/v1`: its route and access, typed requests and answers, and cursors of pages."""

import inspect
import secrets
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import falcon
import msgspec
from falcon.asgi import Request, Response

from console.shell.access import Access
from console.shell.backend import Backend
from console.shell.numbers import whole_number
from edge.core.idempotency import HEADER, check_key
from edge.core.parsing.body import MAX_BODY_BYTES, read_body
from edge.core.parsing.typed import decode
from services.domain.text import refuse_nul, without_byte_order_mark
from services.errors import InputError

Handler = Callable[..., Awaitable[msgspec.Struct]]


class Types(NamedTuple):
    """The declarations of a handler beside `backend` and `requester`.

    `params`: the names in the path and the query; `body`: the JSON body, bytes for the request of a push, None for
    none; `is_repeatable`: it takes the header Idempotency-Key.
    """

    params: type[msgspec.Struct]
    body: Any
    answer: type[msgspec.Struct]
    is_repeatable: bool


class NoParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Neither names in the path nor a query."""


class Call(NamedTuple):
    """One method of one path. The docstring of the handler describes it in the OpenAPI document."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    access: Access
    handler: Handler

    @property
    def types(self) -> Types:
        """The declarations of the handler, which validate requests and make the OpenAPI document."""
        hints = typing.get_type_hints(self.handler, include_extras=True)
        return Types(hints.get("params", NoParams), hints.get("body"), hints["return"], "key" in hints)

    @property
    def text(self) -> str:
        return inspect.cleandoc(self.handler.__doc__ or "")


# The resource of a path of `/console/v1`: reads the request into the declared types, and answers with JSON.

MEDIA_TYPE = "application/json"
MAX_SMALL_BODY_BYTES = 64 * 1024
_MAX_PARAMS = 50


class CallEndpoint:
    """Answers the calls of one path. Who may make them was checked before."""

    def __init__(self, backend: Backend, calls: Sequence[Call]) -> None:
        self._backend = backend
        self._calls: Mapping[str, tuple[Call, Types]] = {call.method: (call, call.types) for call in calls}

    async def on_get(self, request: Request, response: Response, **names: str) -> None:
        await self._answer(request, response, names)

    async def on_post(self, request: Request, response: Response, **names: str) -> None:
        await self._answer(request, response, names)

    async def on_delete(self, request: Request, response: Response, **names: str) -> None:
        await self._answer(request, response, names)

    async def _answer(self, request: Request, response: Response, names: Mapping[str, str]) -> None:
        call, types = self._calls[request.method]
        given: dict[str, Any] = {"params": _params(request, names, types)}
        if types.body is not None:
            given["body"] = await _body(request, types)
        if types.is_repeatable:
            given["key"] = _key(request)
        answer = await call.handler(self._backend, request.context.requester, **given)
        response.content_type = MEDIA_TYPE
        response.data = msgspec.json.encode(answer)


def _params(request: Request, names: Mapping[str, str], types: Types) -> msgspec.Struct:
    """Return the names of the path and the query. InputError: one is unknown, missing, given twice, or has no value."""
    try:
        pairs = parse_qsl(request.query_string, keep_blank_values=True, max_num_fields=_MAX_PARAMS, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise InputError("the query of the address cannot be read") from None
    query = dict(pairs)
    if len(query) < len(pairs) or query.keys() & names.keys():
        raise InputError("a parameter is given twice")
    given = {**query, **names}
    refuse_nul(given)
    try:
        return msgspec.convert(given, types.params, strict=False)
    except msgspec.ValidationError as error:
        words, _, path = str(error).partition(" - at `$.")
        raise InputError(f"{path.strip('`')}: {words}" if path else words) from None


async def _body(request: Request, types: Types) -> Any:
    """Return the body. HTTP 415: it is no JSON; HTTP 413: it is too large; InputError: it does not fit the type."""
    media_type = (request.content_type or "").partition(";")[0].strip().lower()
    raw = await read_body(request, MAX_BODY_BYTES if types.body is bytes else MAX_SMALL_BODY_BYTES)
    if media_type != MEDIA_TYPE and (raw or media_type):
        raise falcon.HTTPUnsupportedMediaType(description=f"send the body as Content-Type: {MEDIA_TYPE}")
    raw = without_byte_order_mark(raw)
    if types.body is bytes:
        return raw
    body = decode(types.body, raw or b"{}")
    refuse_nul(msgspec.to_builtins(body))
    return body


def _key(request: Request) -> str:
    """Return the key under which a request counts once; a new one where the caller gives none."""
    key = request.get_header(HEADER)
    if key is None:
        return secrets.token_hex(16)
    check_key(key)
    return key


# Cursors of pages: the `next` of one page is the `cursor` of the following one.

MAX_ENTRIES = 1_000_000


def after(cursor: str, most: int = MAX_ENTRIES) -> int:
    """Return the number that a cursor is; 0 for the first page. InputError: no page has returned this cursor."""
    number = whole_number(cursor or "0", most)
    if number is None:
        raise InputError("cursor: give the `next` of the page before, or nothing")
    return number
