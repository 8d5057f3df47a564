"""The settings that changes of apps, teams and users record, such as `ack_info on`, in the reader's language.

Facts and the files for programs keep the recorded words.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime

from edge.console.view.words.detail_names import detail_names
from protos.accounts.v1.accounts_pb2 import MemberRole

Gettext = Callable[[str], str]
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


def _setting_names(gettext: Gettext) -> Mapping[str, str]:
    _ = gettext
    return {
        "name": _("Name"),
        "ack_info": _("Acknowledgements"),
        "default_period_s": _("Time to live"),
        "apns_key": _("Key for Apple"),
        "apns_topic": _("Bundle id"),
        "apns_environment": _("Environment"),
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
