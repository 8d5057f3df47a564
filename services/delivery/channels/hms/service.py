"""Huawei's Push Kit (HMS) as a `PushService`."""

from collections.abc import Callable

from prometheus_client import Gauge

from protos.delivery.v1.delivery_pb2 import CheckChannelResponse
from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.channels import AddressRemoval, AppLimits, Encoded, Reaction, Recipient, RetryHistory
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.hms.request import HmsMessage
from services.delivery.channels.hms.responses import HmsAnswer
from services.delivery.channels.hms.sender import HmsSenderPool
from services.delivery.channels.huawei.answers import ACCEPTED, ALL_INVALID, PLAIN, SOME_REFUSED, react
from services.delivery.channels.huawei.batches import BatchRequest, VariantSender
from services.delivery.state.pushes import StartedPush
from services.domain.channel_credentials.hms import HmsCredentials
from services.domain.command_writer import Command
from services.process.clock import Clock
from services.process.metrics import CHANNEL_STOPPED

_NO_CREDENTIALS = (
    "the app has no client ID and secret for HMS, so its messages wait; set them:"
    " carillon app set APPKEY --hms-client-id ID --hms-client-secret FILE"
)
_CHECK_TOKEN = "carillon-check"  # noqa: S105  # a device that nobody has


class HmsService:
    """Makes an app's messages for Huawei, and decides what follows from Huawei's answers."""

    channel: "Channel.ValueType" = Channel.CHANNEL_HMS
    title = "HMS"
    limits = AppLimits()
    no_credentials = _NO_CREDENTIALS
    apps_stopped: Gauge = CHANNEL_STOPPED.labels("hms")

    def __init__(
        self,
        open_senders: Callable[[], HmsSenderPool],
        credentials_of: Callable[[App], HmsCredentials | None],
        clock: Clock,
    ) -> None:
        self._open_senders = open_senders
        self._credentials_of = credentials_of
        self._clock = clock
        self._senders: HmsSenderPool | None = None

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        self._senders = self._open_senders()

    async def close(self) -> None:
        if self._senders is not None:
            await self._senders.close()

    def can_carry(self, push: StartedPush) -> bool:
        """Whether Huawei can show the message: any, because it is shortened to what fits."""
        return True

    def server(self, recipient: Recipient) -> str:
        return ""

    def credentials_of(self, app: App) -> HmsCredentials | None:
        return self._credentials_of(app)

    def encoder(self, push: StartedPush) -> "HmsEncoder":
        return HmsEncoder(push)

    def sender(self, credentials: HmsCredentials, history: RetryHistory) -> VariantSender[HmsAnswer]:
        assert self._senders is not None
        return VariantSender(self._senders.get(credentials), is_plain=PLAIN in history.variants)

    def react(
        self, answer: HmsAnswer, history: RetryHistory, recipient: Recipient, credentials: HmsCredentials | None
    ) -> Reaction:
        return react(answer, history)

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that removes the address, unless the device has set another one since."""
        return cleared_address(self.channel, removal)

    async def check(self, credentials: HmsCredentials) -> HmsAnswer:
        """Have Huawei validate a message to an address that nobody has, without sending it; return the answer."""
        assert self._senders is not None
        content = Message(is_notif=True, content="check", android=AndroidStyle(title="check"))
        message = HmsMessage(content, self._clock.now_ms(), ChannelOptions(), credentials)
        return await self._senders.get(credentials).check(message, _CHECK_TOKEN)


_CREDENTIALS_ACCEPTED = frozenset((ACCEPTED, SOME_REFUSED, ALL_INVALID))
"""Answers to a check that show that Huawei accepts the credentials: it complains of the address, or of nothing."""


class HmsCheck:
    """Tries out whether Huawei accepts an app's credentials."""

    def __init__(self, service: HmsService, *, simulated: bool) -> None:
        self._service = service
        self._simulated = simulated

    async def __call__(self, app: App) -> CheckChannelResponse:
        credentials = self._service.credentials_of(app)
        if credentials is None:
            return CheckChannelResponse(reason="the app has no usable client ID and secret for HMS")
        answer = await self._service.check(credentials)
        accepted = answer.code in _CREDENTIALS_ACCEPTED
        return CheckChannelResponse(accepted=accepted, reason=answer.reason or answer.code, simulated=self._simulated)


class HmsEncoder:
    """Makes the requests of one push; what is alike for all devices is made once."""

    def __init__(self, push: StartedPush) -> None:
        self._push = push
        self._credentials: HmsCredentials | None = None
        self._message: HmsMessage

    def encode(self, msgid: int, recipient: Recipient, credentials: HmsCredentials, /) -> Encoded[BatchRequest]:
        if credentials is not self._credentials:
            send = self._push.send
            self._message = HmsMessage(send.message, self._push.expires_ms, send.channel, credentials)
            self._credentials = credentials
        return Encoded(BatchRequest(self._message, msgid, recipient.address))
