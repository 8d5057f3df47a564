"""The names in details of audits in the reader's language: of commands to devices, and of the values of enums."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from protos.accounts.v1.accounts_pb2 import LinkPurpose, LogInMethod, MemberRole
from protos.analytics.v1.details_pb2 import Remark
from protos.push.v1.push_pb2 import Kind
from protos.registry.v1.apps_pb2 import Platform

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
