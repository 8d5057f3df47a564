"""Channels: the ways in which messages leave for devices. This is their port, and the words that all of them share.

    starting.py ── a push that starts ──▶ DeliveryChannel, chosen by the `Channel` of the push
                                            │
              ┌─────────────────────────────┴──────────────┐
    sockets/  Fanout                            service_channel.py  ServiceChannel: all apps of one push service
    Carillon's own connections,                     queue.py        what an app sends next, delays, retries, window
    by gateways                                     progress.py     a push in its audience, a message on its device
                                                    health.py       the circuit of an app, alarms
                                                    addresses.py    look-up and removal of addresses
                                                            │ asks, for all that differs
                                                            ▼
                                                        PushService: apns/, webpush/, fcm/, a folder for each;
                                                        those of phones' makers share batches/

A push service is another's server that hands messages to devices. What differs between services is a `PushService`:

    Recipient ─▶ PushEncoder ─▶ request ─▶ Sender ─▶ answer ─▶ react ─▶ Reaction: step, circuit, alarm

`PushEncoder.encode` and `react` do no input or output; `react` is a table from answers to reactions wherever one fits.
Only the sender has connections, and the tokens that authorise it there (access_tokens.py, where they are OAuth's). So
another service is a folder beside apns/ (its encoder, its table, its sender, its `PushService`, its wiring), the form
of its credentials, its settings, and a line where main.py composes the channels.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, assert_never

from prometheus_client import Gauge

from protos.delivery.v1.delivery_pb2 import CheckChannelResponse
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.pushes import StartedPush
from services.domain.command_writer import Command
from services.errors import CarillonError
from services.process.runner import Service

# What delivery calls.


class Capabilities(NamedTuple):
    """The properties of a channel by which delivery decides.

    `drops_repeats`: devices drop a message that they have, so a push may be sent before its start is in the log.
    `starts_whole`: a push starts in all of its known partitions at once, because its rate is counted from each start.
    """

    drops_repeats: bool
    starts_whole: bool


class DeliveryChannel(Service, Protocol):
    """A way in which messages reach devices, run as a service.

    It sends pushes from their start to their end, and records an outcome of each message on each device with the
    OutcomeRecorder. Its `run` resumes what an earlier process left, and stops sending when it is cancelled.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def start(self, push: StartedPush, partitions: Sequence[int]) -> None:
        """Send a push to the devices of its audience in partitions where it has just started."""
        ...

    def starting_cost(self, appkey: str, partition: int, listed: int | None) -> float:
        """Return the work of `start` in a partition, in about microseconds.

        `listed`: messages to devices that the push lists; None for other audiences.
        """
        ...


# What a push service is asked for.

Credentials = TypeVar("Credentials")
Request = TypeVar("Request")
Answer = TypeVar("Answer", bound="ServiceAnswer")
_Credentials_contra = TypeVar("_Credentials_contra", contravariant=True)
_Request_co = TypeVar("_Request_co", covariant=True)
_Request_contra = TypeVar("_Request_contra", contravariant=True)
_Answer_co = TypeVar("_Answer_co", bound="ServiceAnswer", covariant=True)
_Answer_contra = TypeVar("_Answer_contra", bound="ServiceAnswer", contravariant=True)


class CredentialsError(CarillonError):
    """An app's credentials cannot be used. The text says what an operator has to do, and never quotes a secret."""


class Recipient(NamedTuple):
    """A device that a message is for.

    `address`: where the service reaches the device, such as a token; "" if it has none any more. `active_ms`: when the
    app was last opened. `token`, `p256dh`, `auth`: the device's token and the keys of its Web Push subscription, for a
    recipient on a channel on which devices set addresses.
    """

    appkey: str
    partition: int
    number: int
    address: str
    active_ms: int = 0
    token: str = ""
    p256dh: bytes = b""
    auth: bytes = b""


class ServiceAnswer(Protocol):
    """A service's answer to a request, or the absence of one."""

    @property
    def reason(self) -> str:
        """The service's reason, recorded with a failed message and shown to people; "" only if it has accepted the
        message.
        """
        ...


class PendingRequest(Protocol[_Request_co, _Answer_contra]):
    """A request submitted to a sender, which calls either `answered` or `skipped`, once."""

    @property
    def request(self) -> _Request_co: ...

    def is_wanted(self) -> bool:
        """Whether to send the request; called right before it is sent."""
        ...

    def answered(self, answer: _Answer_contra) -> None: ...

    def skipped(self) -> None:
        """The request was not sent because it was no longer wanted."""
        ...


class Sender(Protocol[_Request_contra, _Answer_co]):
    """Sends requests to a service with one app's credentials, over connections that apps may share."""

    def submit(self, pending: PendingRequest[_Request_contra, _Answer_co], /) -> None:
        """Send the request as soon as a connection has capacity; the caller bounds the number that it submits.

        A request that the service would certainly refuse is answered as the service would, and not sent.
        """
        ...


class Encoded(NamedTuple, Generic[Request]):
    """A request. `badge`: the badge that the device is sent, None if it stays unchanged."""

    request: Request
    badge: int | None = None


class PushEncoder(Protocol[_Credentials_contra, Request]):
    """Makes the requests of one push.

    The parts that are the same for all devices are made once, when the encoder is made.
    """

    def encode(self, msgid: int, recipient: Recipient, credentials: _Credentials_contra, /) -> Encoded[Request]:
        """Return the request for one device. Retries send it again, so it must name the message to the service."""
        ...


class AppLimits(NamedTuple):
    """Bounds of one app at a service.

    `window`: messages that wait for a connection or an answer. `delayed_messages`: messages that wait for a retry;
    beyond it they wait for the push's next pass over its audience. `delayed_devices`: beyond it only the refused
    message is delayed, not its device. `server_window`: those of `window` that one of the service's servers may hold.
    `waiting_claims`: messages claimed beyond `window`, at most, in place of those that wait for a retry or a server, so
    that messages for other servers are claimed meanwhile.
    """

    window: int = 2_000
    server_window: int = 2_000
    waiting_claims: int = 0
    delayed_messages: int = 10_000
    delayed_devices: int = 10_000


class PushService(Protocol[Credentials, Request, Answer]):
    """The port to one push service: what differs between services, for a ServiceChannel."""

    @property
    def channel(self) -> "Channel.ValueType": ...

    @property
    def title(self) -> str:
        """The name of the service's devices for operators, such as `iOS`."""
        ...

    @property
    def limits(self) -> AppLimits: ...

    @property
    def no_credentials(self) -> str:
        """The alarm when a push waits because its app has no credentials: how to set them."""
        ...

    @property
    def apps_stopped(self) -> Gauge:
        """Number of apps whose circuit is not closed."""
        ...

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        """Begin, before any other call. `is_in_use`: whether pushes of an app were sent since."""
        ...

    async def close(self) -> None:
        """Close all connections; requests in flight are answered as unknown, others not at all."""
        ...

    def can_carry(self, push: StartedPush) -> bool:
        """Whether the service can show the push's message, also shortened."""
        ...

    def server(self, recipient: Recipient) -> str:
        """Return which of the service's servers takes the recipient's messages; "" where one takes all."""
        ...

    def credentials_of(self, app: App) -> Credentials | None:
        """Return the app's credentials, or None if it has none, so that nothing can be sent for it."""
        ...

    def encoder(self, push: StartedPush) -> PushEncoder[Credentials, Request]: ...

    def sender(self, credentials: Credentials, history: "RetryHistory") -> Sender[Request, Answer]:
        """Return the sender for an attempt of a message with this history. CredentialsError: they are unusable."""
        ...

    def react(
        self, answer: Answer, history: "RetryHistory", recipient: Recipient, credentials: Credentials | None
    ) -> "Reaction":
        """Decide what follows from an answer; `credentials`: the app's at present."""
        ...

    def removal(self, removal: "AddressRemoval") -> Command:
        """Return the command that removes an address from the registry."""
        ...


class ServedChannel(NamedTuple):
    """A push service as delivery runs it.

    `simulator`: what answers in the service's place, so that nothing leaves the machine; None: the service does.
    `check`: has the service try out an app's credentials; None if it cannot.
    """

    service: PushService[Any, Any, Any]
    simulator: Service | None = None
    check: Callable[[App], Awaitable[CheckChannelResponse]] | None = None


class AddressRemoval(NamedTuple):
    """The removal of an address that its service calls invalid.

    `registered_before_ms`: an address that registered later stays; 0: it is removed in any case. `done` is called when
    the command is in the log, and also when the append failed: the service refuses the next push to the address again.
    """

    recipient: Recipient
    reason: str
    registered_before_ms: int
    done: Callable[[], None]


# Messages that a push service is to show in place of a connection of the device's own: handing_over.py claims them.


class ClaimedMessage(NamedTuple):
    """One message on one device that a channel has claimed.

    `claim`: a number that no other claim of this process has. A channel may claim a message again that was recalled.
    """

    push: StartedPush
    partition: int
    number: int
    msgid: int
    channel: int
    claim: int = 0

    @property
    def device(self) -> DeviceAddress:
        return DeviceAddress(self.push.send.appkey, self.partition, self.number)

    @property
    def key(self) -> tuple[int, int]:
        """A key that no other claim of the device's messages has."""
        return self.msgid, self.claim


class ClaimAnswer(Enum):
    """A sender's answer about a claimed message. Every answer but UNANSWERED and POSTPONED is final."""

    ACCEPTED = auto()
    """The channel has taken over the message."""

    REFUSED = auto()
    """The channel has refused it for certain, and another way may be tried: as when the address is invalid."""

    FAILED = auto()
    """The channel has refused it for certain, and no other way is to be tried."""

    UNANSWERED = auto()
    """A request may have arrived and has no answer; the sender repeats it while `MessageClaims.may_request`."""

    POSTPONED = auto()
    """The channel certainly does not have the message: it refused the request, or too many requests wait for its
    server.

    It is asked again later while `MessageClaims.may_request`.
    """

    GIVEN_UP = auto()
    """`MessageClaims.may_request` does not hold any more, or there is nobody to ask; no further request is made."""


class MessageClaims(Protocol):
    """The claimed messages, as their senders see them."""

    def may_request(self, message: ClaimedMessage) -> bool:
        """Whether the channel still has the message to show; it may be recalled while no request is on its way."""
        ...

    def begin_request(self, message: ClaimedMessage) -> bool:
        """Return `may_request`, and if so, note that a request leaves; to be called right before each request."""
        ...

    def is_uncertain(self, message: ClaimedMessage) -> bool:
        """Whether a request may have arrived without an answer, also one of a former process."""
        ...

    def answered(self, message: ClaimedMessage, answer: ClaimAnswer, reason: str = "") -> None:
        """Take a sender's answer, with the service's reason or "". Each message is answered, once or more often."""
        ...


# What follows from an answer. Its reason is recorded, so steps name none, and a table can hold them.


@dataclass(frozen=True, slots=True)
class RecordSent:
    """Record the message as sent."""


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """Record the message as failed: a retry would fail too."""


@dataclass(frozen=True, slots=True)
class RemoveAddress:
    """Remove the address from the registry, then record the message as failed.

    `registered_before_ms`: keep an address that registered later; 0: remove it in any case.
    """

    registered_before_ms: int = 0


@dataclass(frozen=True, slots=True)
class ResendOnce:
    """Send again at once, in another way that `variant` names; it is in the message's history from then on."""

    variant: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Send after the back-off of the message's history, and after `at_least_ms`.

    `is_unknown`: it is unknown whether the service accepted the message, for the answer's reason.
    """

    at_least_ms: int = 0
    is_unknown: bool = False


_SECONDS = re.compile(r"[0-9]{1,9}")
_MAX_RETRY_AFTER_MS = 86_400_000


def retry_after_ms(value: str, now_ms: int) -> int:
    """Return the wait of a Retry-After header (RFC 9110: seconds or a date), a day at most; 0 for an unusable one."""
    if not value:
        return 0
    if _SECONDS.fullmatch(value):
        return min(int(value) * 1000, _MAX_RETRY_AFTER_MS)
    try:
        wait_ms = int(parsedate_to_datetime(value).timestamp() * 1000) - now_ms
    except (ValueError, TypeError, OverflowError):
        return 0
    return min(max(wait_ms, 0), _MAX_RETRY_AFTER_MS)


@dataclass(frozen=True, slots=True)
class DelayDevice:
    """Send nothing to the device for the back-off of the message's history, and for `at_least_ms`; then retry."""

    at_least_ms: int = 0


Step = RecordSent | RecordFailed | RemoveAddress | ResendOnce | RetryLater | DelayDevice


class CircuitChange(Enum):
    """Effect of an answer on the circuit breaker of the whole app."""

    NONE = auto()
    OPEN = auto()
    """The service does not accept the app's credentials: send nothing of it, but single probes after a back-off."""

    CLOSE = auto()
    """The service has accepted the app's credentials."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """The step for a message, and the effect on its app. `alarm`: what an operator has to know, "" if nothing."""

    step: Step
    circuit: CircuitChange = CircuitChange.NONE
    alarm: str = ""


FIRST_BACKOFF_MS = 1_000
MAX_BACKOFF_MS = 900_000


def backoff_ms(retries: int) -> int:
    """The wait before the given retry, counted from 1."""
    return min(FIRST_BACKOFF_MS << min(retries - 1, 30), MAX_BACKOFF_MS)


@dataclass(frozen=True, slots=True)
class RetryHistory:
    """The retries of one message for one device so far.

    `retries`: back-offs. `variants`: those of ResendOnce. `unknown`: why it is unknown whether the service has accepted
    the message already; "" if it has not. `refused`: the service's last reason to have it asked again later.
    """

    retries: int = 0
    variants: frozenset[str] = frozenset()
    unknown: str = ""
    refused: str = ""

    @property
    def next_backoff_ms(self) -> int:
        return backoff_ms(self.retries + 1)

    def apply(self, step: Step, reason: str) -> "RetryHistory":
        """Return the history after a step. `reason`: the answer's."""
        match step:
            case ResendOnce(variant):
                return replace(self, variants=self.variants | {variant})
            case RetryLater(is_unknown=True):
                return replace(self, retries=self.retries + 1, unknown=reason)
            case RetryLater() | DelayDevice():
                return replace(self, retries=self.retries + 1, refused=reason or self.refused)
            case RecordSent() | RecordFailed() | RemoveAddress():
                return self
            case _:
                assert_never(step)
