"""A call of `/console/v1`: its route and access, and the types that its handler declares for requests and answers."""

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import msgspec

from edge.console.access_control.access import Access

Handler = Callable[..., Awaitable[msgspec.Struct]]


class Types(NamedTuple):
    """What a handler declares beside `backend` and `requester`.

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

    method: Literal["GET", "POST"]
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
