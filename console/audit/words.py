"""The lines and the actions of audits in the reader's language, made of typed details."""

from collections.abc import Callable, Iterable, Mapping
from typing import assert_never

from console.apps.words import SettingWords, detail_names
from console.pushes.words import ReasonWords, ServiceWords
from console.send.words import AudienceWords, ConditionWords, attribute_names
from protos.analytics.v1.analytics_pb2 import ActionEntry, TimelineEntry
from protos.analytics.v1.details_pb2 import (
    AddressChange,
    AliasCleared,
    AliasTakenAway,
    CommandOrigin,
    Detail,
    PartitionCount,
    RequestedChange,
    ServiceChannel,
)
from services.domain.addresses import channel_name

Moment = Callable[[int], str]
"""Writes a time in milliseconds since 1970 UTC in the reader's zone."""


class DetailWords:
    """Writes the details of audits in one language."""

    def __init__(
        self,
        conditions: ConditionWords,
        audience: AudienceWords,
        reasons: ReasonWords,
        services: ServiceWords,
        settings: SettingWords,
    ) -> None:
        self.gettext = conditions.gettext
        self.ngettext = conditions.ngettext
        self._conditions = conditions
        self._audience = audience
        self._reasons = reasons
        self._services = services
        self._settings = settings
        self._attributes = attribute_names(conditions.gettext)
        self._names = detail_names(conditions.gettext)

    def line(self, entry: TimelineEntry | ActionEntry, moment: Moment) -> str:
        """Return the details with commas between them.

        Without details, or with one that only a newer version of analytics knows, return the recorded text.
        """
        if not entry.details or any(detail.WhichOneof("detail") is None for detail in entry.details):
            return entry.detail
        details: Iterable[Detail] = entry.details
        if isinstance(entry, ActionEntry):
            details = self._with_settings(entry, moment)
        return self._joined(details, moment)

    def _with_settings(self, entry: ActionEntry, moment: Moment) -> Iterable[Detail]:
        """Yield the details with settings in the reader's words. The first one of a team or user is its name."""
        has_name = entry.action.startswith(("team ", "user "))
        for index, detail in enumerate(entry.details):
            is_setting = detail.HasField("text") and not (has_name and index == 0)
            yield Detail(text=self._settings(entry.action, detail.text, moment)) if is_setting else detail

    def _joined(self, details: Iterable[Detail], moment: Moment) -> str:
        return ", ".join(filter(None, (self._text(detail, moment) for detail in details)))

    def _text(self, detail: Detail, moment: Moment) -> str:
        _ = self.gettext
        match detail.WhichOneof("detail"):
            case "message":
                return _("message %(id)s") % {"id": detail.message}
            case "push":
                return _("push %(id)s") % {"id": detail.push}
            case "task":
                return _("task %(id)s") % {"id": detail.task}
            case "draft":
                return _("draft %(id)s") % {"id": detail.draft}
            case "push_kind":
                return self._named(self._names.push_kinds, detail.push_kind)
            case "audience":
                return self._audience(detail.audience)
            case "devices":
                return self._audience.devices(detail.devices)
            case "origin":
                return self._origin(detail.origin)
            case "accepted":
                return self._accepted(detail.accepted)
            case "due_ms":
                return _("due %(time)s") % {"time": moment(detail.due_ms)}
            case "until_ms":
                return _("until %(time)s") % {"time": moment(detail.until_ms)}
            case "partitions":
                return self._partitions(detail.partitions)
            case "failed_partitions":
                return self._failed_partitions(detail.failed_partitions)
            case "reason":
                return self._reasons(detail.reason)
            case "reason_count":
                return f"{self._reasons(detail.reason_count.reason)}: {detail.reason_count.devices:,}"
            case "platform":
                return self._named(self._names.platforms, detail.platform)
            case "alias":
                return _("alias %(alias)s") % {"alias": detail.alias}
            case "alias_cleared":
                return self._alias_cleared(detail.alias_cleared)
            case "alias_taken":
                return self._alias_taken(detail.alias_taken)
            case "address":
                return self._address(detail.address)
            case "channel":
                return self._channel(detail.channel)
            case "address_taken":
                return _("the device %(token)s set the same address") % {"token": detail.address_taken}
            case "tag":
                return f"{_sign(detail.tag.removed)}{self._conditions.tag(detail.tag.tag)}"
            case "stag":
                return f"{_sign(detail.stag.removed)}{self._conditions.stag(detail.stag.stag)}"
            case "attribute":
                name = self._attributes.get(detail.attribute.name, detail.attribute.name)
                return f"{name} {detail.attribute.value or _('unknown')}"
            case "requested_change":
                return self._requested_change(detail.requested_change, moment)
            case "device_numbers":
                return self._device_numbers(detail.device_numbers)
            case "log_in_method":
                return self._named(self._names.log_in_methods, detail.log_in_method)
            case "role":
                return self._named(self._names.roles, detail.role)
            case "link_purpose":
                return self._named(self._names.link_purposes, detail.link_purpose)
            case "remark":
                return self._named(self._names.remarks, detail.remark)
            case "text":
                return detail.text
            case None:
                return ""
            case never:
                assert_never(never)

    def _named(self, names: Mapping[int, str], number: int) -> str:
        return names.get(number) or self.gettext("unknown")

    def _device_numbers(self, count: int) -> str:
        return self.ngettext("%(count)s device number", "%(count)s device numbers", count) % {"count": f"{count:,}"}

    def _origin(self, origin: CommandOrigin) -> str:
        _ = self.gettext
        if not origin.interface:
            return _("by %(writer)s") % {"writer": origin.writer} if origin.writer else ""
        text = _("through %(interface)s from %(address)s") if origin.address else _("through %(interface)s")
        return self._with_request(text, origin)

    def _accepted(self, origin: CommandOrigin) -> str:
        _ = self.gettext
        if not origin.interface:
            return _("accepted by %(writer)s") % {"writer": origin.writer} if origin.writer else _("accepted")
        text = _("accepted through %(interface)s")
        if origin.address:
            text = _("accepted through %(interface)s from %(address)s")
        return self._with_request(text, origin)

    def _with_request(self, text: str, origin: CommandOrigin) -> str:
        came = text % {"interface": origin.interface, "address": origin.address}
        request = self.gettext("request %(id)s") % {"id": origin.request_id}
        return f"{came}, {request}" if origin.request_id else came

    def _partitions(self, partitions: PartitionCount) -> str:
        text = self.ngettext("in %(count)s partition", "in %(count)s partitions", partitions.count)
        if partitions.of:
            text = self.gettext("in %(count)s of %(all)s partitions")
        return text % {"count": partitions.count, "all": partitions.of}

    def _failed_partitions(self, count: int) -> str:
        text = self.ngettext("in %(count)s partition it never starts", "in %(count)s partitions it never starts", count)
        return text % {"count": count}

    def _alias_cleared(self, cleared: AliasCleared) -> str:
        if cleared.HasField("only_alias"):
            return self.gettext("no alias if it is %(alias)s") % {"alias": cleared.only_alias}
        return self.gettext("no alias")

    def _alias_taken(self, taken: AliasTakenAway) -> str:
        _ = self.gettext
        if not taken.token:
            return _("the alias had too many devices")
        text = _("the alias was taken by the device %(token)s")
        if taken.proven:
            text = _("the alias was taken by the device %(token)s, which has proven it")
        return text % {"token": taken.token}

    def _address(self, change: AddressChange) -> str:
        text = self.gettext("address on the channel %(channel)s") % {"channel": channel_name(change.channel)}
        return f"{_sign(change.removed)}{text} {change.fingerprint}".rstrip()

    def _channel(self, channel: ServiceChannel) -> str:
        name = self._services(channel.channel, channel.simulated)
        return f"{name}: {channel.devices:,}" if channel.devices else name

    def _requested_change(self, change: RequestedChange, moment: Moment) -> str:
        command = self._names.commands.get(change.command, change.command)
        details = self._joined(change.details, moment)
        return f"{command}: {details}" if details else command


def _sign(removed: bool) -> str:
    return "-" if removed else "+"


# The names of the audit's actions in the reader's language. Files for programs keep the names themselves.


def action_words(gettext: Callable[[str], str]) -> Mapping[str, str]:
    """Return the words for each action of the audit."""
    _ = gettext
    return {
        "push sent": _("sent a push"),
        "push cancelled": _("cancelled a push"),
        "task scheduled": _("scheduled a task"),
        "task cancelled": _("cancelled a task"),
        "draft submitted": _("submitted a draft"),
        "draft changed": _("changed a draft"),
        "draft approved": _("approved a draft"),
        "draft rejected": _("rejected a draft"),
        "draft withdrawn": _("withdrew a draft"),
        "device revoke key": _("revoked the key of a device"),
        "device revoke all keys": _("revoked the keys of all devices of an app"),
        "device remove": _("removed a device"),
        "data read": _("looked at devices"),
        "data exported": _("exported a person's data"),
        "data erased": _("erased a person"),
        "app created": _("registered an app"),
        "app set": _("changed an app"),
        "app secret rotated": _("made another secret key"),
        "app paused": _("paused an app"),
        "app resumed": _("resumed an app"),
        "app webhook made": _("made a webhook"),
        "app webhook set": _("changed a webhook"),
        "app webhook secret rotated": _("made another secret of a webhook"),
        "app webhook resumed": _("let a webhook go on"),
        "app webhook removed": _("removed a webhook"),
        "app audience saved": _("saved an audience"),
        "app audience removed": _("removed an audience"),
        "app all paused": _("paused all apps"),
        "app all resumed": _("resumed all apps"),
        "app all moved to new keys": _("rotated the installation's keys"),
        "app all closed to former keys": _("ended the validity of the installation's former keys"),
        "app all began to seal personal values": _("had personal values sealed in the log"),
        "app all had the keys of persons copied": _("copied the keys of persons"),
        "app given to team": _("gave an app to a team"),
        "app taken from team": _("took an app from its team"),
        "team change proposed": _("proposed a change of approvals"),
        "team change confirmed": _("confirmed a change of approvals"),
        "team change rejected": _("rejected a change of approvals"),
        "team created": _("created a team"),
        "team set": _("changed a team"),
        "team member set": _("set the role of a member"),
        "team member removed": _("removed a member"),
        "team test device set": _("set test devices"),
        "team test device removed": _("removed test devices"),
        "user change proposed": _("proposed a change of a user"),
        "user change confirmed": _("confirmed a change of a user"),
        "user change rejected": _("rejected a change of a user"),
        "user created": _("created a user"),
        "user set": _("changed a user"),
        "user password set": _("set a password"),
        "user one-time code set": _("set up a second factor"),
        "user second factor sealed anew": _("sealed a second factor with the new key"),
        "user one-time code removed": _("removed a second factor"),
        "user link made": _("made a one-time link"),
        "token created": _("created an API token"),
        "token revoked": _("revoked an API token"),
        "token used": _("used an API token"),
        "log-in": _("logged in"),
        "log-in failed": _("failed to log in"),
        "log-in ended": _("logged out"),
    }
