"""Answers about the string tags of devices."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from edge.core.answers import TOKEN_NOT_FOUND, Content, Reply
from edge.core.parsing.fields import Success, Text, described
from edge.core.signature import AppRef
from edge.v2.apps import NamedApps
from edge.v2.tags.string_tags import AppTokens, StagsByToken, TagOutcome
from services.domain.limits.string_tags import MAX_DEVICE_STAGS

_Token = Annotated[str, described("The device.")]


class TokenOutcome(Reply, frozen=True):
    """The outcome of a change of one device's tags."""

    token: _Token
    result: Annotated[
        Literal[0, 400, 401],
        described("0; 400 when the device has too many tags; 401 when the token is unknown."),
    ]
    desc: Text


class TokenTags(Reply, frozen=True):
    token: _Token
    result: Annotated[Literal[0, 401], described("0, or 401 when the token is unknown.")]
    desc: Text
    infolist: Annotated[list[str], described("Its string tags.")]


class TagsChanged(Reply, frozen=True):
    """The answer for one app; for a list of apps, the value under each appkey."""

    result: Success
    desc: Text
    detailsinfo: Annotated[list[TokenOutcome], described("An entry per token, in the order of the request.")]


class TagsFound(Reply, frozen=True):
    """The answer for one app; for a list of apps, the value under each appkey."""

    result: Success
    desc: Text
    detailsinfo: Annotated[list[TokenTags], described("An entry per token, in the order of the request.")]


def by_app(part: type[Reply]) -> Any:
    """Return the type of the answer for a list of apps: the answer for one app under each appkey."""
    schema = {
        "type": "object",
        "properties": {"result": {"const": 0}, "desc": {"type": "string"}},
        "required": ["result", "desc"],
        "additionalProperties": {"$ref": f"#/components/schemas/{part.__name__}"},
    }
    return Annotated[Any, msgspec.Meta(extra_json_schema=schema)]


def change_reply(
    apps: NamedApps, changes: Sequence[tuple[AppRef, StagsByToken]], outcomes: Sequence[Sequence[TagOutcome]], done: str
) -> Reply | Content:
    """Answer a change with the outcome for each device; `done` is the text of a success."""
    parts = [
        TagsChanged(
            result=0,
            desc=done,
            detailsinfo=[_changed(token, outcome, done) for token, outcome in zip(by_token, of_app, strict=True)],
        )
        for (_, by_token), of_app in zip(changes, outcomes, strict=True)
    ]
    return _reply(apps, parts, done)


def query_reply(
    apps: NamedApps, queries: Sequence[AppTokens], found: Sequence[Mapping[str, Sequence[str]]]
) -> Reply | Content:
    """Answer a query with the string tags of each device."""
    parts = [
        TagsFound(result=0, desc="ok", detailsinfo=[_tags(token, by_token) for token in query.tokens])
        for query, by_token in zip(queries, found, strict=True)
    ]
    return _reply(apps, parts, "ok")


def _changed(token: str, outcome: TagOutcome, done: str) -> TokenOutcome:
    match outcome:
        case TagOutcome.DONE:
            return TokenOutcome(token=token, result=0, desc=done)
        case TagOutcome.UNKNOWN:
            return TokenOutcome(token=token, result=401, desc=TOKEN_NOT_FOUND)
        case TagOutcome.FULL:
            desc = f"input error: a device has at most {MAX_DEVICE_STAGS} stags"
            return TokenOutcome(token=token, result=400, desc=desc)


def _tags(token: str, by_token: Mapping[str, Sequence[str]]) -> TokenTags:
    if token not in by_token:
        return TokenTags(token=token, result=401, desc=TOKEN_NOT_FOUND, infolist=[])
    return TokenTags(token=token, result=0, desc="ok", infolist=list(by_token[token]))


def _reply(apps: NamedApps, parts: Iterable[Reply], desc: str) -> Reply | Content:
    """Return the part of the one app, or the parts under the appkeys of a list of apps."""
    if not apps.listed:
        return next(iter(parts))
    return {"result": 0, "desc": desc} | dict(zip(apps.appkeys, parts, strict=True))
