"""Reasons that facts record, and the state of a timed task, in the reader's language."""

import re
from collections.abc import Callable, Mapping
from typing import assert_never

from protos.scheduling.v1.scheduling_pb2 import Task, TaskStatus
from services.domain.recorded_reasons import (
    AcceptanceUnknown,
    ApprovalNeeded,
    AttemptsFailed,
    AudienceTooLarge,
    AudienceUnresolved,
    ChannelAcceptanceUnknown,
    FixedReason,
    KeyRevoked,
    OutcomesForgotten,
    RecordedReason,
    RefusedUntilExpiry,
    TooMuchHeldUp,
    parsed_reason,
)

_NUMBERED = re.compile(r"((?:errno |code |status )?-?[0-9]{1,8}) (.+)")
"""A push service's answer that is a number, with its meaning."""


class ReasonWords:
    """Writes recorded reasons in one language.

    What people wrote, and names that push services have for their answers, stay as they are. Behind a service's number
    are words of Carillon's, which are in the catalogues.
    """

    def __init__(self, gettext: Callable[[str], str]) -> None:
        self.gettext = gettext
        self._fixed = _fixed_reasons(gettext)

    def __call__(self, recorded: str) -> str:
        reason = parsed_reason(recorded)
        if reason is not None:
            return self._text(reason)
        numbered = _NUMBERED.fullmatch(recorded)
        return f"{numbered[1]} {self.gettext(numbered[2])}" if numbered else recorded

    def _text(self, reason: RecordedReason) -> str:
        _ = self.gettext
        match reason:
            case FixedReason():
                return self._fixed[reason]
            case AttemptsFailed(count, last_error):
                text = _("%(count)s attempts failed, the last one with: %(error)s")
                return text % {"count": count, "error": self(last_error)}
            case AudienceUnresolved(""):
                return _("its time to live was over before its audience was known")
            case AudienceUnresolved(last_error):
                text = _("its time to live was over before its audience was known: %(error)s")
                return text % {"error": self(last_error)}
            case AudienceTooLarge(size_bytes):
                text = _("its audience in a partition makes a record of %(size)s bytes, too large for the log")
                return text % {"size": size_bytes}
            case TooMuchHeldUp(waiting_bytes):
                text = _("its audience was not known, and %(size)s bytes of earlier pushes of the app waited likewise")
                return text % {"size": waiting_bytes}
            case ApprovalNeeded(draft_id):
                text = _("by now it needs a second person's approval, for which it waits as draft %(draft)s")
                return text % {"draft": draft_id}
            case AcceptanceUnknown(cause):
                return _("it is unknown whether Apple accepted it: %(error)s") % {"error": self(cause)}
            case RefusedUntilExpiry(cause):
                return _("Apple had it sent again later until it expired: %(error)s") % {"error": self(cause)}
            case ChannelAcceptanceUnknown(""):
                return _("the push service did not answer, so it is unknown whether the device shows it")
            case ChannelAcceptanceUnknown(cause):
                text = _(
                    "it is unknown whether the device shows it: the push service first did not answer, then: %(error)s"
                )
                return text % {"error": self(cause)}
            case KeyRevoked(""):
                return _("its key was revoked")
            case KeyRevoked(by):
                return _("its key was revoked by %(by)s") % {"by": by}
            case OutcomesForgotten(kept_days):
                return _("outcomes are kept for %(days)s days") % {"days": kept_days}
            case never:
                assert_never(never)


def _fixed_reasons(gettext: Callable[[str], str]) -> Mapping[FixedReason, str]:
    _ = gettext
    return {
        FixedReason.MAILBOX_FULL: _("more than 100 messages were waiting"),
        FixedReason.ALIAS_CHANGED: _("the device had changed its alias by then"),
        FixedReason.INTERNAL_ERROR: _("internal error"),
        FixedReason.OTHER: _("one of many other reasons"),
        FixedReason.UNREGISTERED: _("unregistered"),
        FixedReason.SILENT: _("showed no sign of life for very long"),
        FixedReason.ERASED: _("the person was erased"),
        FixedReason.REMOVED: _("the device was removed meanwhile"),
        FixedReason.RECALLED: _("the device connected before the push service had taken the message"),
        FixedReason.NO_ADDRESS: _("the device's address on the channel was removed meanwhile"),
        FixedReason.NO_CREDENTIALS: _("the app has no credentials for the channel any more"),
        FixedReason.CHANNEL_NOT_ASKED: _("the push was over before the push service was asked"),
        FixedReason.ENDPOINT_REFUSED: _("the endpoint of its subscription must not be called"),
        FixedReason.NO_CONNECTION: _("no connection to the push service could be opened"),
        FixedReason.NO_ACCESS_TOKEN: _("the push service has granted no access token yet"),
        FixedReason.ACCOUNT_REFUSED: _("the push service does not accept the app's service account"),
        FixedReason.CREDENTIALS_REFUSED: _("the push service does not accept the app's credentials"),
        FixedReason.DAILY_CAP: _("the device has had its messages of the day by this push service"),
        FixedReason.IDLE: _("silent for too long"),
        FixedReason.UNACKNOWLEDGED: _("acknowledged nothing"),
        FixedReason.SLOW: _("received too slowly"),
        FixedReason.GONE: _("did not answer"),
        FixedReason.REPLACED: _("replaced by another connection"),
        FixedReason.DRAINING: _("the gateway stopped"),
        FixedReason.UNAUTHORIZED: _("its key is wrong or was revoked"),
        FixedReason.PROTOCOL: _("sent what the protocol does not allow"),
        FixedReason.UNKNOWN_NAME: _("unknown name"),
        FixedReason.WRONG_PASSWORD: _("wrong password"),
        FixedReason.WRONG_CODE: _("wrong code"),
        FixedReason.USED_CODE: _("the code was used before"),
        FixedReason.DISABLED: _("the user is disabled"),
        FixedReason.CHANGED_MEANWHILE: _("the password was changed meanwhile"),
        FixedReason.NO_PASSWORD_ALLOWED: _("this user must not log in with a password"),
        FixedReason.NO_GROUP_WITH_A_ROLE: _("none of the user's groups has a role"),
    }


# The channels by which pushes leave, and the services behind them.


class ServiceWords:
    """Writes the names of channels in one language."""

    def __init__(self, gettext: Callable[[str], str]) -> None:
        self.gettext = gettext
        self._names = _service_names(gettext)

    def __call__(self, channel: str, simulated: bool = False) -> str:
        """Return the name of the service that answered; that of a channel which this version does not know stays."""
        name = self._names.get(channel, channel)
        return self.gettext("simulator of %(service)s") % {"service": name} if simulated else name


def _service_names(gettext: Callable[[str], str]) -> Mapping[str, str]:
    _ = gettext
    return {
        "own": _("own connections"),
        "apns": _("Apple's push service"),
        "webpush": _("Web Push"),
        "fcm": _("Google's push service (FCM)"),
        "hms": _("Huawei's push service on Android"),
        "harmony": _("Huawei's push service on HarmonyOS"),
        "honor": _("Honor's push service"),
        "xiaomi": _("Xiaomi's push service"),
        "oppo": _("OPPO's push service"),
        "vivo": _("vivo's push service"),
    }


# One sentence about the timed task of a push that has not been sent.


def unsent_task_sentence(task: Task, gettext: Callable[[str], str], moment: Callable[[int], str]) -> str:
    """Return the push's due time as text, or why nothing of it was sent."""
    _ = gettext
    match task.status:
        case TaskStatus.TASK_STATUS_CANCELLED:
            sentence = _("Scheduled for %(time)s, and cancelled before: nothing was sent.")
        case TaskStatus.TASK_STATUS_EXPIRED:
            sentence = _("Scheduled for %(time)s, but its time to live ended during a pause: nothing was sent.")
        case TaskStatus.TASK_STATUS_FAILED:
            sentence = _("Scheduled for %(time)s, but it could not be sent.")
        case _:
            sentence = gettext("Scheduled for %(time)s; it has not been sent yet.")
    return sentence % {"time": moment(task.due_ms)}
