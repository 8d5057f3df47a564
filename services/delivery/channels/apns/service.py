"""Apple's push service as a `PushService`: payloads and badges, the two environments, tokens that Apple calls bad."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

from prometheus_client import Gauge

from protos.push.v1.push_pb2 import Message, SendPush
from protos.registry.v1.apps_pb2 import App, Channel
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from services.delivery.channels import (
    AddressRemoval,
    AppLimits,
    Encoded,
    Reaction,
    Recipient,
    RecordFailed,
    RemoveAddress,
    RetryHistory,
    Step,
)
from services.delivery.channels.apns.request import ApnsPush, ApnsResult
from services.delivery.channels.apns.responses import SANDBOX, react
from services.delivery.channels.apns.sender import ApnsSender, ApnsSenderPool, CredentialsSource
from services.delivery.channels.health import Alarms
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.devices import Badges
from services.delivery.state.pushes import StartedPush
from services.domain.apns_credentials import ApnsCredentials, Environment
from services.domain.apns_payload import (
    MAX_BADGE,
    increments_badge,
    payload,
    possession_payload,
    with_badge,
    with_msgid,
)
from services.domain.command_writer import Command, device_command
from services.domain.device_protocol.possession import opened_code
from services.domain.master_key import Keys
from services.errors import CarillonError
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import APNS_MOSTLY_BAD, APNS_STOPPED

_NO_KEY = (
    "the app has no APNs key, so its pushes wait; set one: "
    "carillon app set APPKEY --apns-key FILE --apns-key-id ID --apns-team ID"
)
_MOSTLY_BAD = (
    "Apple calls most tokens of the app bad; its devices stay registered. Does the environment fit its builds, and the "
    "bundle id? carillon app set APPKEY --apns-environment production|sandbox|both (see carillon app show APPKEY)"
)


class ApnsService:
    """Makes an app's pushes for Apple, and decides what follows from Apple's answers."""

    channel: "Channel.ValueType" = Channel.CHANNEL_APNS
    title = "iOS"
    limits = AppLimits()
    no_credentials = _NO_KEY
    apps_stopped: Gauge = APNS_STOPPED

    def __init__(
        self,
        open_senders: Callable[[], ApnsSenderPool],
        credentials_of: CredentialsSource,
        keys: Keys,
        state: DeliveryState,
        alarms: Alarms,
        clock: Clock,
    ) -> None:
        self._open_senders = open_senders
        self._credentials_of = credentials_of
        self._keys = keys
        self._state_badges = state.badges
        self._bad_tokens = state.bad_tokens
        self._alarms = alarms
        self._clock = clock
        self._badges: dict[str, BadgeCounter] = {}
        self._senders: ApnsSenderPool | None = None
        self._is_in_use: Callable[[str], bool] = lambda appkey: False

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        self._senders = self._open_senders()
        self._is_in_use = is_in_use
        self._bad_tokens.watch(self._tokens_changed)

    async def close(self) -> None:
        assert self._senders is not None
        await self._senders.close()
        self._bad_tokens.unwatch()

    def can_carry(self, push: StartedPush) -> bool:
        return True

    def server(self, recipient: Recipient) -> str:
        return ""

    def credentials_of(self, app: App) -> ApnsCredentials | None:
        return self._credentials_of(app)

    def encoder(self, push: StartedPush) -> "ApnsEncoder":
        appkey = push.send.appkey
        if (badges := self._badges.get(appkey)) is None:
            badges = self._badges[appkey] = BadgeCounter(appkey, self._state_badges)
        return ApnsEncoder(push, apns_payload(self._keys, push.send), badges, self._clock)

    def sender(self, credentials: ApnsCredentials, history: RetryHistory) -> ApnsSender:
        assert self._senders is not None
        return self._senders.get(credentials, sandbox=SANDBOX in history.variants)

    def react(
        self, answer: ApnsResult, history: RetryHistory, recipient: Recipient, credentials: ApnsCredentials | None
    ) -> Reaction:
        uses_both = credentials is not None and credentials.environment is Environment.BOTH
        return react(answer, history, uses_both, lambda: self._judge(recipient))

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that removes the device, which for iOS is its token."""
        appkey, token = removal.recipient.appkey, removal.recipient.address
        remove = RemoveDevice(reason=removal.reason, registered_before_ms=removal.registered_before_ms)
        return device_command(DeviceCommand(appkey=appkey, token=token, remove=remove))

    # --- tokens that Apple calls bad

    def _judge(self, recipient: Recipient) -> Step:
        """Return the step for a token that Apple calls bad: remove it once BadTokens is sure of it."""
        appkey, partition, number, *_ = recipient
        if self._bad_tokens.is_watched_as_bad(appkey):
            self._alarm(appkey)
        refused_ms = self._bad_tokens.first_refused_ms(appkey, partition, number, self._clock.now_ms())
        return RecordFailed() if refused_ms is None else RemoveAddress(refused_ms)

    def _tokens_changed(self, appkey: str, is_mostly_bad: bool) -> None:
        APNS_MOSTLY_BAD.inc(1 if is_mostly_bad else -1)
        if is_mostly_bad and self._is_in_use(appkey):
            self._alarm(appkey)

    def _alarm(self, appkey: str) -> None:
        """Log that Apple calls most of the app's tokens bad."""
        judged = self._bad_tokens.mostly_bad(appkey)
        self._alarms.log(appkey, _MOSTLY_BAD, judged.reason if judged else "")


# A push as Apple gets it.


class ApnsEncoder:
    """Makes the requests of one push.

    All devices get the same payload, but for a badge that is incremented, and for the message ids of a push that
    carries these and has one for each device.
    """

    def __init__(self, push: StartedPush, content: bytes, badges: "BadgeCounter", clock: Clock) -> None:
        message = push.send.message
        self._template = self._content = content
        self._msgid: int | None = None
        self._carries_msgid = message.ios.carries_msgid and not message.ios.sealed_possession_code
        self._badges = badges
        self._clock = clock
        self._expires_ms = push.expires_ms
        self._increments_badge = increments_badge(message)
        self._badge = _fixed_badge(message)
        self._push_type: Literal["alert", "background"] = "alert" if message.is_notif else "background"
        self._priority = 10 if message.is_notif else 5

    def encode(self, msgid: int, recipient: Recipient, credentials: ApnsCredentials, /) -> Encoded[ApnsPush]:
        """Return the push to one device. Retries have the same collapse id, so that the device shows them once."""
        badge = self._badge_of(recipient)
        if self._carries_msgid and msgid != self._msgid:
            self._msgid, self._content = msgid, with_msgid(self._template, msgid)
        push = ApnsPush(
            token=recipient.address,
            topic=credentials.topic,
            payload=with_badge(self._content, badge or 0) if self._increments_badge else self._content,
            msgid=msgid,
            expires_ms=self._expires_ms,
            push_type=self._push_type,
            priority=self._priority,
            collapse_id=str(msgid),
        )
        return Encoded(push, badge)

    def _badge_of(self, recipient: Recipient) -> int | None:
        if not self._increments_badge and self._badge is None:
            return None
        partition, number, now_ms = recipient.partition, recipient.number, self._clock.now_ms()
        if self._increments_badge:
            return self._badges.increment(partition, number, recipient.active_ms, now_ms)
        return self._badges.note(partition, number, self._badge or 0, now_ms)


def apns_payload(keys: Keys, send: SendPush) -> bytes:
    """Return the payload of a push; that of a silent push has the possession code that is sealed with these keys.

    A code that cannot be opened is logged, and the device gets an empty one.
    """
    sealed = send.message.ios.sealed_possession_code
    if not sealed:
        return payload(send.message)
    try:
        return possession_payload(opened_code(keys, sealed, send.appkey))
    except CarillonError as error:
        logger.error("a possession code cannot be opened", appkey=send.appkey, msgid=send.msgid, error=str(error))
        return possession_payload("")


def _fixed_badge(message: Message) -> int | None:
    has_badge = message.is_notif and message.ios.HasField("badge") and message.ios.badge >= 0
    return message.ios.badge if has_badge else None


# Badges of an iOS app's devices, for pushes that increment them.

CACHED_DEVICES = 100_000
"""Upper bound of the devices whose latest badge is cached; the least recently used are forgotten first."""


class BadgeCounter:
    """Counts from the last badge a device was sent: as folded from the log, or as assigned since by this process."""

    def __init__(self, appkey: str, badges: Badges) -> None:
        self._appkey = appkey
        self._badges = badges
        self._assigned: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()

    def increment(self, partition: int, number: int, active_ms: int, now_ms: int) -> int:
        """Assign one more than the device shows. Opening the app, last at `active_ms`, clears the badge."""
        badge, assigned_ms = self._assigned.get((partition, number), (0, 0))
        if assigned_ms <= active_ms:
            badge = self._badges.last((self._appkey, partition), number, active_ms)
        return self.note(partition, number, min(badge + 1, MAX_BADGE), now_ms)

    def note(self, partition: int, number: int, badge: int, now_ms: int) -> int:
        """Remember the badge that the device is sent now; returns it."""
        self._assigned[partition, number] = badge, now_ms
        self._assigned.move_to_end((partition, number))
        if len(self._assigned) > CACHED_DEVICES:
            self._assigned.popitem(last=False)
        return badge
