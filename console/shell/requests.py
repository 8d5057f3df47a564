"""Requests of calls, with their limits: `…Params` are the names in the path and the query, `…Body` is the JSON body."""

from typing import Annotated, Any, Literal

import msgspec

from console.audit.actions import SUBJECTS
from console.send.values import FIELDS
from console.shell.calls import NoParams
from console.shell.numbers import MAX_MSGID
from console.statistics.actions import CATEGORIES, KINDS
from edge.core.parsing.fields import described, name_of
from services.domain.addresses import CHANNELS, RouteName
from services.domain.channel_credentials.fields import MAX_VALUE_LENGTH
from services.domain.channel_credentials.forms import FORMS
from services.domain.limits import MAX_PERIOD_S, MIN_PERIOD_S
from services.domain.push_endpoints import MAX_ENDPOINT_LENGTH
from services.domain.webhooks import KINDS as EVENT_KINDS

Appkey = Annotated[str, name_of("appkey"), described("The app.")]
TeamId = Annotated[str, name_of("team-id"), described("The team.")]
TaskKey = Annotated[str, name_of("task-key"), described("The task.")]
DraftId = Annotated[str, name_of("draft-id"), described("The draft.")]
Msgid = Annotated[int, msgspec.Meta(ge=1, le=MAX_MSGID), described("The message id.")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=400), described("A token, or an alias.")]
Token = Annotated[str, msgspec.Meta(max_length=400), described("Explain the push on the device with this token too.")]
Cursor = Annotated[
    str, msgspec.Meta(max_length=400), described("The `next` of the page before; empty: the first page.")
]
Limit = Annotated[int, msgspec.Meta(ge=1, le=500), described("Entries of a page at most.")]
Behind = Annotated[
    bool, described("Answer also without the newest records of the log; `records_behind` in the answer counts them.")
]
Day = Annotated[
    str,
    msgspec.Meta(pattern="^([0-9]{4}-[0-9]{2}-[0-9]{2})?$"),
    described("A day of the service's time zone, YYYY-MM-DD, included; empty: chosen by the service."),
]
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=2**53), described("Milliseconds since 1970 UTC.")]
STATES = ("pending", "sent", "handed_over", "received", "shown", "clicked", "failed", "dropped", "cancelled", "expired")
Reason = Annotated[str, msgspec.Meta(max_length=200), described("Why, for the audit and the page of the app.")]


class AppParams(NoParams, frozen=True, kw_only=True):
    appkey: Appkey


class PushParams(AppParams, frozen=True, kw_only=True):
    msgid: Msgid


class PushDetailParams(PushParams, frozen=True, kw_only=True):
    token: Token = ""
    allow_behind: Behind = True


class SpeedParams(PushParams, frozen=True, kw_only=True):
    within_ms: Annotated[
        int,
        msgspec.Meta(ge=0, le=366 * 86_400_000),
        described("What the steps cover, milliseconds; 0: a length that fits."),
    ] = 0
    allow_behind: Behind = True


Category = Annotated[Literal[CATEGORIES], described("The attribute of devices.")]  # type: ignore[valid-type]


class StatesParams(PushParams, frozen=True, kw_only=True):
    category: Category
    allow_behind: Behind = True


class PushDevicesParams(PushParams, frozen=True, kw_only=True):
    state: Annotated[
        Literal[STATES],  # type: ignore[valid-type]
        described("As in `states` of the push."),
    ]
    reason: Annotated[
        str,
        msgspec.Meta(max_length=1000),
        described("As in `states` of the push; empty: the devices without a reason."),
    ] = ""
    category: Annotated[
        Literal[("", *CATEGORIES)],  # type: ignore[valid-type]
        described("Only the devices that had the value `info` of this attribute when the push started."),
    ] = ""
    info: Annotated[str, msgspec.Meta(max_length=400), described("With `category`; empty: reported none.")] = ""
    cursor: Cursor = ""
    limit: Limit = 100
    allow_behind: Behind = True


class PushByIdParams(NoParams, frozen=True, kw_only=True):
    msgid: Msgid
    token: Token = ""
    allow_behind: Behind = True


class PageParams(NoParams, frozen=True, kw_only=True):
    cursor: Cursor = ""
    limit: Limit = 100


class PushListParams(PageParams, frozen=True, kw_only=True):
    appkey: Annotated[str, described("Only pushes of this app.")] = ""
    from_ms: TimeMs = 0
    to_ms: TimeMs = 2**53
    words: Annotated[
        str,
        msgspec.Meta(max_length=200),
        described("Only pushes with this in their title or listed text."),
    ] = ""


class SendParams(AppParams, frozen=True, kw_only=True):
    at_most: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None,
        described("Send nothing, and answer 409, if the push would go to more devices than this."),
    ] = None
    replaces: Annotated[
        str,
        msgspec.Meta(max_length=64),
        described(
            "The key of a timed task of the app that waits, which the push replaces: it is cancelled, or the answer is"
            " 409 if it was sent or has ended, and nothing is sent then."
        ),
    ] = ""


class DraftListParams(PageParams, frozen=True, kw_only=True):
    waiting: Annotated[bool, described("Only drafts that wait for an approval.")] = False
    words: Annotated[
        str,
        msgspec.Meta(max_length=200),
        described("Only drafts with this in their title or listed text."),
    ] = ""


class DraftParams(NoParams, frozen=True, kw_only=True):
    team_id: TeamId
    draft_id: DraftId


class TaskListParams(PageParams, frozen=True, kw_only=True):
    appkey: Annotated[str, described("Only tasks of this app.")] = ""


class TaskParams(AppParams, frozen=True, kw_only=True):
    task_key: TaskKey


class DeviceSearchParams(AppParams, frozen=True, kw_only=True):
    name: Name


class DeviceParams(AppParams, frozen=True, kw_only=True):
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=400), described("The token of the device.")]
    allow_behind: Behind = True


class PersonParams(AppParams, frozen=True, kw_only=True):
    name: Name
    cursor: Annotated[
        str, msgspec.Meta(max_length=500), described("The `next` of the page before; empty: the first page.")
    ] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200), described("Entries of a page, about.")] = 100


class ErasureParams(AppParams, frozen=True, kw_only=True):
    alias: Annotated[
        str, msgspec.Meta(max_length=400), described("The person: the devices that have this alias now.")
    ] = ""
    token: Annotated[
        str,
        msgspec.Meta(max_length=400),
        described("The person: the device with this token, and its alias if no other device has it."),
    ] = ""
    dry_run: Annotated[bool, described("Erase nothing: only say how many devices would be erased.")] = False


class ErasureListParams(AppParams, frozen=True, kw_only=True):
    cursor: Cursor = ""
    limit: Limit = 100


class AddressListParams(AppParams, frozen=True, kw_only=True):
    dead: Annotated[bool, described("List dead addresses: those that a vendor refused for good.")] = False
    channel: Annotated[
        Literal[("", *CHANNELS)],  # type: ignore[valid-type]
        described("Only those of this channel; empty: of all."),
    ] = ""
    cursor: Cursor = ""
    limit: Limit = 100


class WhyParams(AppParams, frozen=True, kw_only=True):
    name: Name
    msgid: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=MAX_MSGID)] | None,
        described("The push; absent: the latest broadcast or multicast of the app."),
    ] = None


class StatisticsParams(AppParams, frozen=True, kw_only=True):
    kind: Annotated[Literal[tuple(KINDS)], described("The type.")] = "connections"  # type: ignore[valid-type]
    category: Annotated[
        Literal[("", *CATEGORIES)],  # type: ignore[valid-type]
        described("Divide the numbers by this attribute of devices."),
    ] = ""
    info: Annotated[str, msgspec.Meta(max_length=400), described("Only this value of the category; empty: all.")] = ""
    users: Annotated[Literal["new", "cumulative"], described("With the type users.")] = "new"
    push: Annotated[
        str, msgspec.Meta(pattern="^[0-9]{0,16}$"), described("Only the push with this message id; type broadcasts.")
    ] = ""
    first: Day = ""
    last: Day = ""


class ActionListParams(PageParams, frozen=True, kw_only=True):
    team: Annotated[str, described("Only what concerns this team.")] = ""
    app: Annotated[str, described("Only what concerns this app.")] = ""
    who: Annotated[str, msgspec.Meta(max_length=400), described("A log-in name, user/ID or token/ID.")] = ""
    subject: Annotated[Literal[("", *SUBJECTS)], described("The first word of the action.")] = ""  # type: ignore[valid-type]
    first: Day = ""
    last: Day = ""


class TimelineParams(PageParams, frozen=True, kw_only=True):
    appkey: Appkey
    from_ms: TimeMs
    to_ms: TimeMs
    allow_behind: Behind = True


class AudienceValuesParams(AppParams, frozen=True, kw_only=True):
    field: Annotated[
        Literal[tuple(FIELDS)],  # type: ignore[valid-type]
        described("A field of devices; `tag` is numeric tags, `stag` string tags."),
    ]
    words: Annotated[
        str,
        msgspec.Meta(max_length=200),
        described("Only values that have all of these words, in upper or lower case."),
    ] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=500), described("Values at most.")] = 100


AudienceName = Annotated[str, msgspec.Meta(min_length=1, max_length=64), described("The name of the audience.")]


class SavedAudienceParams(AppParams, frozen=True, kw_only=True):
    name: AudienceName


class SavedAudienceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An audience to save."""

    name: AudienceName
    send_to: Annotated[
        dict[str, Any],
        described("`sendTo` of a push with this audience, without `appkey`; its `userScope` is 6, 7 or 8."),
    ]
    must_be_new: Annotated[bool, described("Answer 409 if there is one with the name; false: replace it.")] = False


class RefusalListParams(AppParams, frozen=True, kw_only=True):
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000), described("Entries at most.")] = 100
    allow_behind: Behind = True


class TeamParams(NoParams, frozen=True, kw_only=True):
    team_id: TeamId


class RotationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a secret key is replaced."""

    keep_old_s: Annotated[
        int,
        msgspec.Meta(ge=0, le=90 * 86_400),
        described("How long the present secret key goes on signing beside the new one, seconds.", 86_400),
    ] = 86_400


class ApnsKeyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes about the key for Apple. The first key of an app needs `pem`, `key_id` and `team_id`."""

    pem: Annotated[
        Annotated[str, msgspec.Meta(max_length=16_384)] | None, described("The content of the .p8 file.")
    ] = None
    key_id: Annotated[
        Annotated[str, msgspec.Meta(max_length=10)] | None, described("The key's id, 10 letters and digits.")
    ] = None
    team_id: Annotated[
        Annotated[str, msgspec.Meta(max_length=10)] | None, described("The Apple team's id, 10 letters and digits.")
    ] = None
    topic: Annotated[
        Annotated[str, msgspec.Meta(max_length=128)] | None, described("The bundle id; the app's package at first.")
    ] = None
    environment: Annotated[
        Literal["production", "sandbox", "both"] | None, described("Apple's service; production at first.")
    ] = None
    remove: Annotated[bool, described("Remove the key; excludes the other fields.")] = False


class IdentityBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes about the proofs of aliases and identity tags; fields that are absent or null stay."""

    mode: Annotated[Literal["off", "accept", "require"] | None, described("What a device without a proof may do.")] = (
        None
    )
    keys: Annotated[
        Annotated[list[Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=2)] | None,
        described("Public keys of the app's server in PEM form, which replace the present ones; none removes them."),
    ] = None
    tags: Annotated[
        Annotated[list[Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=20)] | None,
        described("Tags that address one person, such as user:* or 30000..32767; none removes them."),
    ] = None


_ChannelValue = Annotated[str, msgspec.Meta(max_length=MAX_VALUE_LENGTH)]
_FIELDS = "; ".join(
    f"{form.name}: " + ", ".join(f"{field.name} ({field.kind.value})" for field in form.fields)
    for form in FORMS.values()
)


class SettingsBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of an app to change; those that are absent or null stay."""

    name: Annotated[Annotated[str, msgspec.Meta(max_length=64)] | None, described("The name for people.")] = None
    ack_info: Annotated[bool | None, described("Whether its app servers may read acknowledgements.")] = None
    default_period_s: Annotated[
        Annotated[int, msgspec.Meta(ge=MIN_PERIOD_S, le=MAX_PERIOD_S)] | None,
        described("Time to live of pushes without one, seconds."),
    ] = None
    allow_from: Annotated[
        Annotated[list[str], msgspec.Meta(max_length=256)] | None,
        described("Networks from which requests of app servers are accepted; none: from everywhere."),
    ] = None
    replay_safe_required: Annotated[
        bool | None, described("Whether requests without a replay-safe signature are refused.")
    ] = None
    apns: Annotated[ApnsKeyBody | None, described("iOS: the key for Apple.")] = None
    channels: Annotated[
        Annotated[
            dict[str, Annotated[dict[str, _ChannelValue], msgspec.Meta(max_length=16)] | None],
            msgspec.Meta(max_length=16),
        ]
        | None,
        described(
            "Android: credentials of channels by name; null removes those of a channel, and absent fields stay."
            f" {_FIELDS}."
        ),
    ] = None
    web_origins: Annotated[
        Annotated[list[Annotated[str, msgspec.Meta(max_length=300)]], msgspec.Meta(max_length=32)] | None,
        described("Origins of web pages that may use the device interface, such as https://example.org."),
    ] = None
    channel_route: Annotated[
        RouteName | None,
        described("Android: the route of pushes that name none in option.channel."),
    ] = None
    apns_reports: Annotated[
        bool | None, described("iOS: whether pushes carry their message id, so that devices acknowledge and report.")
    ] = None
    identity: Annotated[IdentityBody | None, described("The proofs of aliases and identity tags.")] = None
    drop_old_secret: Annotated[bool, described("End the validity of the former secret key at once.")] = False


WebhookId = Annotated[str, name_of("webhook-id"), described("The webhook.")]


class WebhookParams(AppParams, frozen=True, kw_only=True):
    webhook_id: WebhookId


class TeamWebhookParams(TeamParams, frozen=True, kw_only=True):
    webhook_id: WebhookId


_WebhookUrl = Annotated[str, msgspec.Meta(max_length=MAX_ENDPOINT_LENGTH)]
WebhookFormName = Literal["standard", "slack", "dingtalk", "feishu", "wecom"]
_URL_TEXT = "Where its requests go: https."
_KINDS_TEXT = "The types of its events; none: all."
_MSGIDS_TEXT = "Of events about pushes, only those about these messages; none: all."
_LABELS_TEXT = "Of events about pushes, only those about pushes with these labels, and those about `msgids`; none: all."
_FORM_TEXT = "standard: signed JSON; the others: a text message for a group of this chat service, not signed."
_Labels = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]], msgspec.Meta(max_length=20)]
_Msgids = Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=MAX_MSGID)]], msgspec.Meta(max_length=100)]


class WebhookBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new webhook."""

    url: Annotated[_WebhookUrl, described(_URL_TEXT)]
    kinds: Annotated[
        Annotated[list[Literal[tuple(EVENT_KINDS)]], msgspec.Meta(max_length=100)] | None,  # type: ignore[valid-type]
        described(_KINDS_TEXT),
    ] = None
    msgids: Annotated[_Msgids | None, described(_MSGIDS_TEXT)] = None
    labels: Annotated[_Labels | None, described(_LABELS_TEXT)] = None
    form: Annotated[WebhookFormName | None, described(_FORM_TEXT)] = None


class WebhookChangeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What changes about a webhook; fields that are absent or null stay."""

    url: Annotated[_WebhookUrl | None, described(_URL_TEXT)] = None
    kinds: Annotated[
        Annotated[list[Literal[tuple(EVENT_KINDS)]], msgspec.Meta(max_length=100)] | None,  # type: ignore[valid-type]
        described(_KINDS_TEXT),
    ] = None
    msgids: Annotated[_Msgids | None, described(_MSGIDS_TEXT)] = None
    labels: Annotated[_Labels | None, described(_LABELS_TEXT)] = None
    form: Annotated[WebhookFormName | None, described(_FORM_TEXT)] = None
    disabled: Annotated[bool | None, described("true: switched off; its events wait.")] = None


class ResendBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The time whose events are sent again: at most 31 days, not in the future."""

    from_ms: TimeMs
    until_ms: TimeMs


class ReasonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why an app is paused or resumed."""

    reason: Reason = ""
