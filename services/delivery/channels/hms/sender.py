"""The senders of HMS: one for each set of credentials, shared by apps; all use the same two servers."""

from dataclasses import dataclass
from functools import partial
from urllib.parse import quote, urlencode, urlsplit

from services.delivery.channels.access_tokens import AccessTokens, TokenOwner, TokenResponse
from services.delivery.channels.hms.responses import HmsAnswer, parse_answer
from services.delivery.channels.http1 import Http1Server
from services.delivery.channels.huawei.batches import MAX_ANSWER_BYTES, BatchSender, HuaweiCall
from services.delivery.channels.shared_senders import SharedSenders
from services.domain.channel_credentials.hms import HUAWEI_TOKEN_URL, HUAWEI_URL, HmsCredentials
from services.errors import UnavailableError
from services.net.http.client import NoAnswerError
from services.process.clock import Clock


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


class HmsSenderPool:
    """Makes and shares the senders of credentials; all go to the same two servers."""

    def __init__(self, endpoint: HmsEndpoint, clock: Clock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._servers: tuple[Http1Server, Http1Server] | None = None
        self._senders: SharedSenders[HmsCredentials, BatchSender[HmsAnswer]] = SharedSenders("HMS", clock)

    def get(self, credentials: HmsCredentials) -> BatchSender[HmsAnswer]:
        """Return the sender of the credentials, to send by it now."""
        return self._senders.get(credentials, partial(self._make, credentials))

    async def close(self) -> None:
        await self._senders.close()
        for server in self._servers or ():
            server.close()

    def _make(self, credentials: HmsCredentials) -> BatchSender[HmsAnswer]:
        endpoint, clock = self._endpoint, self._clock
        if self._servers is None:  # most installations have no credentials, and trusted certificates take 30 ms
            self._servers = (
                Http1Server("hms", endpoint.url, clock, endpoint.authority, MAX_ANSWER_BYTES),
                Http1Server("hms", endpoint.token_url, clock, endpoint.authority),
            )
        server, token_server = self._servers
        tokens = client_tokens(credentials, token_server, urlsplit(endpoint.token_url).path, clock)
        return BatchSender(HuaweiCall("hms", send_path(credentials), HmsAnswer, parse_answer), server, tokens, clock)


def client_tokens(credentials: HmsCredentials, server: Http1Server, path: str, clock: Clock) -> AccessTokens:
    """Return the access tokens of a client (OAuth 2.0, client credentials grant)."""
    form = urlencode(
        {
            "grant_type": "client_credentials",
            "client_id": credentials.client_id,
            "client_secret": credentials.client_secret,
        }
    ).encode()

    async def request() -> TokenResponse:
        try:
            connection = await server.connect()
            answer = await server.post(connection, path, {"content-type": "application/x-www-form-urlencoded"}, form)
        except (UnavailableError, NoAnswerError):
            return TokenResponse(0, b"")
        return TokenResponse(answer.status, answer.body)

    hint = "are they those of this app in AppGallery Connect?"
    owner = TokenOwner("hms", "Huawei", credentials.client_id, "client ID and secret", hint)

    return AccessTokens(owner, request, clock)
