"""What bodies of the legacy iOS interface hold. Fields that are not named here are ignored; null is absent."""

from typing import Annotated, Any

import msgspec

from edge.core.parsing.digits import Digits, Flag, Period

Name = Annotated[str, msgspec.Meta(min_length=1)]
Names = Annotated[list[Name], msgspec.Meta(min_length=1)]
Badge = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
DeviceToken = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Dictionary = Annotated[dict[str, Any], msgspec.Meta(min_length=1)]


class PushBody(msgspec.Struct, frozen=True):
    """POST /push. `extra`, `transparent` and `content-available` have no effect when `token` is a single one."""

    message: Name | Dictionary
    token: Name | Names | None = None
    period: Period | Digits | None = None
    badge: Badge | Digits | None = None
    extra: str | None = None
    transparent: Flag | Digits | None = None
    content_available: Flag | Digits | None = msgspec.field(name="content-available", default=None)
    category: str | None = None


class RegisterBody(msgspec.Struct, frozen=True):
    """POST and DELETE /register."""

    token: DeviceToken
