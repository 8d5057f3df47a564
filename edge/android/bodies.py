"""What bodies of the legacy Android interface hold. Fields that are not named here are ignored; null is absent."""

from typing import Annotated, Literal

import msgspec

from edge.core.parsing.digits import Digits, Flag, Period
from edge.core.parsing.typed import ABSENT

LIST_LIMIT = 1000
TAG_LIMIT = 32767
MAX_ACKS = 1000

Name = Annotated[str, msgspec.Meta(min_length=1)]
Names = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=LIST_LIMIT)]
Tag = Annotated[int, msgspec.Meta(ge=-TAG_LIMIT, le=TAG_LIMIT)]
Tags = Annotated[list[Tag | Digits], msgspec.Meta(min_length=1)]
TagGroups = Annotated[list[Tags], msgspec.Meta(min_length=1)]
Speed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
MessageId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AckCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_ACKS)]


class PushBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /push. `title` and what follows belong to notifications, but for `extra`."""

    message: Name
    is_notif: Flag | Digits | None = None
    period: Period | Digits | None = None
    qps: Speed | Digits | None = None
    filter: Tags | None = None
    filter_v2: TagGroups | None = None
    optfilter: msgspec.Raw = ABSENT
    token: Name | Names | None = None
    alias: Name | Names | None = None
    alias_send_all: Flag | Digits | None = None
    extra: str | None = None
    title: str | None = None
    sound: bool | None = None
    vibrate: bool | None = None
    unremovable: bool | None = None
    click_action: Literal["open_app", "open_url", "intent"] | None = None
    open_app: bool | None = None
    open_url: str | None = None
    intent: str | None = None
    is_upgrade_download: Flag | Digits | None = None
    download_url: str | None = None


class TimedBody(PushBody, frozen=True, kw_only=True):
    """POST /timed_msg."""

    send_time: str


class CancelTimedBody(msgspec.Struct, frozen=True):
    """DELETE /timed_msg."""

    task_key: Name


class CancelBody(msgspec.Struct, frozen=True):
    """DELETE /push."""

    msgid: MessageId | Digits


class AckBody(msgspec.Struct, frozen=True):
    """POST /getAckInfo. A number as `pos` is what its digits say."""

    pos: Name | int
    reqno: AckCount | Digits | None = None
