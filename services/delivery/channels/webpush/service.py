"""Web Push as a `PushService`: the requests of a push, the senders of apps, and what ends a subscription."""

from collections.abc import Callable

from prometheus_client import Gauge

from protos.registry.v1.apps_pb2 import App, Channel
from services.delivery.channels import AddressRemoval, AppLimits, Encoded, Reaction, Recipient, RetryHistory
from services.delivery.channels.addresses import cleared_address
from services.delivery.channels.webpush.encryption import Subscription
from services.delivery.channels.webpush.request import SMALL_BODY_BYTES, WebPushRequest, urgency, web_push_text
from services.delivery.channels.webpush.responses import RENEWED, SMALL, Refusals, WebPushAnswer, react
from services.delivery.channels.webpush.sender import PushServices, WebPushSender
from services.delivery.channels.webpush.vapid import VapidHeaders
from services.delivery.state.pushes import StartedPush
from services.domain.channel_credentials.stored import CredentialsCache
from services.domain.channel_credentials.webpush import WebPushCredentials, open_web_push
from services.domain.command_writer import Command
from services.domain.master_key import Keys
from services.process.clock import Clock
from services.process.metrics import CHANNEL_STOPPED


class WebPushService:
    """Makes an app's requests to push services, and decides what follows from their answers."""

    channel: "Channel.ValueType" = Channel.CHANNEL_WEBPUSH
    title = "Web Push"
    limits = AppLimits(server_window=500, waiting_claims=20_000)
    no_credentials = "the app has no Web Push key; make one: carillon app set APPKEY --webpush new"
    apps_stopped: Gauge = CHANNEL_STOPPED.labels("webpush")

    def __init__(self, open_services: Callable[[], PushServices], keys: Keys, clock: Clock) -> None:
        self._open_services = open_services
        self._credentials = CredentialsCache(open_web_push, keys)
        self._clock = clock
        self._refusals = Refusals()
        self._vapid: dict[bytes, tuple[WebPushCredentials, VapidHeaders]] = {}
        self._services: PushServices | None = None

    def open(self, is_in_use: Callable[[str], bool]) -> None:
        self._services = self._open_services()

    async def close(self) -> None:
        if self._services is not None:
            await self._services.close()

    def can_carry(self, push: StartedPush) -> bool:
        """Every message, shortened where it is too long."""
        return True

    def server(self, recipient: Recipient) -> str:
        """Return the origin of the endpoint: browsers of each vendor have another."""
        return "/".join(recipient.address.split("/", 3)[:3]).lower()

    def credentials_of(self, app: App) -> WebPushCredentials | None:
        return self._credentials(app)

    def encoder(self, push: StartedPush) -> "WebPushEncoder":
        return WebPushEncoder(push)

    def sender(self, credentials: WebPushCredentials, history: RetryHistory) -> WebPushSender:
        assert self._services is not None
        known, vapid = self._vapid.get(credentials.public_key, (None, None))
        if vapid is None or known != credentials:
            vapid = VapidHeaders(credentials, self._clock)
            self._vapid[credentials.public_key] = credentials, vapid
        return WebPushSender(
            self._services,
            vapid,
            credentials.hosts,
            self._clock,
            is_small=SMALL in history.variants,
            is_renewed=RENEWED in history.variants,
        )

    def react(
        self, answer: WebPushAnswer, history: RetryHistory, recipient: Recipient, credentials: WebPushCredentials | None
    ) -> Reaction:
        appkey, endpoint = recipient.appkey, recipient.address
        if 200 <= answer.status < 300:
            self._refusals.accepted(appkey, endpoint)
        return react(answer, history, lambda: self._refusals.judge(appkey, endpoint, self._clock.now_ms()))

    def removal(self, removal: AddressRemoval) -> Command:
        """Return the command that ends the subscription: not the device, nor a subscription that it has set since."""
        return cleared_address(self.channel, removal)


class WebPushEncoder:
    """Makes the requests of one push. They are encrypted when they are sent, each for its own browser."""

    def __init__(self, push: StartedPush) -> None:
        message, expires_ms = push.send.message, push.expires_ms
        self._text = web_push_text(message, expires_ms).push
        self._small = web_push_text(message, expires_ms, SMALL_BODY_BYTES).push
        self._expires_ms = expires_ms
        self._urgency = urgency(message)

    def encode(self, msgid: int, recipient: Recipient, credentials: WebPushCredentials, /) -> Encoded[WebPushRequest]:
        """Return the request to one browser. Retries have the same topic, by which the service replaces a message."""
        subscription = Subscription(recipient.address, recipient.p256dh, recipient.auth)
        return Encoded(WebPushRequest(subscription, msgid, self._text, self._small, self._expires_ms, self._urgency))
