"""Huawei's Push Kit (HMS): its call, its access tokens, and the service that delivery asks."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from protos.registry.v1.apps_pb2 import CHANNEL_HMS, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, VendorCall
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import client_token
from services.delivery.channels.hms.request import HmsMessage
from services.delivery.channels.hms.responses import HmsAnswer, parse_answer
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.huawei import MAX_TOKENS
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL, HUAWEI_URL, HmsCredentials
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_HMS,
    "HMS",
    "the app has no client ID and secret for HMS, so its messages wait; set them:"
    " carillon app set APPKEY --hms-client-id ID --hms-client-secret FILE",
    "the app has no usable client ID and secret for HMS",
    HmsMessage,
)


@dataclass(frozen=True, slots=True)
class HmsEndpoint:
    """Where requests go. `token_url`: the server of access tokens. `authority`: PEM text of trusted certificates."""

    url: str = HUAWEI_URL
    token_url: str = HUAWEI_TOKEN_URL
    authority: str | None = None


def send_path(credentials: HmsCredentials) -> str:
    """Return the path of the call: that of version 2 names the project, that of version 1 the app."""
    if credentials.project_id:
        return f"/v2/{quote(credentials.project_id, safe='')}/messages:send"
    return f"/v1/{quote(credentials.client_id, safe='')}/messages:send"


def client_tokens(credentials: HmsCredentials, server: Http1Server, path: str, clock: Clock) -> AccessTokens:
    """Return the access tokens of a client."""
    hint = "are they those of this app in AppGallery Connect?"
    owner = TokenOwner("hms", "Huawei", credentials.client_id, "client ID and secret", hint)
    return AccessTokens(owner, client_token(server, path, credentials.client_id, credentials.client_secret), clock)


def hms_service(
    endpoint: Callable[[], HmsEndpoint], credentials_of: Callable[[App], HmsCredentials | None], clock: Clock
) -> VendorService[HmsCredentials, HmsAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[HmsCredentials, HmsAnswer]:
        at = endpoint()
        servers = VendorServers("hms", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(credentials: HmsCredentials) -> BatchSender[HmsAnswer]:
            tokens = client_tokens(credentials, servers.get(at.token_url), urlsplit(at.token_url).path, clock)
            call = VendorCall("hms", send_path(credentials), HmsAnswer, parse_answer, max_tokens=MAX_TOKENS)
            return BatchSender(call, servers.get(at.url), tokens, clock)

        return VendorSenders("HMS", servers, sender, clock)

    return VendorService(VENDOR, senders, credentials_of, clock)
