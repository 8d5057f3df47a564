"""Xiaomi's push service: its call, and the service that delivery asks. Requests bear the app's secret itself."""

from collections.abc import Callable
from dataclasses import dataclass

from protos.registry.v1.apps_pb2 import CHANNEL_XIAOMI, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, Post, VendorCall
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import FORM, secret_itself
from services.delivery.channels.xiaomi.request import XiaomiMessage
from services.delivery.channels.xiaomi.responses import XiaomiAnswer, parse_answer
from services.domain.channel_credentials.xiaomi import XIAOMI_URL, XiaomiCredentials
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_XIAOMI,
    "Xiaomi",
    "the app has no secret for Xiaomi, so its messages wait; set it: carillon app set APPKEY"
    " --xiaomi-package NAME --xiaomi-app-secret FILE --xiaomi-channels MARKETING=ID",
    "the app has no usable secret for Xiaomi",
    XiaomiMessage,
)

MAX_TOKENS = 1000
"""The limit of Xiaomi's own library."""

SEND_PATH = "/v3/message/regid"


@dataclass(frozen=True, slots=True)
class XiaomiEndpoint:
    """Where requests go. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str = XIAOMI_URL
    authority: str | None = None


def _authorised(secret: str, body: bytes, now_ms: int) -> Post:
    return Post({"authorization": f"key={secret}", "content-type": f"{FORM};charset=UTF-8"}, body)


def xiaomi_service(
    endpoint: Callable[[], XiaomiEndpoint], credentials_of: Callable[[App], XiaomiCredentials | None], clock: Clock
) -> VendorService[XiaomiCredentials, XiaomiAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[XiaomiCredentials, XiaomiAnswer]:
        at = endpoint()
        servers = VendorServers("xiaomi", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(credentials: XiaomiCredentials) -> BatchSender[XiaomiAnswer]:
            owner = TokenOwner("xiaomi", "Xiaomi", credentials.package, "secret", "is it that of this package?")
            call = VendorCall("xiaomi", SEND_PATH, XiaomiAnswer, parse_answer, _authorised, MAX_TOKENS)
            tokens = AccessTokens(owner, secret_itself(credentials.app_secret), clock)
            return BatchSender(call, servers.get(at.url), tokens, clock)

        return VendorSenders("Xiaomi", servers, sender, clock)

    return VendorService(VENDOR, senders, credentials_of, clock)
