"""How vendors grant access tokens, for `AccessTokens` to keep."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

import msgspec

from services.delivery.channels.access_tokens import TokenResponse
from services.delivery.channels.http1 import Http1Server
from services.errors import UnavailableError
from services.net.http.client import NoAnswerError

FORM = "application/x-www-form-urlencoded"


def client_token(server: Http1Server, path: str, client_id: str, secret: str) -> Callable[[], Awaitable[TokenResponse]]:
    """Return what asks for a token as a client with a secret (OAuth 2.0, client credentials grant)."""
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    body = urlencode(form).encode()

    async def request() -> TokenResponse:
        return await posted(server, path, FORM, body)

    return request


async def posted(server: Http1Server, path: str, content_type: str, body: bytes) -> TokenResponse:
    """Post a request for a token."""
    try:
        connection = await server.connect()
        answer = await server.post(connection, path, {"content-type": content_type}, body)
    except (UnavailableError, NoAnswerError):
        return TokenResponse(0, b"")
    return TokenResponse(answer.status, answer.body)


def secret_itself(secret: str) -> Callable[[], Awaitable[TokenResponse]]:
    """Return what grants an app's secret, where requests bear it in the place of a token."""

    async def request() -> TokenResponse:
        return granted(secret, 86_400)

    return request


def granted(token: str, life_s: int) -> TokenResponse:
    """Return the answer of a token server that grants a token for some seconds."""
    return TokenResponse(200, msgspec.json.encode({"access_token": token, "expires_in": life_s}))


def refused(code: int, words: str) -> TokenResponse:
    """Return the answer of a token server that does not accept the credentials."""
    return TokenResponse(401, msgspec.json.encode({"error": code, "error_description": words}))
