"""OPPO's push service: its call, its access tokens, and the service that delivery asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import urlencode

import msgspec

from protos.registry.v1.apps_pb2 import CHANNEL_OPPO, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, Post, VendorCall
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import FORM, granted, posted, refused
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.oppo.request import OppoMessage
from services.delivery.channels.oppo.responses import REFUSED_TOKENS, OppoAnswer, parse_answer
from services.domain.channel_credentials.oppo import OPPO_URL, OppoCredentials
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_OPPO,
    "OPPO",
    "the app has no key and master secret for OPPO, so its messages wait; set them:"
    " carillon app set APPKEY --oppo-app-key KEY --oppo-master-secret FILE",
    "the app has no usable key and master secret for OPPO",
    OppoMessage,
    carries_data=False,
)

AUTH_PATH = "/server/v1/auth"
SEND_PATH = "/server/v1/message/notification/unicast"
TOKEN_LIFE_S = 86_400
CONNECTIONS = 32
"""Requests at a time, each for one phone."""


@dataclass(frozen=True, slots=True)
class OppoEndpoint:
    """Where requests go. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str = OPPO_URL
    authority: str | None = None


class _Data(msgspec.Struct):
    auth_token: str = ""


class _Body(msgspec.Struct):
    code: int
    data: _Data | None = None


_bodies = msgspec.json.Decoder(_Body)


def auth_token(
    credentials: OppoCredentials, server: Http1Server, clock: Clock
) -> Callable[[], Awaitable[TokenResponse]]:
    """Return what asks for a token, by a signature of the key and the time."""

    async def request() -> TokenResponse:
        now = str(clock.now_ms())
        sign = sha256(f"{credentials.app_key}{now}{credentials.master_secret}".encode()).hexdigest()
        form = {"app_key": credentials.app_key, "timestamp": now, "sign": sign}
        response = await posted(server, AUTH_PATH, FORM, urlencode(form).encode())
        try:
            found = _bodies.decode(response.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return response
        if found.code == 0 and found.data is not None:
            return granted(found.data.auth_token, TOKEN_LIFE_S)
        if found.code in REFUSED_TOKENS:
            return refused(found.code, "key, secret or clock refused")
        return TokenResponse(503, b"")

    return request


def _authorised(token: str, body: bytes, now_ms: int) -> Post:
    return Post({"content-type": FORM}, urlencode({"auth_token": token, "message": body}).encode())


def oppo_service(
    endpoint: Callable[[], OppoEndpoint], credentials_of: Callable[[App], OppoCredentials | None], clock: Clock
) -> VendorService[OppoCredentials, OppoAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[OppoCredentials, OppoAnswer]:
        at = endpoint()
        servers = VendorServers("oppo", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(credentials: OppoCredentials) -> BatchSender[OppoAnswer]:
            owner = TokenOwner("oppo", "OPPO", credentials.app_key, "key and secret", "are they those of this app?")
            call = VendorCall("oppo", SEND_PATH, OppoAnswer, parse_answer, _authorised, connections=CONNECTIONS)
            server = servers.get(at.url)
            return BatchSender(call, server, AccessTokens(owner, auth_token(credentials, server, clock), clock), clock)

        return VendorSenders("OPPO", servers, sender, clock)

    return VendorService(VENDOR, senders, credentials_of, clock)
