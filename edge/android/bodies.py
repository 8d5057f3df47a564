"""Bodies of the legacy Android interface, with their limits and descriptions.

Fields that are not named here are ignored, unless they look like a misspelt target; null counts as absent, except that
a target must not be null.
"""

from typing import Annotated, Literal

import msgspec

from edge.core.parsing.fields import (
    Aliases,
    AndroidAppkey,
    AnyTokens,
    Flag,
    Minute,
    Name,
    NotEmpty,
    Period,
    Shown,
    Sign,
    Token,
    at_most_bytes,
    described,
    name_of,
    sign_of,
)
from edge.core.parsing.targets import PositiveOptions
from edge.core.parsing.typed import ABSENT
from services.domain.limits import MAX_ENTRIES, MAX_GROUP_TAGS, MAX_GROUPS

TAG_LIMIT = 32767
MAX_ACKS = 1000
MESSAGE_BYTES = 4096
TITLE_BYTES = 128
OPTFILTER_BYTES = 2000

Tag = Annotated[int, msgspec.Meta(ge=-TAG_LIMIT, le=TAG_LIMIT)]
Tags = Annotated[list[Tag], msgspec.Meta(min_length=1, max_length=MAX_GROUP_TAGS)]
TagGroups = Annotated[list[Tags], msgspec.Meta(min_length=1, max_length=MAX_GROUPS)]
Speed = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
MessageId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AckCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_ACKS)]


class AndroidFilter(PositiveOptions, frozen=True, forbid_unknown_fields=True):
    pass


class AndroidSigned(msgspec.Struct, frozen=True):
    """The fields of every request that authentication reads."""

    appkey: Annotated[AndroidAppkey, described("The app. A number is accepted too.")]
    sign: Annotated[Sign, sign_of("the app's secret")]


class AndroidPushBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /push: the fields of every push."""

    message: Annotated[str, at_most_bytes(MESSAGE_BYTES, 1), described("The content.", "Your order is on its way")]
    is_notif: Annotated[
        Flag | None, described("1: a notification; 0 (default): passed to the app without showing it.", 1)
    ] = None
    period: Annotated[
        Period | None,
        described("Time to live for devices that are offline, seconds. Default: the app's own setting.", 86400),
    ] = None
    qps: Annotated[Speed | None, described("Messages per second, for broadcasts; 0 (default): no limit.", 500)] = None
    filter: Annotated[Tags | None, described("Tags that a device must all have. Deprecated.")] = None
    filter_v2: Annotated[
        TagGroups | None,
        described(
            "Groups of tags: a device must have all tags of at least one group. Not together with filter."
            f" At most {MAX_ENTRIES} tags and values of optfilter in all."
        ),
    ] = None
    optfilter: Annotated[
        msgspec.Raw,
        Shown(Annotated[AndroidFilter | None, msgspec.Meta(extra_json_schema={"x-maxBytes": OPTFILTER_BYTES})]),
        described(f"Device attributes, ANDed with the tags; at most {OPTFILTER_BYTES} bytes as compact JSON."),
    ] = ABSENT
    token: Annotated[
        Token | AnyTokens | None,
        described("A token or a list of tokens. A repeated token is sent to again. Not together with a filter."),
    ] = None
    alias: Annotated[
        Name | Aliases | None,
        described("An alias or a list of aliases, each sent to once. Not together with a filter."),
    ] = None
    alias_send_all: Annotated[
        Flag | None,
        described("1: to all devices of each alias; 0 (default): to the most recently active one."),
    ] = None
    extra: Annotated[str | None, described("Free text that is sent along.", "campaign-7")] = None


class Notification(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a push that are read where `is_notif` is 1, and otherwise ignored, whatever they hold."""

    title: Annotated[
        Annotated[str, at_most_bytes(TITLE_BYTES)] | None,
        described("The notification's title. Default: the app's name.", "News"),
    ] = None
    sound: Annotated[bool | None, described("Play a sound. Default: false.", True)] = None
    vibrate: Annotated[bool | None, described("Vibrate. Default: false.", True)] = None
    unremovable: Annotated[
        bool | None, described("true: the user cannot remove the notification. Default: false.", False)
    ] = None
    click_action: Annotated[
        Literal["open_app", "open_url", "intent"] | None, described("The action of a click.", "open_url")
    ] = None
    open_app: Annotated[bool | None, described("Required with click_action open_app.")] = None
    open_url: Annotated[
        str | None, described("The URL; required with click_action open_url.", "https://example.org/news")
    ] = None
    intent: Annotated[str | None, described("The intent's URI; required with click_action intent.")] = None
    is_upgrade_download: Annotated[Flag | None, described("1: a click opens download_url.")] = None
    download_url: Annotated[str | None, described("Required with is_upgrade_download 1.")] = None


class TimedPushBody(AndroidPushBody, frozen=True, kw_only=True):
    """POST /timed_msg."""

    send_time: Annotated[
        str,
        Shown(Minute),
        described("A minute in the service's time zone, at least 10 minutes in the future and within 3 days."),
    ]


class CancelTimedBody(msgspec.Struct, frozen=True):
    """DELETE /timed_msg."""

    task_key: Annotated[str, name_of("task-key"), described("The task key from the answer that created the task.")]


class CancelBody(msgspec.Struct, frozen=True):
    """DELETE /push."""

    msgid: Annotated[MessageId, described("The message id from the answer that sent the broadcast.")]


class AcksBody(msgspec.Struct, frozen=True):
    """POST /getAckInfo. A number as `pos` stands for its digits."""

    pos: Annotated[NotEmpty | int, described("The position to continue at: 0, then `pos` of the last answer.")]
    reqno: Annotated[AckCount | None, described("Maximum number of records. Default: 1000.")] = None
