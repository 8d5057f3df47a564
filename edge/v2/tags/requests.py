"""Requests about string tags. InputError names the field."""

from typing import Annotated, Any, Literal

import msgspec

from edge.core.parsing.typed import ABSENT, convert, decode
from edge.core.signature import AppRef
from edge.v2.apps import NamedApps
from edge.v2.tags.string_tags import AppTokens, StagsByToken
from services.runtime.errors import InputError

MAX_TOKENS = 1000
MAX_STAGS = 100
STAG_BYTES = 40

Stags = Annotated[list[Annotated[str, msgspec.Meta(min_length=1)]], msgspec.Meta(min_length=1, max_length=MAX_STAGS)]
StagsOfTokens = Annotated[dict[str, Stags], msgspec.Meta(min_length=1, max_length=MAX_TOKENS)]
TokenList = Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TOKENS)]
ByApp = Annotated[dict[str, Any], msgspec.Meta(min_length=1)]


class TagBody(msgspec.Struct, frozen=True):
    """POST and DELETE /v2/device, POST /v2/deviceinfo. The interface writes `params` and `param` for the same."""

    action: Literal["stag"]
    params: msgspec.Raw = ABSENT
    param: msgspec.Raw = ABSENT


def tag_change(raw: bytes, apps: NamedApps) -> list[tuple[AppRef, StagsByToken]]:
    """Which tags to add to, or take from, which devices; the apps as the request lists them."""
    wanted: list[tuple[AppRef, StagsByToken]] = _per_app(raw, apps, StagsOfTokens)
    for app, by_token in wanted:
        place = f"params.{app.appkey}" if apps.listed else "params"
        for token, stags in by_token.items():
            for index, stag in enumerate(stags):
                if len(stag.encode()) > STAG_BYTES:
                    raise InputError(f"{place}.{token}[{index}] must have 1 to {STAG_BYTES} bytes")
    return wanted


def tag_query(raw: bytes, apps: NamedApps) -> list[AppTokens]:
    """Whose tags are asked for; the apps as the request lists them."""
    return [AppTokens(app, tokens) for app, tokens in _per_app(raw, apps, TokenList)]


def _per_app(raw: bytes, apps: NamedApps, kind: Any) -> list[tuple[AppRef, Any]]:
    """What `params` says of each app. Of an app that it leaves out nothing is asked."""
    params = _params(decode(TagBody, raw))
    if not apps.listed:
        return [(apps.apps[0], decode(kind, params, "params"))]
    by_app: dict[str, Any] = decode(ByApp, params, "params")
    for appkey in by_app:
        if appkey not in apps.appkeys:
            raise InputError(f"params.{appkey} is not one of appkey")
    found = [
        (app, convert(kind, by_app[app.appkey], f"params.{app.appkey}") if app.appkey in by_app else kind.__origin__())
        for app in apps.apps
    ]
    _check_count(sum(len(of_app) for _, of_app in found))
    return found


def _params(body: TagBody) -> msgspec.Raw:
    given = [raw for raw in (body.params, body.param) if raw != ABSENT]
    if not given:
        raise InputError("params is missing")
    if len(given) == 2 and decode(Any, given[0]) != decode(Any, given[1]):
        raise InputError("params and param say different things; give one of them")
    return given[0]


def _check_count(tokens: int) -> None:
    if tokens > MAX_TOKENS:
        raise InputError(f"params must have at most {MAX_TOKENS} tokens in all")
