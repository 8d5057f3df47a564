"""Which values of the event log are personal: one table of the fields of every stored message.

A new field of a stored message belongs here: a test fails for one that is missing. docs/privacy.md lists the personal
fields, and a test compares it with this table.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.domain.topics import TOPICS


class Sort(Enum):
    """The kind of a stored value: its meaning, and whom it is about."""

    DEVICE_ID = "token of a device"
    ALIAS = "alias"
    ADDRESS = "address on a channel, with its keys"
    DEVICE = "what a device reports about itself"
    COUNTED = "what a device reports, and statistics count by"
    TAG = "tags of a device"
    CONTENT = "content of a push; personal where the push lists devices"
    REQUEST = "text of a request or of its answer, which may list tokens and aliases"
    NETWORK = "network address of a caller"
    ACCOUNT = "user of the console or operator"
    APP = "settings and texts of an app or a team"
    NEITHER = "positions, ids, numbers, times and states"


PERSONAL = (
    *(Sort.DEVICE_ID, Sort.ALIAS, Sort.ADDRESS, Sort.DEVICE, Sort.COUNTED, Sort.TAG, Sort.CONTENT, Sort.REQUEST),
    *(Sort.NETWORK, Sort.ACCOUNT),
)
"""The sorts of values that are about a person."""


FIELDS: Mapping[str, Mapping[Sort, str]] = {
    "accounts.v1.AdmittedApp": {Sort.NEITHER: "appkey team_id devices"},
    "accounts.v1.AppChange": {Sort.NEITHER: "appkey team_id"},
    "accounts.v1.AppGiven": {Sort.NEITHER: "appkey team_id version"},
    "accounts.v1.ApprovalNeed": {
        Sort.NEITHER: "rule appkey devices earlier_devices app_devices share_percent above_devices"
    },
    "accounts.v1.ApprovalRules": {Sort.NEITHER: "broadcasts above_devices share_percent erasures"},
    "accounts.v1.ChangeDecided": {Sort.ACCOUNT: "settings", Sort.NEITHER: "change_id team_id confirmed"},
    "accounts.v1.DataRead": {
        Sort.ALIAS: "name",
        Sort.DEVICE_ID: "tokens",
        Sort.NEITHER: "appkey msgid exported_devices",
    },
    "accounts.v1.Draft": {
        Sort.REQUEST: "body_json",
        Sort.ACCOUNT: "authors changed_by",
        Sort.NEITHER: (
            "draft_id team_id is_broadcast estimated_devices created_ms expires_ms digest version "
            "changed_ms held_task_key"
        ),
    },
    "accounts.v1.DraftApproved": {Sort.NEITHER: "digest"},
    "accounts.v1.DraftExpired": {Sort.NEITHER: "expires_ms"},
    "accounts.v1.DraftFact": {Sort.NEITHER: "draft_id"},
    "accounts.v1.DraftRejected": {Sort.APP: "reason"},
    "accounts.v1.ErasureChange": {
        Sort.ALIAS: "alias",
        Sort.DEVICE_ID: "token",
        Sort.NEITHER: "appkey erasure_id devices",
    },
    "accounts.v1.ErasureSent": {Sort.NEITHER: "change_id nobody_found"},
    "accounts.v1.LinkCreated": {Sort.ACCOUNT: "user_id", Sort.NEITHER: "link_id purpose token_hash expires_ms"},
    "accounts.v1.LogInFailed": {Sort.ACCOUNT: "user_id", Sort.NEITHER: "reason"},
    "accounts.v1.LoggedIn": {
        Sort.ACCOUNT: "user_id recovery_code_hash",
        Sort.NEITHER: "method totp_step session_epoch",
    },
    "accounts.v1.Member": {Sort.ACCOUNT: "user_id", Sort.NEITHER: "role"},
    "accounts.v1.MemberChange": {Sort.ACCOUNT: "user_id", Sort.NEITHER: "role"},
    "accounts.v1.PendingChange": {
        Sort.ACCOUNT: "proposed_by administrator new_link settings",
        Sort.NEITHER: "change_id team_id created_ms expires_ms",
    },
    "accounts.v1.PushAdmitted": {Sort.ACCOUNT: "sender", Sort.NEITHER: "push_key task_key"},
    "accounts.v1.SessionEnded": {Sort.ACCOUNT: "user_id", Sort.NEITHER: "session_hash until_ms"},
    "accounts.v1.Subject": {Sort.ACCOUNT: "issuer subject"},
    "accounts.v1.Team": {Sort.APP: "name", Sort.NEITHER: "team_id created_ms version"},
    "accounts.v1.TeamChanged": {Sort.DEVICE_ID: "settings", Sort.NEITHER: "action"},
    "accounts.v1.TeamDevice": {Sort.DEVICE_ID: "token", Sort.ACCOUNT: "name", Sort.NEITHER: "appkey"},
    "accounts.v1.Token": {
        Sort.APP: "name",
        Sort.ACCOUNT: "created_by",
        Sort.NEITHER: "token_id team_id role token_hash created_ms expires_ms",
    },
    "accounts.v1.TokenRevoked": {Sort.NEITHER: "token_id team_id"},
    "accounts.v1.TokenUsed": {Sort.NEITHER: "token_id"},
    "accounts.v1.User": {
        Sort.ACCOUNT: (
            "user_id login display_name password_hash sealed_totp_secret recovery_code_hashes locale zone mail_address"
        ),
        Sort.NEITHER: "disabled administrator session_epoch created_ms version roles_by_groups",
    },
    "accounts.v1.UserChanged": {Sort.ACCOUNT: "settings", Sort.NEITHER: "action used_link_id"},
    "delivery.v1.AppOutcomes": {
        Sort.NEITHER: (
            "appkey msgids numbers kinds times_ms reason_indexes reasons badges channels simulated carry_msgids"
        ),
    },
    "delivery.v1.PushFact": {Sort.NEITHER: "msgid appkey partition"},
    "delivery.v1.PushFailed": {Sort.APP: "reason"},
    "delivery.v1.PushStarted": {Sort.NEITHER: "audience count expires_ms attributes_until"},
    "gateway.v1.AttributeChange": {Sort.NEITHER: "appkey number revision time_ms"},
    "gateway.v1.ConnectionCounts": {Sort.NEITHER: "gateway minute_ms"},
    "gateway.v1.ConnectionCounts.ConnectionsByAppEntry": {Sort.NEITHER: "key value"},
    "gateway.v1.SessionEvent": {
        Sort.DEVICE_ID: "token",
        Sort.NEITHER: "appkey number kind time_ms connection reason",
    },
    "push.v1.ActivityClause": {Sort.NEITHER: "days comparison opens"},
    "push.v1.Aliases": {Sort.ALIAS: "aliases", Sort.NEITHER: "all_devices"},
    "push.v1.AndroidStyle": {
        Sort.CONTENT: "title click_param_json",
        Sort.NEITHER: "sound vibrate removable click_action badge",
    },
    "push.v1.AttributeClause": {Sort.APP: "values", Sort.NEITHER: "attribute negated"},
    "push.v1.BrandModel": {Sort.APP: "brand model"},
    "push.v1.CancelPush": {Sort.NEITHER: "msgid appkey"},
    "push.v1.ChannelOptions": {Sort.NEITHER: "route importance category"},
    "push.v1.Devices": {Sort.ALIAS: "aliases", Sort.NEITHER: "partitions numbers id_offsets alias_indexes"},
    "push.v1.IosStyle": {
        Sort.CONTENT: "title sound category sealed_possession_code",
        Sort.NEITHER: "badge content_available content_is_json carries_msgid",
    },
    "push.v1.Message": {Sort.CONTENT: "content extra", Sort.NEITHER: "is_notif"},
    "push.v1.ModelClause": {Sort.APP: "brands", Sort.NEITHER: "negated"},
    "push.v1.SendPush": {
        Sort.REQUEST: "request_json",
        Sort.APP: "label",
        Sort.NEITHER: "msgid id_count appkey platform kind period_s qps task_key",
    },
    "push.v1.StagGroup": {Sort.APP: "stags"},
    "push.v1.TagGroup": {Sort.APP: "tags"},
    "push.v1.Tokens": {Sort.DEVICE_ID: "tokens"},
    "registry.v1.AddStags": {Sort.TAG: "stags proven"},
    "registry.v1.AddTags": {Sort.TAG: "tags proven"},
    "registry.v1.Address": {Sort.ADDRESS: "address p256dh auth", Sort.NEITHER: "channel since_ms"},
    "registry.v1.AddressLost": {
        Sort.ADDRESS: "hash",
        Sort.DEVICE_ID: "to_token",
        Sort.NEITHER: "channel lost_ms dead_reason",
    },
    "registry.v1.AliasLost": {
        Sort.ALIAS: "alias",
        Sort.DEVICE_ID: "to_token",
        Sort.NEITHER: "lost_ms to_proven was_proven",
    },
    "registry.v1.AliasTaken": {Sort.DEVICE_ID: "token", Sort.NEITHER: "proven"},
    "registry.v1.ApnsKey": {Sort.APP: "sealed_pem key_id team_id topic", Sort.NEITHER: "environment"},
    "registry.v1.App": {
        Sort.APP: "name package account sealed_secret old_sealed_secret allow_from web_origins",
        Sort.NEITHER: (
            "appkey platform created_ms ack_info_enabled default_period_s old_secret_until_ms "
            "replay_safe_required channel_route apns_reports"
        ),
    },
    "registry.v1.AppChanged": {Sort.APP: "settings", Sort.NEITHER: "appkey action team_id"},
    "registry.v1.Attributes": {
        Sort.DEVICE: "model",
        Sort.COUNTED: "region carrier channel sdk_version brand resolution os_version app_version",
    },
    "registry.v1.BroadcastCount": {Sort.NEITHER: "appkey day count"},
    "registry.v1.ChannelCredentials": {Sort.APP: "sealed_secret", Sort.NEITHER: "channel"},
    "registry.v1.ChannelSetting": {Sort.APP: "name value"},
    "registry.v1.ClearAddress": {
        Sort.ADDRESS: "only_hash",
        Sort.DEVICE_ID: "to_token",
        Sort.NEITHER: "channel known_before_ms dead_reason",
    },
    "registry.v1.ClearAlias": {Sort.ALIAS: "only_alias", Sort.NEITHER: "only_unproven"},
    "registry.v1.Device": {
        Sort.DEVICE_ID: "token",
        Sort.ALIAS: "alias",
        Sort.TAG: "tags stags proven_tags proven_stags",
        Sort.ACCOUNT: "removed_reason",
        Sort.NEITHER: (
            "appkey platform partition number registered_ms removed_ms alias_set_ms former_numbers "
            "session registered_again_ms alias_proven silent_since_ms attributes_revision"
        ),
    },
    "registry.v1.DeviceCommand": {Sort.DEVICE_ID: "token", Sort.NEITHER: "appkey session"},
    "registry.v1.ErasureDone": {Sort.NEITHER: "erasure_id appkey"},
    "registry.v1.ErasedDevice": {Sort.NEITHER: "partition number former_numbers token_name"},
    "registry.v1.Identity": {Sort.APP: "keys tags", Sort.NEITHER: "mode"},
    "registry.v1.KeyFingerprint": {Sort.NEITHER: "purpose fingerprint predecessor switched_ms predecessor_dropped"},
    "registry.v1.NumberRegistration": {Sort.NEITHER: "number registered_ms"},
    "registry.v1.Pause": {Sort.APP: "reason", Sort.NEITHER: "since_ms"},
    "registry.v1.PersonErased": {Sort.NEITHER: "erasure_id appkey alias_names subjects"},
    "registry.v1.Quotas": {
        Sort.NEITHER: (
            "requests_per_s targets_per_s broadcasts_per_day devices stored_task_bytes registrations_per_minute"
        )
    },
    "registry.v1.RegisterDevice": {Sort.NEITHER: "platform authority proven_number"},
    "registry.v1.RemoveDevice": {Sort.ACCOUNT: "reason", Sort.NEITHER: "registered_before_ms"},
    "registry.v1.RemoveStags": {Sort.TAG: "stags"},
    "registry.v1.RemoveTags": {Sort.TAG: "tags"},
    "registry.v1.ReserveNumbers": {Sort.NEITHER: "count below"},
    "registry.v1.QuotaReached": {Sort.NEITHER: "appkey quota limit day"},
    "registry.v1.Revocations": {Sort.ACCOUNT: "reason", Sort.NEITHER: "appkey partition below numbers revoked_ms lost"},
    "registry.v1.SavedAudience": {
        Sort.APP: "name send_to_json",
        Sort.ACCOUNT: "owner",
        Sort.NEITHER: "appkey created_ms changed_ms",
    },
    "registry.v1.Sealing": {Sort.NEITHER: "since_ms fingerprint copied_ms"},
    "registry.v1.SetAddress": {Sort.ADDRESS: "address p256dh auth", Sort.NEITHER: "channel"},
    "registry.v1.SetAlias": {Sort.ALIAS: "alias", Sort.NEITHER: "proven"},
    "registry.v1.TeamWebhooks": {Sort.NEITHER: "team_id"},
    "registry.v1.WrappedKey": {Sort.NEITHER: "by content"},
    "registry.v1.Webhook": {
        Sort.APP: "url sealed_secret old_sealed_secret labels",
        Sort.NEITHER: "webhook_id form kinds msgids disabled created_ms old_secret_until_ms resumed_ms",
    },
    "runtime.v1.AppDevices": {Sort.NEITHER: "appkey count"},
    "runtime.v1.HeldKeys": {Sort.NEITHER: "device_keys secrets persons"},
    "runtime.v1.InstanceAlive": {
        Sort.NEITHER: "role shard address place caught_up epoch owner_since_ms caught_up_offset"
    },
    "runtime.v1.InstanceFact": {Sort.NEITHER: "instance"},
    "runtime.v1.MessageIdClaim": {Sort.NEITHER: "from_s until_s"},
    "runtime.v1.Meta": {Sort.NEITHER: "event_id time_ms writer cause_index epoch sequence signature sealed"},
    "runtime.v1.NonceClaim": {Sort.NEITHER: "nonce time_s app"},
    "runtime.v1.Origin": {
        Sort.NETWORK: "address",
        Sort.ACCOUNT: "says actor",
        Sort.NEITHER: "interface request_id trace",
    },
    "runtime.v1.Position": {Sort.NEITHER: "topic partition offset"},
    "runtime.v1.ProcessCounts": {Sort.NEITHER: "pushes sent received faults"},
    "runtime.v1.ProcessFact": {Sort.NEITHER: "process"},
    "runtime.v1.ProcessProblem": {Sort.NEITHER: "part text"},
    "runtime.v1.ProcessStatus": {
        Sort.NEITHER: "host version started_ms stage connected_devices has_person_keys instance"
    },
    "runtime.v1.ResultCount": {Sort.NEITHER: "result count"},
    "runtime.v1.Refusal": {
        Sort.APP: "answer",
        Sort.NEITHER: "appkey time_ms call result code is_signed left_out",
    },
    "runtime.v1.RoleStatus": {Sort.NEITHER: "role shard shards stands_by lag_records lag_ms work erasures_until"},
    "scheduling.v1.CancelTask": {Sort.NEITHER: "appkeys"},
    "scheduling.v1.Claim": {Sort.REQUEST: "answer_json", Sort.NEITHER: "key request_digest"},
    "scheduling.v1.CreateTask": {Sort.NEITHER: "due_ms at_once"},
    "scheduling.v1.TaskCancelled": {Sort.NEITHER: "by_event_id"},
    "scheduling.v1.TaskCommand": {Sort.NEITHER: "task_key"},
    "scheduling.v1.TaskFact": {Sort.NEITHER: "task_key"},
    "scheduling.v1.TaskFailed": {Sort.APP: "reason", Sort.NEITHER: "draft_id"},
    "scheduling.v1.TaskScheduled": {Sort.NEITHER: "due_ms created_ms at_once"},
    "webhooks.v1.PushEnded": {
        Sort.NEITHER: (
            "msgid appkey kind ending devices sent received shown clicked dismissed failed expired "
            "cancelled dropped handed_over"
        )
    },
}
"""By message, without `protos.` in its name: its fields by what they say, with spaces between them."""


def stored_messages() -> Iterator[Descriptor]:
    """Yield every message that a record of the log may have inside, envelopes too."""
    known: set[str] = set()
    waiting: list[Any] = [topic.envelope.DESCRIPTOR for topic in TOPICS.values()]
    while waiting:
        message = waiting.pop()
        if message.full_name not in known:
            known.add(message.full_name)
            yield message
            waiting += [field.message_type for field in message.fields if field.message_type is not None]


def name_of(message: Descriptor) -> str:
    """Return the name of a message as FIELDS has it."""
    return message.full_name.removeprefix("protos.")


def sort_of(field: FieldDescriptor) -> Sort:
    """Return what a field that holds a value, and no message, says. KeyError: the table does not have it."""
    for sort, names in FIELDS[field.full_name.rpartition(".")[0].removeprefix("protos.")].items():
        if field.name in names.split():
            return sort
    raise KeyError(field.full_name)


def personal_fields() -> Mapping[Sort, list[str]]:
    """Return the personal fields of the log as `MESSAGE.FIELD`, by what they say."""
    found: dict[Sort, list[str]] = {sort: [] for sort in PERSONAL}
    for message in sorted(stored_messages(), key=name_of):
        for field in message.fields:
            if field.message_type is None and (sort := sort_of(field)) in found:
                found[sort].append(f"{message.name}.{field.name}")
    return found
