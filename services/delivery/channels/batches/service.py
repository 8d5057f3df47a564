"""A vendor of phones as a `PushService`, whose messages go by a `BatchSender`."""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from prometheus_client import Gauge

from protos.delivery.v1.delivery_pb2 import CheckChannelResponse
from protos.push.v1.push_pb2 import AndroidStyle, ChannelOptions, Message
from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.channels import AddressRemoval, AppLimits, Encoded, Reaction, Recipient, RetryHistory
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.batches.answers import PLAIN, Answer, AnswerAction, react
from services.delivery.channels.batches.sender import BatchMessage, BatchRequest, BatchSender, VariantSender
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.shared_senders import SharedSenders
from services.delivery.state.audience_parts import DeviceAddress
from services.delivery.state.pushes import StartedPush
from services.domain.addresses import service_name
from services.domain.channel_credentials.limits import VendorLimits
from services.domain.command_writer import Command
from services.process.clock import Clock
from services.process.metrics import CHANNEL_STOPPED

_CHECK_TOKEN = "carillon-check"  # noqa: S105  # a device that nobody has

_ACCEPTED = frozenset((AnswerAction.ACCEPT, AnswerAction.REMOVE))
"""Answers to a check that show that the vendor accepts the credentials: it complains of the address, or of nothing."""


class VendorCredentials(Protocol):
    """An app's credentials. Apps whose credentials are equal share a sender."""

    @property
    def limits(self) -> VendorLimits: ...

    def __hash__(self) -> int: ...


Account = TypeVar("Account", bound=VendorCredentials)
_Account_contra = TypeVar("_Account_contra", bound=VendorCredentials, contravariant=True)


class MessageOf(Protocol[_Account_contra]):
    """Makes the message of a push for all devices, shortened to what the vendor takes. `expires_ms`: of the push."""

    def __call__(
        self, message: Message, expires_ms: int, options: ChannelOptions, credentials: _Account_contra, /
    ) -> BatchMessage: ...


class Vendor(NamedTuple, Generic[Account]):
    """What distinguishes one vendor's service. `title`: its name for people.

    `no_credentials`: the alarm when messages wait because an app has none. `missing`: what a check of such an app says.
    `carries_data`: whether it takes messages that only the app sees.
    """

    channel: "Channel.ValueType"
    title: str
    no_credentials: str
    missing: str
    message: MessageOf[Account]
    carries_data: bool = True


class VendorServers:
    """The servers of a vendor, connected to when first needed: trusted certificates take 30 ms to load."""

    def __init__(self, channel: str, clock: Clock, authority: str | None, max_answer_bytes: int) -> None:
        """`authority`: PEM text of trusted certificates; None for the system's. `channel`: its name in metrics."""
        self._made_of = channel, clock, authority, max_answer_bytes
        self._servers: dict[str, Http1Server] = {}

    def get(self, url: str) -> Http1Server:
        """Return the server of a URL, whose path does not matter."""
        if url not in self._servers:
            channel, clock, authority, max_answer_bytes = self._made_of
            self._servers[url] = Http1Server(channel, url, clock, authority, max_answer_bytes)
        return self._servers[url]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


class VendorSenders(Generic[Account, Answer]):
    """The senders of a vendor, one for each set of credentials; all use the same servers."""

    def __init__(
        self, name: str, servers: VendorServers, make: Callable[[Account], BatchSender[Answer]], clock: Clock
    ) -> None:
        self._servers = servers
        self._make = make
        self._senders: SharedSenders[Account, BatchSender[Answer]] = SharedSenders(name, clock)

    def get(self, credentials: Account) -> BatchSender[Answer]:
        """Return the sender of the credentials, to send by it now."""
        return self._senders.get(credentials, lambda: self._make(credentials))

    async def close(self) -> None:
        await self._senders.close()
        self._servers.close()


class VendorService(Generic[Account, Answer]):
    """Makes an app's messages for a vendor, and decides what follows from its answers.

    `shards`: how many instances of delivery share an app's speed.
    """

    limits = AppLimits()
    shards = 1

    def __init__(
        self,
        vendor: Vendor[Account],
        open_senders: Callable[[], VendorSenders[Account, Answer]],
        credentials_of: Callable[[App], Account | None],
        clock: Clock,
    ) -> None:
        self.vendor = vendor
        self.apps_stopped: Gauge = CHANNEL_STOPPED.labels(service_name(vendor.channel))
        self._open_senders = open_senders
        self._credentials_of = credentials_of
        self._clock = clock
        self._senders: VendorSenders[Account, Answer] | None = None

    @property
    def channel(self) -> "Channel.ValueType":
        return self.vendor.channel

    @property
    def title(self) -> str:
        return self.vendor.title

    @property
    def no_credentials(self) -> str:
        return self.vendor.no_credentials

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        self._senders = self._open_senders()

    async def close(self) -> None:
        if self._senders is not None:
            await self._senders.close()

    def can_carry(self, push: StartedPush) -> bool:
        """Whether the vendor can show the message: any notification, because it is shortened to what fits."""
        return self.vendor.carries_data or push.send.message.is_notif

    def server(self, recipient: Recipient) -> str:
        return ""

    def credentials_of(self, app: App) -> Account | None:
        return self._credentials_of(app)

    def encoder(self, push: StartedPush) -> "VendorEncoder[Account]":
        return VendorEncoder(self.vendor.message, push)

    def sender(self, credentials: Account, history: RetryHistory) -> VariantSender[Answer]:
        assert self._senders is not None
        sender = self._senders.get(credentials)
        sender.per_s = credentials.limits.per_s / self.shards
        return VariantSender(sender, is_plain=PLAIN in history.variants)

    def react(
        self, answer: Answer, history: RetryHistory, recipient: Recipient, credentials: Account | None
    ) -> Reaction:
        return react(answer, history)

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that removes the address, unless the device has set another one since."""
        return cleared_address(self.channel, removal)

    async def check(self, credentials: Account) -> Answer:
        """Have the vendor judge a message to an address that nobody has; return the answer."""
        assert self._senders is not None
        content = Message(is_notif=True, content="check", android=AndroidStyle(title="check"))
        message = self.vendor.message(content, self._clock.now_ms(), ChannelOptions(), credentials)
        return await self._senders.get(credentials).check(message, _CHECK_TOKEN)


class VendorCheck(Generic[Account, Answer]):
    """Tries out whether a vendor accepts an app's credentials: it then complains of the address alone."""

    def __init__(self, service: VendorService[Account, Answer], *, simulated: bool) -> None:
        self._service = service
        self._simulated = simulated

    async def __call__(self, app: App) -> CheckChannelResponse:
        credentials = self._service.credentials_of(app)
        if credentials is None:
            return CheckChannelResponse(reason=self._service.vendor.missing)
        answer = await self._service.check(credentials)
        accepted = answer.action in _ACCEPTED
        return CheckChannelResponse(accepted=accepted, reason=answer.reason or answer.code, simulated=self._simulated)


class VendorEncoder(Generic[Account]):
    """Makes the requests of one push; what is alike for all devices is made once."""

    def __init__(self, message_of: MessageOf[Account], push: StartedPush) -> None:
        self._message_of = message_of
        self._push = push
        self._credentials: Account | None = None
        self._message: BatchMessage

    def encode(self, msgid: int, recipient: Recipient, credentials: Account, /) -> Encoded[BatchRequest]:
        if credentials is not self._credentials:
            send = self._push.send
            self._message = self._message_of(send.message, self._push.expires_ms, send.channel, credentials)
            self._credentials = credentials
        device = DeviceAddress(recipient.appkey, recipient.partition, recipient.number)
        return Encoded(BatchRequest(self._message, msgid, recipient.address, device))
