"""Clients that the simulator knows, and the access tokens that it grants them (OAuth 2.0, client credentials grant)."""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from services.domain.channel_credentials.hms import HmsCredentials

TOKEN_LIFE_S = 3_600
_MAX_TOKENS = 10_000
_FORM = frozenset(("grant_type", "client_id", "client_secret"))


class HmsGrantError(Exception):
    """Huawei's refusal of a token: its `error` and `error_description`."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}")
        self.error = error
        self.description = description


class ExpiredError(Exception):
    """The access token was valid once."""


class _Token(NamedTuple):
    client_id: str
    expires_ms: int


class Clients:
    """The clients and their access tokens; a client may send for its own app and project alone."""

    def __init__(self) -> None:
        self.granted = 0
        self._clients: dict[str, HmsCredentials] = {}
        self._tokens: OrderedDict[str, _Token] = OrderedDict()

    def register(self, client: HmsCredentials) -> None:
        """Grant tokens to whoever knows the client's secret."""
        self._clients[client.client_id] = client

    def delete(self, client_id: str) -> None:
        """Grant no further tokens; those that were granted stay valid."""
        del self._clients[client_id]

    def paths(self, client_id: str) -> frozenset[str]:
        """Return the paths on which the client may send."""
        client = self._clients.get(client_id)
        of_project = [f"/v2/{client.project_id}/messages:send"] if client and client.project_id else []
        return frozenset((f"/v1/{client_id}/messages:send", *of_project))

    def grant(self, body: bytes, now_ms: int) -> Mapping[str, object]:
        """Return the answer to a form. GrantError."""
        try:
            form = dict(parse_qsl(body.decode(), strict_parsing=True))
        except (UnicodeDecodeError, ValueError):
            form = {}
        if form.get("grant_type") != "client_credentials" or form.keys() != _FORM:
            raise HmsGrantError("unsupported_grant_type", "the form is not that of a client")
        client = self._clients.get(form["client_id"])
        if client is None or not hmac.compare_digest(client.client_secret.encode(), form["client_secret"].encode()):
            raise HmsGrantError("invalid_client", "client id or secret is wrong")
        token = f"DAED/{secrets.token_urlsafe(64)}"  # with a slash, which Huawei's JSON escapes
        self._tokens[token] = _Token(client.client_id, now_ms + 1000 * TOKEN_LIFE_S)
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
        self.granted += 1
        return {"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"}

    def expire_tokens(self) -> None:
        """End the life of the tokens granted so far."""
        self._tokens = OrderedDict((text, token._replace(expires_ms=0)) for text, token in self._tokens.items())

    def client_of(self, authorization: str, now_ms: int) -> str | None:
        """Return the id of the client that bears this header; None: it has no token. ExpiredError."""
        scheme, _, text = authorization.partition(" ")
        token = self._tokens.get(text)
        if scheme.lower() != "bearer" or token is None:
            return None
        if token.expires_ms <= now_ms:
            raise ExpiredError
        return token.client_id
