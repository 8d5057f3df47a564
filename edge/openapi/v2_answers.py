"""Answers of the v2 door's calls besides pushing."""

from typing import Annotated, Any, Literal

import msgspec

from edge.openapi import kinds
from edge.openapi.schema import one_of

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Unset = msgspec.UnsetType
_UNSET = msgspec.UNSET


class Done(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str


class TaskRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A timed task; times are `YYYY-MM-DD HH:MM:SS` in the service's time zone."""

    task_key: str = msgspec.field(name="TaskKey")
    created: str = msgspec.field(name="CreateTime")
    send: str = msgspec.field(name="SendTime")
    content: str = msgspec.field(name="MsgContent")
    status: Literal["unsend", "send", "cancel"] = msgspec.field(name="Status")


class TaskPage(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    data: list[TaskRecord]
    pagecount: _Count


class TaskDetail(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    data: Annotated[list[TaskRecord], msgspec.Meta(min_length=1, max_length=1)]


class TokenOutcome(msgspec.Struct, forbid_unknown_fields=True):
    """What became of one device's tags."""

    token: str
    result: Literal[0, 400, 401]
    desc: str


class TokenTags(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    result: Literal[0, 401]
    desc: str
    infolist: list[str]


class TagsChanged(msgspec.Struct, forbid_unknown_fields=True):
    """The answer for one app; for a list of apps, what stands under each appkey."""

    result: Literal[0]
    desc: str
    detailsinfo: list[TokenOutcome]


class TagsFound(msgspec.Struct, forbid_unknown_fields=True):
    """The answer for one app; for a list of apps, what stands under each appkey."""

    result: Literal[0]
    desc: str
    detailsinfo: list[TokenTags]


class InvalidTokens(msgspec.Struct, forbid_unknown_fields=True):
    result: Literal[0]
    desc: str
    data: dict[str, list[str]]


class ConnectionFigures(msgspec.Struct, forbid_unknown_fields=True):
    """Long connections of a day, or of a value of the category."""

    avg_count: Annotated[float, msgspec.Meta(ge=0)] = msgspec.field(name="avgCount")
    max_count: _Count = msgspec.field(name="maxCount")
    min_count: _Count = msgspec.field(name="minCount")
    date: str | _Unset = _UNSET
    info: str | _Unset = _UNSET


class BroadcastFigures(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a broadcast or multicast."""

    msgid: kinds.MessageId
    send_time: str = msgspec.field(name="sendTime")
    target: _Count
    sent: _Count
    received: _Count
    shown: _Count
    clicked: _Count
    failed: _Count
    expired: _Count
    cancelled: _Count
    info: str | _Unset = _UNSET


class UserFigures(msgspec.Struct, forbid_unknown_fields=True):
    """Registered users of a day, or of a value of the category."""

    count: _Count
    date: str | _Unset = _UNSET
    info: str | _Unset = _UNSET


class LoginFigures(msgspec.Struct, forbid_unknown_fields=True):
    """Users who logged in within so many days up to the date."""

    date: str
    days_1: _Count = msgspec.field(name="1")
    days_2: _Count = msgspec.field(name="2")
    days_3: _Count = msgspec.field(name="3")
    days_4: _Count = msgspec.field(name="4")
    days_5: _Count = msgspec.field(name="5")
    days_6: _Count = msgspec.field(name="6")
    days_7: _Count = msgspec.field(name="7")
    days_30: _Count = msgspec.field(name="30")
    info: str | _Unset = _UNSET


FIGURES = (ConnectionFigures, BroadcastFigures, UserFigures, LoginFigures)


class Statistics(msgspec.Struct, forbid_unknown_fields=True):
    """The kind of rows follows from `type`."""

    result: Literal[0]
    desc: str
    data: list[one_of(*FIGURES)]  # type: ignore[valid-type]


def by_app(part: type[msgspec.Struct]) -> Any:
    """The answer for a list of apps: that for one under each appkey."""
    schema = {
        "type": "object",
        "properties": {"result": {"const": 0}, "desc": {"type": "string"}},
        "required": ["result", "desc"],
        "additionalProperties": {"$ref": f"#/components/schemas/{part.__name__}"},
    }
    return Annotated[Any, msgspec.Meta(extra_json_schema=schema)]
