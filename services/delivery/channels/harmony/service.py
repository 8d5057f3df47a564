"""Huawei's Push Kit of HarmonyOS 5 and later as a `PushService`."""

from collections.abc import Callable

from prometheus_client import Gauge

from protos.delivery.v1.delivery_pb2 import CheckChannelResponse
from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.channels import AddressRemoval, AppLimits, Encoded, Reaction, Recipient, RetryHistory
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.harmony.request import HarmonyMessage
from services.delivery.channels.harmony.responses import HarmonyAnswer
from services.delivery.channels.harmony.sender import SenderPool
from services.delivery.channels.huawei.answers import ACCEPTED, AnswerAction, react
from services.delivery.channels.huawei.batches import BatchRequest, VariantSender
from services.delivery.state.pushes import StartedPush
from services.domain.channel_credentials.harmony import HarmonyAccount
from services.domain.command_writer import Command
from services.process.clock import Clock
from services.process.metrics import CHANNEL_STOPPED

_NO_ACCOUNT = (
    "the app has no service account for HarmonyOS, so its messages wait; set one:"
    " carillon app set APPKEY --harmony-service-account FILE"
)
_CHECK_TOKEN = "carillon-check"  # noqa: S105  # a device that nobody has


class HarmonyService:
    """Makes an app's messages for Huawei, and decides what follows from Huawei's answers."""

    channel: "Channel.ValueType" = Channel.CHANNEL_HARMONY
    title = "HarmonyOS"
    limits = AppLimits()
    no_credentials = _NO_ACCOUNT
    apps_stopped: Gauge = CHANNEL_STOPPED.labels("harmony")

    def __init__(
        self,
        open_senders: Callable[[], SenderPool],
        account_of: Callable[[App], HarmonyAccount | None],
        clock: Clock,
    ) -> None:
        self._open_senders = open_senders
        self._account_of = account_of
        self._clock = clock
        self._senders: SenderPool | None = None

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

    def credentials_of(self, app: App) -> HarmonyAccount | None:
        return self._account_of(app)

    def encoder(self, push: StartedPush) -> "HarmonyEncoder":
        return HarmonyEncoder(push)

    def sender(self, credentials: HarmonyAccount, history: RetryHistory) -> VariantSender[HarmonyAnswer]:
        assert self._senders is not None
        return VariantSender(self._senders.get(credentials))

    def react(
        self, answer: HarmonyAnswer, history: RetryHistory, recipient: Recipient, credentials: HarmonyAccount | None
    ) -> Reaction:
        return react(answer, history)

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that removes the address, unless the device has set another one since."""
        return cleared_address(self.channel, removal)

    async def check(self, account: HarmonyAccount) -> HarmonyAnswer:
        """Have Huawei judge a test message to an address that nobody has; return the answer."""
        assert self._senders is not None
        content = Message(is_notif=True, content="check", android=AndroidStyle(title="check"))
        message = HarmonyMessage(content, self._clock.now_ms(), ChannelOptions(), account)
        return await self._senders.get(account).check(message, _CHECK_TOKEN)


class HarmonyCheck:
    """Tries out whether Huawei accepts an app's account: it then complains of the address alone."""

    def __init__(self, service: HarmonyService, *, simulated: bool) -> None:
        self._service = service
        self._simulated = simulated

    async def __call__(self, app: App) -> CheckChannelResponse:
        account = self._service.credentials_of(app)
        if account is None:
            return CheckChannelResponse(reason="the app has no usable service account for HarmonyOS")
        answer = await self._service.check(account)
        accepted = answer.code == ACCEPTED or answer.action is AnswerAction.REMOVE
        return CheckChannelResponse(accepted=accepted, reason=answer.reason or answer.code, simulated=self._simulated)


class HarmonyEncoder:
    """Makes the requests of one push; what is alike for all devices is made once."""

    def __init__(self, push: StartedPush) -> None:
        self._push = push
        self._account: HarmonyAccount | None = None
        self._message: HarmonyMessage

    def encode(self, msgid: int, recipient: Recipient, credentials: HarmonyAccount, /) -> Encoded[BatchRequest]:
        if credentials is not self._account:
            send = self._push.send
            self._message = HarmonyMessage(send.message, self._push.expires_ms, send.channel, credentials)
            self._account = credentials
        return Encoded(BatchRequest(self._message, msgid, recipient.address))
