"""Access tokens that a simulator has granted, and OAuth's form by which clients ask for them."""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from services.push_simulator.forms import read_form

_MAX_TOKENS = 10_000
_CLIENT_FORM = frozenset(("grant_type", "client_id", "client_secret"))


class GrantRefusedError(Exception):
    """A refusal of a token (OAuth 2.0): its `error` and `error_description`."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(f"{error}: {description}")
        self.error = error
        self.description = description


class TokenExpiredError(Exception):
    """The access token was valid once."""


class _Token(NamedTuple):
    client_id: str
    expires_ms: int


class GrantedTokens:
    """The newest tokens, each of one client and valid for `life_s`. `granted` counts them since the start."""

    def __init__(self, life_s: int, prefix: str = "") -> None:
        self.life_s = life_s
        self.granted = 0
        self._prefix = prefix
        self._tokens: OrderedDict[str, _Token] = OrderedDict()

    def grant(self, client_id: str, now_ms: int) -> str:
        """Return a new token of the client."""
        token = f"{self._prefix}{secrets.token_urlsafe(64)}"
        self._tokens[token] = _Token(client_id, now_ms + 1000 * self.life_s)
        while len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
        self.granted += 1
        return token

    def expire(self) -> None:
        """End the life of the tokens granted so far."""
        self._tokens = OrderedDict((text, token._replace(expires_ms=0)) for text, token in self._tokens.items())

    def client_of(self, text: str, now_ms: int) -> str | None:
        """Return the id of the client whose token it is; None: it is no token. TokenExpiredError."""
        token = self._tokens.get(text)
        if token is None:
            return None
        if token.expires_ms <= now_ms:
            raise TokenExpiredError
        return token.client_id

    def client_of_bearer(self, authorization: str, now_ms: int) -> str | None:
        """Return the id of the client that bears this header; None: it has no token. TokenExpiredError."""
        scheme, _, text = authorization.partition(" ")
        return self.client_of(text, now_ms) if scheme.lower() == "bearer" else None


def client_of_form(headers: Mapping[str, str], body: bytes, secret_of: Callable[[str], str | None]) -> str:
    """Return the id of the client that asks by the client credentials grant (OAuth 2.0). GrantRefusedError."""
    try:
        form = read_form(headers, body)
    except ValueError:
        form = {}
    if form.get("grant_type") != "client_credentials" or form.keys() != _CLIENT_FORM:
        raise GrantRefusedError("unsupported_grant_type", "the form is not that of a client")
    secret = secret_of(form["client_id"])
    if secret is None or not hmac.compare_digest(secret.encode(), form["client_secret"].encode()):
        raise GrantRefusedError("invalid_client", "client id or secret is wrong")
    return form["client_id"]
