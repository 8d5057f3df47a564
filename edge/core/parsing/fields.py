"""Types of fields that several interfaces share, with their limits.

Documents publish them: `format` says what kind of thing a text names (the names are this project's own), `x-maxBytes`
is a limit in UTF-8 bytes, which code checks.
"""

from typing import Annotated, Any, Literal

import msgspec

from services.domain.apns.payload import MAX_PAYLOAD_BYTES
from services.domain.ios_tokens import PATTERN
from services.domain.limits.time_to_live import MAX_PERIOD_S, MIN_PERIOD_S

NAME_BYTES = 40
"""Limit of an alias and of a string tag, UTF-8 bytes."""

LIST_LIMIT = 1000
"""Entries of a list of tokens or aliases."""


APNS_LIMIT = (
    "Content, extra and style together make the JSON that an iOS device is sent;"
    f" more than {MAX_PAYLOAD_BYTES} bytes of it are refused."
)


def name_of(kind: str) -> msgspec.Meta:
    """A text that is not empty and names something of this kind."""
    return msgspec.Meta(min_length=1, extra_json_schema={"format": kind})


def described(text: str, example: Any = None) -> msgspec.Meta:
    """Describe a field in the documents; an example makes it a part of the examples of its request."""
    return msgspec.Meta(description=text, examples=None if example is None else [example])


def at_most_bytes(limit: int, minimum: int = 0) -> msgspec.Meta:
    """Publishes a limit in UTF-8 bytes; the request's code checks it. `minimum`: characters at least."""
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
