"""Settings of apps, teams and users, and names in details of audits, in the reader's language.

Facts and the files for programs keep the recorded words.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.details_pb2 import Remark
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import Platform
from services.domain.channel_credentials.forms import FORMS

# The names in details of audits in the reader's language: of commands to devices, and of the values of enums.

Gettext = Callable[[str], str]


class DetailNames(NamedTuple):
    """The names by number of the enum's value; those of commands by the command's name in `RequestedChange`."""

    commands: Mapping[str, str]
    push_kinds: Mapping[int, str]
    platforms: Mapping[int, str]
    log_in_methods: Mapping[int, str]
    roles: Mapping[int, str]
    link_purposes: Mapping[int, str]
    remarks: Mapping[int, str]


def detail_names(gettext: Gettext) -> DetailNames:
    """Return all names in one language."""
    _ = gettext
    return DetailNames(
        commands=_command_names(gettext),
        push_kinds={
            Kind.KIND_BROADCAST: _("broadcast"),
            Kind.KIND_MULTICAST: _("multicast"),
            Kind.KIND_UNICAST: _("unicast"),
        },
        platforms={Platform.PLATFORM_ANDROID: "Android", Platform.PLATFORM_IOS: "iOS"},
        log_in_methods={
            LogInMethod.LOG_IN_METHOD_PASSWORD: _("password"),
            LogInMethod.LOG_IN_METHOD_ONE_TIME_CODE: _("one-time code"),
            LogInMethod.LOG_IN_METHOD_RECOVERY_CODE: _("recovery code"),
            LogInMethod.LOG_IN_METHOD_SUBJECT: _("log-in at the OpenID Connect provider"),
        },
        roles={
            MemberRole.MEMBER_ROLE_VIEWER: _("viewer"),
            MemberRole.MEMBER_ROLE_SENDER: _("sender"),
            MemberRole.MEMBER_ROLE_APPROVER: _("approver"),
            MemberRole.MEMBER_ROLE_ADMINISTRATOR: _("administrator"),
        },
        link_purposes={
            LinkPurpose.LINK_PURPOSE_INVITATION: _("invitation"),
            LinkPurpose.LINK_PURPOSE_PASSWORD_RESET: _("new password"),
        },
        remarks={
            Remark.REMARK_IN_PARTITION_OF_DEVICE: _("in the device's partition"),
            Remark.REMARK_COUNTED_ONCE: _("the log has the record more than once; it counted once"),
            Remark.REMARK_WITHIN_HOUR: _("in this hour"),
            Remark.REMARK_KEY_OF_DEVICE: _("its key"),
            Remark.REMARK_ALL_KEYS: _("the keys of all devices of the app"),
            Remark.REMARK_PROVEN: _("proven by the app's server"),
        },
    )


def _command_names(gettext: Gettext) -> Mapping[str, str]:
    _ = gettext
    return {
        "register": _("register"),
        "begin session": _("begin a session"),
        "set alias": _("set the alias"),
        "clear alias": _("clear the alias"),
        "set address": _("set an address"),
        "clear address": _("clear an address"),
        "add tags": _("add tags"),
        "remove tags": _("remove tags"),
        "add stags": _("add string tags"),
        "remove stags": _("remove string tags"),
        "set attributes": _("set attributes"),
        "remove": _("remove the device"),
        "revoke key": _("revoke the key"),
        "revoke all keys": _("revoke all keys"),
        "reserve numbers": _("reserve device numbers"),
    }


Ngettext = Callable[[str, str, int], str]
Written = Callable[[int], str]
"""Writes a number of milliseconds since 1970 UTC as a moment, or a number of seconds as a duration."""

_ROLE_SET = "team member set"
_ACTIONS = {
    *("app set", "app secret rotated", "team created", "team set", "user created", "user set"),
    *(_ROLE_SET, "team member removed"),
    *(f"{subject} change {state}" for subject in ("team", "user") for state in ("proposed", "confirmed", "rejected")),
}
"""The actions whose details are settings; those of others may be what a person wrote."""

_VALID_UNTIL = "valid until "
_ABOVE_DEVICES = re.compile(r"above (\d+) devices")
_BROADCASTS_FROM = re.compile(r"broadcasts from (\d+) %")
_KEY_OF_TEAM = re.compile(r"(\S+) of (\S+)")


class SettingWords:
    """Writes recorded settings in one language. Names and other texts that people chose stay as they are."""

    def __init__(self, gettext: Gettext, ngettext: Ngettext, duration: Written) -> None:
        self.gettext = gettext
        self.ngettext = ngettext
        self._duration = duration
        self._names = _setting_names(gettext)
        self._credentials = _credentials_names(gettext)
        self._values = _values(gettext)
        self._notes = _notes(gettext)
        roles = detail_names(gettext).roles
        named = {name.removeprefix("MEMBER_ROLE_").lower(): number for name, number in MemberRole.items()}
        self._roles = {name: roles[number] for name, number in named.items() if number in roles}

    def __call__(self, action: str, recorded: str, moment: Written) -> str:
        """Return the words for a part of the detail of an action; the part itself where it is no setting."""
        if action not in _ACTIONS:
            return recorded
        if recorded in self._notes:
            return self._notes[recorded]
        if action == _ROLE_SET:
            login, _, role = recorded.rpartition(" ")
            return f"{login}: {self._roles[role]}" if role in self._roles else recorded
        name, _, value = recorded.partition(" ")
        if not value or name not in self._names:
            return recorded
        return f"{self._names[name]}: {self._value(name, value, moment)}"

    def _value(self, name: str, value: str, moment: Written) -> str:
        match name:
            case "name" | "display_name" | "locale" | "zone" | "apns_topic":
                return value
            case _ if name in self._credentials and value not in ("none", "new"):
                return value
            case "default_period_s" if value.isdecimal():
                return self._duration(int(value))
            case "old_secret" if value.startswith(_VALID_UNTIL):
                until = datetime.fromisoformat(value.removeprefix(_VALID_UNTIL))
                return f"{self.gettext('valid until')} {moment(int(until.timestamp() * 1000))}"
            case "apns_key" if key := _KEY_OF_TEAM.fullmatch(value):
                return self.gettext("%(key)s of the team %(team)s") % {"key": key[1], "team": key[2]}
            case "identity_keys" | "identity_tags" if value not in self._values:
                return value
            case "approval":
                return ", ".join(self._rule(rule) for rule in value.split(", "))
        if value.isdecimal():
            return f"{int(value):,}"
        return self._values.get(value, value)

    def _rule(self, rule: str) -> str:
        if share := _BROADCASTS_FROM.fullmatch(rule):
            return self.gettext("broadcasts (to %(share)s %% of the devices or more)") % {"share": share[1]}
        if above := _ABOVE_DEVICES.fullmatch(rule):
            count = int(above[1])
            text = self.ngettext("more than %(number)s device", "more than %(number)s devices", count)
            return text % {"number": f"{count:,}"}
        return self._values.get(rule, rule)


def quota_names(gettext: Gettext) -> Mapping[str, str]:
    """Return the words for each quota of an app, by its name in `Quotas`."""
    _ = gettext
    return {
        "requests_per_s": _("Requests a second"),
        "targets_per_s": _("Targets of pushes a second"),
        "broadcasts_per_day": _("Broadcasts and multicasts per day"),
        "devices": _("Registered devices"),
        "stored_task_bytes": _("Bytes of waiting timed messages"),
        "registrations_per_minute": _("New devices a minute"),
    }


def route_names(gettext: Gettext) -> Mapping[str, str]:
    """Return the words for each route of an app's pushes, by its name in `ROUTES`."""
    _ = gettext
    return {
        "auto": _("own connection, or a channel where there is none"),
        "own": _("own connection only"),
        "vendor": _("a channel first"),
    }


def _credentials_names(gettext: Gettext) -> Mapping[str, str]:
    """Return the words for the settings of all channels, and for the fields of their secrets, by path."""
    secrets = {form.path(form.secret_field.name): gettext(form.secret_field.label) for form in FORMS.values()}
    shown = {form.path(name): gettext(label) for form in FORMS.values() for name, label in form.shown.items()}
    return {**secrets, **shown}


def _setting_names(gettext: Gettext) -> Mapping[str, str]:
    _ = gettext
    return {
        "name": _("Name"),
        "ack_info": _("Acknowledgements"),
        "default_period_s": _("Time to live"),
        "apns_key": _("Key for Apple"),
        "apns_topic": _("Bundle id"),
        "apns_environment": _("Environment"),
        "apns_reports": _("Reports of iPhones"),
        **_credentials_names(gettext),
        "web_origins": _("Web pages that are devices"),
        "channel_route": _("Way to the devices"),
        "allow_from": _("Allowed addresses"),
        "replay_safe": _("Replay-safe signatures"),
        "identity": _("Proof of aliases"),
        "identity_keys": _("Keys of the proofs"),
        "identity_tags": _("Tags that address one person"),
        "old_secret": _("Former secret key"),
        "approval": _("Approval by a second person"),
        "display_name": _("Display name"),
        "locale": _("Language"),
        "zone": _("Time zone"),
        "administrator": _("Administrator"),
        "disabled": _("Disabled"),
        **quota_names(gettext),
    }


def _values(gettext: Gettext) -> Mapping[str, str]:
    _ = gettext
    return {
        "on": _("on"),
        "off": _("off"),
        "none": _("none"),
        "new": _("a new one"),
        "never": _("none"),
        "everywhere": _("all"),
        "default": _("as in the installation's settings"),
        "broadcasts": _("broadcasts"),
        "production": _("production"),
        "sandbox": _("sandbox"),
        "both": _("both"),
        "required": _("required"),
        "optional": _("optional"),
        "accept": _("accepted"),
        "require": _("required"),
        **route_names(gettext),
    }


def _notes(gettext: Gettext) -> Mapping[str, str]:
    _ = gettext
    return {
        "a new APNs key file": _("a new key file for Apple"),
        "second factor removed": _("second factor removed"),
        "sessions ended": _("sessions ended"),
        "roles by hand": _("roles by hand"),
        "roles by the provider's groups": _("roles by the provider's groups"),
        "by the provider's groups": _("by the provider's groups"),
        "at the first log-in": _("at the first log-in"),
        "a new link for a password": _("a new link for a password"),
        "logged out by the provider": _("logged out by the provider"),
    }
