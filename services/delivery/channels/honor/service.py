"""Honor's push service: its call, its access tokens, and the service that delivery asks."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from protos.registry.v1.apps_pb2 import CHANNEL_HONOR, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, Post, VendorCall, bearing
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import client_token
from services.delivery.channels.honor.request import HonorMessage
from services.delivery.channels.honor.responses import HonorAnswer, parse_answer
from services.delivery.channels.http1 import Http1Server
from services.domain.channel_credentials.honor import HONOR_TOKEN_URL, HONOR_URL, HonorCredentials
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_HONOR,
    "Honor",
    "the app has no client ID and secret for Honor, so its messages wait; set them: carillon app set APPKEY"
    " --honor-app-id ID --honor-client-id ID --honor-client-secret FILE",
    "the app has no usable client ID and secret for Honor",
    HonorMessage,
)

MAX_TOKENS = 1000
"""Assumed limit of a request, which is that of Huawei, whose service Honor's descends from."""


@dataclass(frozen=True, slots=True)
class HonorEndpoint:
    """Where requests go. `token_url`: the server of access tokens. `authority`: PEM text of trusted certificates."""

    url: str = HONOR_URL
    token_url: str = HONOR_TOKEN_URL
    authority: str | None = None


def _authorised(access_token: str, body: bytes, now_ms: int) -> Post:
    post = bearing(access_token, body, now_ms)
    return post._replace(headers={**post.headers, "timestamp": str(now_ms)})


def _tokens(credentials: HonorCredentials, server: Http1Server, path: str, clock: Clock) -> AccessTokens:
    hint = "are they those of this app in Honor's developer console?"
    owner = TokenOwner("honor", "Honor", credentials.client_id, "client ID and secret", hint)
    return AccessTokens(owner, client_token(server, path, credentials.client_id, credentials.client_secret), clock)


def honor_service(
    endpoint: Callable[[], HonorEndpoint], credentials_of: Callable[[App], HonorCredentials | None], clock: Clock
) -> VendorService[HonorCredentials, HonorAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[HonorCredentials, HonorAnswer]:
        at = endpoint()
        servers = VendorServers("honor", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(credentials: HonorCredentials) -> BatchSender[HonorAnswer]:
            path = f"/api/v1/{quote(credentials.app_id, safe='')}/sendMessage"
            call = VendorCall("honor", path, HonorAnswer, parse_answer, _authorised, MAX_TOKENS)
            tokens = _tokens(credentials, servers.get(at.token_url), urlsplit(at.token_url).path, clock)
            return BatchSender(call, servers.get(at.url), tokens, clock)

        return VendorSenders("Honor", servers, sender, clock)

    return VendorService(VENDOR, senders, credentials_of, clock)
