"""Types of fields that several interfaces share, with their limits and what documents show of them.

Documents publish them: `format` says what kind of thing a text names (the names are this project's own), `x-maxBytes`
is a limit in UTF-8 bytes, which code checks.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from protos.push.v1.push_pb2 import Message
from services.domain.apns_payload import MAX_PAYLOAD_BYTES, max_size_bytes
from services.domain.ios_tokens import PATTERN
from services.domain.limits import MAX_PERIOD_S, MIN_PERIOD_S
from services.errors import Code, InputError

NAME_BYTES = 40
"""Limit of an alias and of a string tag, UTF-8 bytes."""

LIST_LIMIT = 1000
"""Entries of a list of tokens or aliases."""


APNS_LIMIT = (
    "Content, extra and style together make the JSON that an iOS device is sent;"
    f" more than {MAX_PAYLOAD_BYTES} bytes of it are refused."
)


def name_of(kind: str) -> msgspec.Meta:
    """Constrain a text to be non-empty, and publish `kind` as its `format`."""
    return msgspec.Meta(min_length=1, extra_json_schema={"format": kind})


def described(text: str, example: Any = None) -> msgspec.Meta:
    """Describe a field in the documents; an example makes it a part of the examples of its request."""
    return msgspec.Meta(description=text, examples=None if example is None else [example])


def at_most_bytes(limit: int, minimum: int = 0) -> msgspec.Meta:
    """Publish a limit in UTF-8 bytes, which the request's code checks. `minimum`: least characters."""
    return msgspec.Meta(min_length=minimum, extra_json_schema={"x-maxBytes": limit})


def sign_of(secrets: str) -> msgspec.Meta:
    """Describe a sign over the canonical text and these secrets."""
    text = "32 lowercase hexadecimal digits: MD5 of the canonical text of the request without `sign`, followed by"
    return described(f"{text} {secrets}.")


AndroidAppkey = Annotated[str, name_of("appkey-android")]
IosAppkey = Annotated[str, name_of("appkey-ios")]
Appkey = Annotated[str, name_of("appkey")]
Sign = Annotated[str, name_of("sign")]
Token = Annotated[str, name_of("token")]
AnyToken = Annotated[str, msgspec.Meta(extra_json_schema={"format": "token"})]
"""An entry of a list that may be empty: an empty token is answered as an unknown one."""

IosToken = Annotated[str, msgspec.Meta(min_length=1, extra_json_schema={"format": "token-ios", "pattern": PATTERN})]
"""A token of an iOS app in any form that `ios_token` accepts."""

AnyIosToken = Annotated[str, msgspec.Meta(extra_json_schema={"format": "token-ios"})]
"""An entry of a list of iOS tokens: one that is no such token fails alone."""

AnyTokens = Annotated[list[AnyToken], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Name = Annotated[str, at_most_bytes(NAME_BYTES, 1)]
"""An alias or a string tag."""

AnyName = Annotated[str, msgspec.Meta(extra_json_schema={"x-anyMaxBytes": NAME_BYTES})]
"""An alias in a list: one that no device can have, empty or too long, fails alone."""

Aliases = Annotated[list[AnyName], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Minute = Annotated[
    str, msgspec.Meta(pattern=r"^\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}$", extra_json_schema={"format": "minute"})
]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$", extra_json_schema={"format": "date"})]
Badge = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Flag = Annotated[int, msgspec.Meta(ge=0, le=1)]
Period = Annotated[int, msgspec.Meta(ge=MIN_PERIOD_S, le=MAX_PERIOD_S)]
"""Time to live in the legacy interfaces, seconds."""

MessageId = Annotated[int, msgspec.Meta(ge=1, lt=2**53)]
"""A message id in an answer."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Success = Annotated[Literal[0], described("Success.")]
Text = Annotated[str, described("The result in words.")]


# Times in requests: `%Y-%m-%d %H:%M` in the service's time zone; the numbers need no zeros before them.

MINUTE_MS = 60_000
_MINUTE = re.compile(r"\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{1,2}", re.ASCII)


def minute_ms(text: str, zone: ZoneInfo, at: str) -> int:
    """Return milliseconds since 1970. InputError: another format, or no such day or time."""
    try:
        moment = datetime.strptime(text if _MINUTE.fullmatch(text) else "", "%Y-%m-%d %H:%M").replace(tzinfo=zone)
        return int(moment.timestamp()) * 1000
    except (ValueError, OverflowError):
        raise InputError(Code.NO_MINUTE, at=at) from None


# Declares what the published documents show of requests, without changing how a request is decoded.
#
# A struct's class variable `shown_rules` holds JSON schemas that it has to fit as well: rules about several fields,
# which code checks.

Rule = dict[str, Any]


class Shown:
    """The type that documents show of a field in place of the one that decodes it.

    `Annotated[msgspec.Raw, Shown(Tags | None)]` declares the type of a field that is decoded later or checked by code.
    Several types mean a value of any of them. They may be structs, of which msgspec itself allows no unions.
    """

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds


def required_one_of(*names: str) -> Rule:
    """Return the rule that one of these fields is given, and not null."""
    return {"anyOf": [_given(name) for name in names]}


def required_where(field: str, values: list[int], *paths: str) -> Rule:
    """Return the rule that these fields are given, and not null, where `field` has one of the values.

    `param.dur` is the field `dur` of the field `param`.
    """
    condition = {"properties": {field: {"enum": [*values, *map(str, values)]}}, "required": [field]}
    return {"if": condition, "then": _given(*paths)}


def shaped_by(field: str, names: Sequence[str], where_list: Rule, otherwise: Rule) -> Rule:
    """Return the rule that the fields `names` fit `where_list` where `field` is a list, and else `otherwise`."""
    condition = {"properties": {field: {"type": "array"}}, "required": [field]}
    return {
        "if": condition,
        "then": {"properties": dict.fromkeys(names, where_list)},
        "else": {"properties": dict.fromkeys(names, otherwise)},
    }


def _given(*paths: str) -> Rule:
    """Return the schema of an object with these fields, none of them null."""
    inner: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        inner.setdefault(name, []).extend([rest] if rest else [])
    values = {name: _given(*rests) if rests else {"not": {"type": "null"}} for name, rests in inner.items()}
    return {"required": list(values), "properties": values}


# The size limit of APNs payloads, checked before a push is accepted.


def check_payload(message: Message, names: Mapping[str, str]) -> None:
    """Check that APNs accepts the payload's size. InputError: too large; the text names its longest field.

    `names`: the request's names of content, extra, sound and category.
    """
    size = max_size_bytes(message)
    if size > MAX_PAYLOAD_BYTES:
        texts = {"content": message.content, "extra": message.extra}
        if message.is_notif:
            texts |= {"sound": message.ios.sound, "category": message.ios.category}
        longest = max(texts, key=lambda name: len(texts[name].encode()))
        raise InputError(Code.PAYLOAD_TOO_LARGE, at=names[longest], size=size, most=MAX_PAYLOAD_BYTES)
