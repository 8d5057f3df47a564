"""vivo's push service: its call, its access tokens, and the service that delivery asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import md5

import msgspec

from protos.registry.v1.apps_pb2 import CHANNEL_VIVO, App
from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.batches.sender import MAX_ANSWER_BYTES, BatchSender, Post, VendorCall
from services.delivery.channels.batches.service import Vendor, VendorSenders, VendorServers, VendorService
from services.delivery.channels.batches.tokens import granted, posted, refused
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.vivo.request import VivoMessage
from services.delivery.channels.vivo.responses import REFUSED_TOKENS, VivoAnswer, parse_answer
from services.domain.channel_credentials.vivo import VIVO_URL, VivoCredentials
from services.process.clock import Clock

VENDOR = Vendor(
    CHANNEL_VIVO,
    "vivo",
    "the app has no key and secret for vivo, so its messages wait; set them: carillon app set APPKEY"
    " --vivo-app-id ID --vivo-app-key KEY --vivo-app-secret FILE",
    "the app has no usable key and secret for vivo",
    VivoMessage,
    carries_data=False,
)

AUTH_PATH = "/message/auth"
SEND_PATH = "/message/send"
TOKEN_LIFE_S = 7_200
"""How long a token is used: vivo grants it for a day, and asks for another after one or two hours."""

CONNECTIONS = 32
"""Requests at a time, each for one phone."""


@dataclass(frozen=True, slots=True)
class VivoEndpoint:
    """Where requests go. `authority`: PEM text of trusted certificates; None for the system's."""

    url: str = VIVO_URL
    authority: str | None = None


class _Body(msgspec.Struct, rename="camel"):
    result: int
    auth_token: str = ""


_bodies = msgspec.json.Decoder(_Body)


def auth_token(
    credentials: VivoCredentials, server: Http1Server, clock: Clock
) -> Callable[[], Awaitable[TokenResponse]]:
    """Return what asks for a token, by a signature of the ids and the time."""

    async def request() -> TokenResponse:
        now_ms, named = clock.now_ms(), {"appId": credentials.app_id, "appKey": credentials.app_key}
        signed = f"{credentials.app_id}{credentials.app_key}{now_ms}{credentials.app_secret}"
        sign = md5(signed.encode(), usedforsecurity=False).hexdigest()  # as vivo's call demands
        body = msgspec.json.encode({**named, "timestamp": now_ms, "sign": sign})
        response = await posted(server, AUTH_PATH, "application/json", body)
        try:
            found = _bodies.decode(response.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return response
        if found.result == 0:
            return granted(found.auth_token, TOKEN_LIFE_S)
        if found.result in REFUSED_TOKENS:
            return refused(found.result, "id, key, secret or clock refused")
        return TokenResponse(503, b"")

    return request


def _authorised(token: str, body: bytes, now_ms: int) -> Post:
    return Post({"authtoken": token, "content-type": "application/json"}, body)


def vivo_service(
    endpoint: Callable[[], VivoEndpoint], credentials_of: Callable[[App], VivoCredentials | None], clock: Clock
) -> VendorService[VivoCredentials, VivoAnswer]:
    """Return the service. `endpoint` is asked once it is opened."""

    def senders() -> VendorSenders[VivoCredentials, VivoAnswer]:
        at = endpoint()
        servers = VendorServers("vivo", clock, at.authority, MAX_ANSWER_BYTES)

        def sender(credentials: VivoCredentials) -> BatchSender[VivoAnswer]:
            owner = TokenOwner("vivo", "vivo", credentials.app_id, "key and secret", "are they those of this app?")
            call = VendorCall("vivo", SEND_PATH, VivoAnswer, parse_answer, _authorised, connections=CONNECTIONS)
            server = servers.get(at.url)
            return BatchSender(call, server, AccessTokens(owner, auth_token(credentials, server, clock), clock), clock)

        return VendorSenders("vivo", servers, sender, clock)

    return VendorService(VENDOR, senders, credentials_of, clock)
