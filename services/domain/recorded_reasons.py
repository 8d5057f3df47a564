"""The reasons that the service records in facts, as texts, and the parser of recorded texts.

A reason that gets a new wording becomes another value: the log keeps the former wording for ever.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class FixedReason(StrEnum):
    """A reason that is always recorded with the same words."""

    MAILBOX_FULL = "mailbox full"
    ALIAS_CHANGED = "alias changed"
    """The device has another alias, or none, than the one to which the message was sent."""

    INTERNAL_ERROR = "internal error"
    OTHER = "other"
    """Stands for a reason beyond the number of different ones that the outcomes of one record may have."""

    UNREGISTERED = "unregistered"
    """The app or its app server unregistered the device."""

    SILENT = "silent"
    """The device showed no sign of life for CARILLON_DEVICE_DAYS. It is registered again at its next one."""

    ERASED = "erased"
    """The person was erased; a stub of the device is left."""

    REMOVED = "removed"
    """The device was removed after the push had started, so there was no token to send the message to."""

    CHANNEL_NOT_ASKED = "the push was over before the channel was asked"
    """The message was to be handed over, and no request was made."""

    RECALLED = "the device connected before the channel had taken the message"
    """A channel had claimed the message and certainly did not have it, so it went back to the own connection."""

    NO_ADDRESS = "the device has no address on the channel any more"
    """A channel claimed the message, and then the device's address was gone."""

    NO_CREDENTIALS = "the app has no credentials for the channel"
    """A channel claimed the message, and then the app's credentials were removed."""

    # Why a channel made no request, in the place of a push service's answer.
    ENDPOINT_REFUSED = "endpoint refused"
    NO_CONNECTION = "no connection"
    NO_ACCESS_TOKEN = "no access token yet"  # noqa: S105 - no token
    ACCOUNT_REFUSED = "service account refused"
    CREDENTIALS_REFUSED = "client secret refused"
    DAILY_CAP = "daily cap of the channel"

    # Why the gateway ended a connection.
    IDLE = "idle"
    UNACKNOWLEDGED = "unacknowledged"
    SLOW = "slow"
    GONE = "gone"
    REPLACED = "replaced"
    DRAINING = "draining"
    UNAUTHORIZED = "unauthorized"
    PROTOCOL = "protocol"

    # Why a log-in was refused.
    UNKNOWN_NAME = "unknown name"
    WRONG_PASSWORD = "wrong password"  # noqa: S105 - no password
    WRONG_CODE = "wrong code"
    USED_CODE = "used code"
    DISABLED = "disabled"
    CHANGED_MEANWHILE = "changed meanwhile"
    NO_PASSWORD_ALLOWED = "no password allowed"  # noqa: S105 - no password
    NO_GROUP_WITH_A_ROLE = "no group with a role"


@dataclass(frozen=True, slots=True)
class AttemptsFailed:
    """`count` attempts to resolve an audience or to send a task failed, the last one with `last_error`."""

    count: int
    last_error: str

    def __str__(self) -> str:
        return f"{self.count} attempts failed, the last one with: {self.last_error}"


@dataclass(frozen=True, slots=True)
class AudienceUnresolved:
    """The time to live of a push was over before targeting resolved its audience; the last error may be empty."""

    last_error: str

    def __str__(self) -> str:
        cause = f": {self.last_error}" if self.last_error else ""
        return f"its time to live was over before targeting resolved its audience{cause}"


@dataclass(frozen=True, slots=True)
class AudienceTooLarge:
    """The audience of a push in one partition makes a record that is too large for the log."""

    size_bytes: int

    def __str__(self) -> str:
        return f"its audience in a partition makes a record of {self.size_bytes} bytes, too large for the log"


@dataclass(frozen=True, slots=True)
class TooMuchHeldUp:
    """Targeting does not answer, and this many bytes of the app's earlier pushes wait for it already."""

    waiting_bytes: int

    def __str__(self) -> str:
        return f"{self.waiting_bytes} bytes of the app's pushes wait for targeting already"


@dataclass(frozen=True, slots=True)
class ApprovalNeeded:
    """A timed push needed the approval of a second person when it fell due, and waits for it as this draft."""

    draft_id: str

    def __str__(self) -> str:
        return f"by now it needs the approval of a second person, for which it waits as draft {self.draft_id}"


@dataclass(frozen=True, slots=True)
class AcceptanceUnknown:
    """The message was sent to Apple, whose answer was lost, and its time to live was over before a repetition."""

    cause: str

    def __str__(self) -> str:
        return f"unknown: {self.cause}"


@dataclass(frozen=True, slots=True)
class RefusedUntilExpiry:
    """Apple was asked again after this answer, as it demands, until the time to live of the push was over."""

    cause: str

    def __str__(self) -> str:
        return f"refused until it expired: {self.cause}"


@dataclass(frozen=True, slots=True)
class ChannelAcceptanceUnknown:
    """A channel may have shown the message: a request had no answer, and its repetition was refused or came too late.

    `cause`: the channel's reason for the refusal, or "".
    """

    cause: str

    def __str__(self) -> str:
        cause = f": {self.cause}" if self.cause else ""
        return f"unknown whether the channel shows it{cause}"


@dataclass(frozen=True, slots=True)
class KeyRevoked:
    """The key of the device was revoked, by a command from this address or through this interface if one is known."""

    by: str

    def __str__(self) -> str:
        return f"revoked by {self.by}" if self.by else "revoked"


@dataclass(frozen=True, slots=True)
class OutcomesForgotten:
    """The outcomes of the push are older than the days for which they are kept."""

    kept_days: int

    def __str__(self) -> str:
        return f"outcomes are kept for {self.kept_days} days"


RecordedReason: TypeAlias = (
    FixedReason
    | AttemptsFailed
    | AudienceUnresolved
    | AudienceTooLarge
    | TooMuchHeldUp
    | ApprovalNeeded
    | AcceptanceUnknown
    | RefusedUntilExpiry
    | ChannelAcceptanceUnknown
    | KeyRevoked
    | OutcomesForgotten
)

_FIXED = {reason.value: reason for reason in FixedReason}
_ATTEMPTS_FAILED = re.compile(r"(\d+) attempts failed, the last one with: (.*)", re.DOTALL)
_AUDIENCE_UNRESOLVED = re.compile(
    r"its time to live was over before targeting resolved its audience(?:: (.*))?", re.DOTALL
)
_AUDIENCE_TOO_LARGE = re.compile(r"its audience in a partition makes a record of (\d+) bytes, too large for the log")
_TOO_MUCH_HELD_UP = re.compile(r"(\d+) bytes of the app's pushes wait for targeting already")
_APPROVAL_NEEDED = re.compile(
    r"by now it needs the approval of a second person, for which it waits as draft ([0-9a-f]+)"
)
_ACCEPTANCE_UNKNOWN = re.compile(r"unknown: (.*)", re.DOTALL)
_REFUSED_UNTIL_EXPIRY = re.compile(r"refused until it expired: (.*)", re.DOTALL)
_CHANNEL_ACCEPTANCE_UNKNOWN = re.compile(r"unknown whether the channel shows it(?:: (.*))?", re.DOTALL)
_KEY_REVOKED = re.compile(r"revoked(?: by (.*))?", re.DOTALL)
_OUTCOMES_FORGOTTEN = re.compile(r"outcomes are kept for (\d+) days")


def parsed_reason(recorded: str) -> RecordedReason | None:
    """Return the reason that is recorded with this text; None for a reason of Apple's or a text that a person wrote."""
    if fixed := _FIXED.get(recorded):
        return fixed
    if found := _ATTEMPTS_FAILED.fullmatch(recorded):
        return AttemptsFailed(int(found[1]), found[2])
    if found := _AUDIENCE_UNRESOLVED.fullmatch(recorded):
        return AudienceUnresolved(found[1] or "")
    if found := _AUDIENCE_TOO_LARGE.fullmatch(recorded):
        return AudienceTooLarge(int(found[1]))
    if found := _TOO_MUCH_HELD_UP.fullmatch(recorded):
        return TooMuchHeldUp(int(found[1]))
    if found := _APPROVAL_NEEDED.fullmatch(recorded):
        return ApprovalNeeded(found[1])
    if found := _ACCEPTANCE_UNKNOWN.fullmatch(recorded):
        return AcceptanceUnknown(found[1])
    if found := _REFUSED_UNTIL_EXPIRY.fullmatch(recorded):
        return RefusedUntilExpiry(found[1])
    if found := _CHANNEL_ACCEPTANCE_UNKNOWN.fullmatch(recorded):
        return ChannelAcceptanceUnknown(found[1] or "")
    if found := _KEY_REVOKED.fullmatch(recorded):
        return KeyRevoked(found[1] or "")
    if found := _OUTCOMES_FORGOTTEN.fullmatch(recorded):
        return OutcomesForgotten(int(found[1]))
    return None
