"""Firebase Cloud Messaging as a `PushService`."""

import re
from collections.abc import Callable

from prometheus_client import Gauge

from protos.delivery.v1.delivery_pb2 import CheckChannelResponse
from protos.push.v1.push_pb2 import Message
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.channels import AddressRemoval, AppLimits, Encoded, Reaction, Recipient, RetryHistory
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.fcm.request import FcmTarget, fcm_content, fcm_request
from services.delivery.channels.fcm.responses import UNKNOWN, FcmAnswer, react
from services.delivery.channels.fcm.sender import FcmRequest, FcmSender, FcmSenderPool
from services.delivery.state.pushes import StartedPush
from services.domain.channel_credentials.fcm import AccountSource, ServiceAccount
from services.domain.command_writer import Command
from services.process.clock import Clock
from services.process.metrics import CHANNEL_STOPPED

_NO_ACCOUNT = (
    "the app has no service account for FCM, so its messages wait; set one:"
    " carillon app set APPKEY --fcm-service-account FILE"
)
_FID = re.compile(r"[c-f][A-Za-z0-9_-]{21}")
_CHECK_ADDRESS = "carillon-check:0"
_CHECK_S = 20.0


def target_of(address: str) -> FcmTarget:
    """Return the target with this address; an installation id has 22 characters, a registration token has more."""
    return FcmTarget(address, is_fid=_FID.fullmatch(address) is not None)


class FcmService:
    """Makes an app's messages for Google, and decides what follows from Google's answers."""

    channel: "Channel.ValueType" = Channel.CHANNEL_FCM
    title = "FCM"
    limits = AppLimits()
    no_credentials = _NO_ACCOUNT
    apps_stopped: Gauge = CHANNEL_STOPPED.labels("fcm")

    def __init__(self, open_senders: Callable[[], FcmSenderPool], account_of: AccountSource, clock: Clock) -> None:
        self._open_senders = open_senders
        self._account_of = account_of
        self._clock = clock
        self._senders: FcmSenderPool | None = None

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        self._senders = self._open_senders()

    async def close(self) -> None:
        if self._senders is not None:
            await self._senders.close()

    def can_carry(self, push: StartedPush) -> bool:
        """Whether FCM can show the message: any, because it is shortened to what fits."""
        return True

    def server(self, recipient: Recipient) -> str:
        return ""

    def credentials_of(self, app: App) -> ServiceAccount | None:
        return self._account_of(app)

    def encoder(self, push: StartedPush) -> "FcmEncoder":
        return FcmEncoder(push, self._clock)

    def sender(self, credentials: ServiceAccount, history: RetryHistory) -> FcmSender:
        assert self._senders is not None
        return self._senders.get(credentials)

    def react(
        self, answer: FcmAnswer, history: RetryHistory, recipient: Recipient, credentials: ServiceAccount | None
    ) -> Reaction:
        return react(answer, history)

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that removes the address, unless the device has set another one since."""
        return cleared_address(self.channel, removal)

    async def check(self, account: ServiceAccount) -> FcmAnswer:
        """Have Google validate a message to an address that nobody has, without sending it; return the answer.

        Google has accepted the account if it complains of the address alone.
        """
        assert self._senders is not None
        sender, now_ms = self._senders.get(account), self._clock.now_ms()
        if sender.held_ms:
            return FcmAnswer(429, f"the quota is used up; Google wants no requests for {sender.held_ms // 1000} s")
        content = fcm_content(Message(content="check"), now_ms)
        body = fcm_request(content, FcmTarget(_CHECK_ADDRESS), 0, now_ms, now_ms, dry=True)
        try:
            return await sender.ask(FcmRequest(account.project_id, body), _CHECK_S)
        except TimeoutError:
            return FcmAnswer(UNKNOWN, "no answer in time")


_ACCEPTED = frozenset(((200, ""), (400, "INVALID_ARGUMENT"), (404, "UNREGISTERED"), (403, "SENDER_ID_MISMATCH")))
"""Answers to a check that show that Google accepts the account: it complains of the address, or of nothing."""


class FcmCheck:
    """Tries out whether Google accepts an app's account."""

    def __init__(self, service: FcmService, *, simulated: bool) -> None:
        self._service = service
        self._simulated = simulated

    async def __call__(self, app: App) -> CheckChannelResponse:
        account = self._service.credentials_of(app)
        if account is None:
            return CheckChannelResponse(reason="the app has no usable service account for FCM")
        answer = await self._service.check(account)
        accepted = (answer.status, answer.code) in _ACCEPTED
        reason = f"{answer.status} {answer.reason}" if answer.status and answer.reason else answer.reason
        return CheckChannelResponse(accepted=accepted, reason=reason or "200", simulated=self._simulated)


class FcmEncoder:
    """Makes the requests of one push; what is alike for all devices is made once."""

    def __init__(self, push: StartedPush, clock: Clock) -> None:
        self._content = fcm_content(push.send.message, push.expires_ms)
        self._expires_ms = push.expires_ms
        self._clock = clock

    def encode(self, msgid: int, recipient: Recipient, credentials: ServiceAccount, /) -> Encoded[FcmRequest]:
        target = target_of(recipient.address)
        body = fcm_request(self._content, target, msgid, self._expires_ms, self._clock.now_ms())
        return Encoded(FcmRequest(credentials.project_id, body))
