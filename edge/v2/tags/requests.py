"""Requests about string tags, with their limits and descriptions. InputError names the field."""

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from edge.core.parsing.fields import NAME_BYTES, AnyToken, Appkey, Name, Sign, described
from edge.core.parsing.shown import Rule, Shown, required_one_of, shaped_by
from edge.core.parsing.typed import ABSENT, convert, decode
from edge.core.signature import AppRef
from edge.v2.apps import SIGN_BY_LIST, AnyApps, NamedApps
from edge.v2.tags import string_tags
from edge.v2.tags.string_tags import AppTokens
from services.runtime.errors import InputError

MAX_TOKENS = 1000
MAX_STAGS = 100

_TOKENS = msgspec.Meta(min_length=1, max_length=MAX_TOKENS)
_STAGS = msgspec.Meta(min_length=1, max_length=MAX_STAGS)
_NOT_EMPTY = msgspec.Meta(min_length=1)
StagsByToken = Annotated[dict[AnyToken, Annotated[list[Name], _STAGS]], _TOKENS]
TokenList = Annotated[list[AnyToken], _TOKENS]
ByApp = Annotated[dict[str, Any], _NOT_EMPTY]
_CHANGES = Shown(StagsByToken, Annotated[dict[Appkey, StagsByToken], _NOT_EMPTY])
_QUERIES = Shown(TokenList, Annotated[dict[Appkey, TokenList], _NOT_EMPTY])
_PARAMS = ("params", "param")
_CHANGE_RULES = (
    required_one_of(*_PARAMS),
    shaped_by(
        "appkey",
        _PARAMS,
        {"additionalProperties": {"type": "object"}},
        {"additionalProperties": {"type": "array"}},
    ),
)
_QUERY_RULES = (
    required_one_of(*_PARAMS),
    shaped_by("appkey", _PARAMS, {"type": ["object", "null"]}, {"type": ["array", "null"]}),
)
_Action = Annotated[Literal["stag"], described("Always stag.")]


class Signed(msgspec.Struct, frozen=True):
    """The fields of every request about string tags that authentication reads."""

    appkey: Annotated[AnyApps, described("An app or a list of apps.")]
    sign: Annotated[Sign, SIGN_BY_LIST]


class TagChange(msgspec.Struct, frozen=True):
    """POST and DELETE /v2/device. `param` is accepted in place of `params`."""

    shown_rules: ClassVar[tuple[Rule, ...]] = _CHANGE_RULES

    action: _Action
    params: Annotated[
        msgspec.Raw,
        _CHANGES,
        described("From token to string tags; with a list of apps from appkey to such an object."),
    ] = ABSENT
    param: Annotated[msgspec.Raw, _CHANGES, described("The same as params.")] = ABSENT


class TagQuery(msgspec.Struct, frozen=True):
    """POST /v2/deviceinfo. `param` is accepted in place of `params`."""

    shown_rules: ClassVar[tuple[Rule, ...]] = _QUERY_RULES

    action: _Action
    params: Annotated[msgspec.Raw, _QUERIES, described("Tokens; with a list of apps from appkey to such a list.")] = (
        ABSENT
    )
    param: Annotated[msgspec.Raw, _QUERIES, described("The same as params.")] = ABSENT


def tag_change(raw: bytes, apps: NamedApps) -> list[tuple[AppRef, string_tags.StagsByToken]]:
    """Parse a change of tags into the tags by token for each app, in the order of the request."""
    changes: list[tuple[AppRef, string_tags.StagsByToken]] = _per_app(decode(TagChange, raw), apps, StagsByToken)
    for app, by_token in changes:
        at = f"params.{app.appkey}" if apps.listed else "params"
        for token, stags in by_token.items():
            if max(map(len, map(str.encode, stags))) > NAME_BYTES:
                index = next(index for index, stag in enumerate(stags) if len(stag.encode()) > NAME_BYTES)
                raise InputError(f"{at}.{token}[{index}] must have 1 to {NAME_BYTES} bytes")
    return changes


def tag_query(raw: bytes, apps: NamedApps) -> list[AppTokens]:
    """Parse a query into the tokens for each app, in the order of the request."""
    return [AppTokens(app, tokens) for app, tokens in _per_app(decode(TagQuery, raw), apps, TokenList)]


def _per_app(body: TagChange | TagQuery, apps: NamedApps, kind: Any) -> list[tuple[AppRef, Any]]:
    """Return the part of `params` for each app, empty for an app that it leaves out."""
    params = _params(body)
    if not apps.listed:
        return [(apps.apps[0], decode(kind, params, "params"))]
    by_app: dict[str, Any] = decode(ByApp, params, "params")
    for appkey in by_app:
        if appkey not in apps.appkeys:
            raise InputError(f"params.{appkey} is none of the apps in appkey")
    found = [
        (app, convert(kind, by_app[app.appkey], f"params.{app.appkey}") if app.appkey in by_app else kind.__origin__())
        for app in apps.apps
    ]
    _check_count(sum(len(of_app) for _, of_app in found))
    return found


def _params(body: TagChange | TagQuery) -> msgspec.Raw:
    given = [raw for raw in (body.params, body.param) if raw != ABSENT]
    if not given:
        raise InputError("params is missing")
    if len(given) == 2 and decode(Any, given[0]) != decode(Any, given[1]):
        raise InputError("params and param differ; give one of them")
    return given[0]


def _check_count(tokens: int) -> None:
    if tokens > MAX_TOKENS:
        raise InputError(f"params must have at most {MAX_TOKENS} tokens in all")
