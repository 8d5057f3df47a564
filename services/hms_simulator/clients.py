"""Clients that the simulator knows, and the access tokens that it grants them (OAuth 2.0, client credentials grant)."""

from collections.abc import Mapping

from services.domain.channel_credentials.hms import HmsCredentials
from services.push_simulator.granted_tokens import GrantedTokens, client_of_form

TOKEN_LIFE_S = 3_600


class Clients:
    """The clients and their access tokens; a client may send for its own app and project alone."""

    def __init__(self) -> None:
        self._clients: dict[str, HmsCredentials] = {}
        self._tokens = GrantedTokens(TOKEN_LIFE_S, "DAED/")  # with a slash, which Huawei's JSON escapes

    @property
    def granted(self) -> int:
        return self._tokens.granted

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

    def grant(self, headers: Mapping[str, str], body: bytes, now_ms: int) -> Mapping[str, object]:
        """Return the answer to a form. GrantRefusedError."""
        client_id = client_of_form(headers, body, self._secret_of)
        token = self._tokens.grant(client_id, now_ms)
        return {"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"}

    def expire_tokens(self) -> None:
        """End the life of the tokens granted so far."""
        self._tokens.expire()

    def client_of(self, authorization: str, now_ms: int) -> str | None:
        """Return the id of the client that bears this header; None: it has no token. TokenExpiredError."""
        return self._tokens.client_of_bearer(authorization, now_ms)

    def _secret_of(self, client_id: str) -> str | None:
        client = self._clients.get(client_id)
        return client.client_secret if client else None
