"""Simulator of Honor's push service and its token server: it validates, answers, and knows what phones show."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from services.honor_simulator.requests import (
    NOT_AUTHENTICATED,
    SUCCESS,
    TOKEN_EXPIRED,
    HonorMessageSchema,
    HonorNotificationSchema,
    check_timestamp,
    validate,
)
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.granted_tokens import GrantedTokens, GrantRefusedError, TokenExpiredError, client_of_form
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import Http1SimulatedService, PushRefusedError, ReceivedRequest, json_reply

TOKEN_LIFE_S = 3_600

_TOKEN_PATHS = ("/auth/token", "/auth/realms/developer/protocol/openid-connect/token")
_SEND_PATH = re.compile("/api/v1/([^/]+)/sendMessage")
_EXPIRED, _FAILED = "expired", "fail"


@dataclass(frozen=True, slots=True)
class HonorApp:
    """An app in Honor's console, and the client that may send for it."""

    app_id: str
    client_id: str
    client_secret: str = field(repr=False)


class HonorSimulator(Http1SimulatedService[HonorMessageSchema]):
    """Honor's call. `expired:x` and `fail:x` are tokens that are refused alone, in expireTokens or failTokens.

    `80300002:x` is answered with this code, as is `code400:x` with 400: a code in the body, no HTTP status.
    """

    name = "honor-simulator"
    codes = re.compile("[0-9]{8}|code[0-9]{3}")
    reasons = frozenset((_EXPIRED, _FAILED))

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self.tokens = GrantedTokens(TOKEN_LIFE_S)
        self._clock = clock
        self._apps: dict[str, HonorApp] = {}

    @property
    def token_url(self) -> str:
        return f"{self.url}{_TOKEN_PATHS[0]}"

    def register(self, app: HonorApp) -> None:
        """Grant tokens to whoever knows the client's secret."""
        self._apps[app.client_id] = app

    def delete(self, client_id: str) -> None:
        """Grant no further tokens, and accept no request of the client."""
        del self._apps[client_id]

    def shown(self, token: str) -> dict[int | str, HonorNotificationSchema]:
        """Return what the phone with this token shows by itself: the latest notification of each id, or else tag."""
        return {
            notification.tag or f"without {number}" if notification.notify_id is msgspec.UNSET
            else notification.notify_id: notification
            for number, received in enumerate(self.received)
            if received.token == token
            if (notification := received.message.android.notification)
        }  # fmt: skip

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        if headers[":method"] == "POST" and headers[":path"] in _TOKEN_PATHS:
            return self._grant(headers, body)
        if _SEND_PATH.fullmatch(headers[":path"]) is None:
            return SimulatorReply(404, [])
        return super().reply_to(fields, body)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[HonorMessageSchema]:
        self._authenticate(headers)
        check_timestamp(headers.get("timestamp", ""), self._clock.now_ms())
        return validate(body)

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        tokens = {why: [token for token, its in refused.items() if its == why] for why in self.reasons}
        data = {
            "sendResult": bool(valid), "requestId": f"simulated-{self.requests}",
            "failTokens": tokens[_FAILED], "expireTokens": tokens[_EXPIRED],
        }  # fmt: skip
        return _answered(SUCCESS, "success", data)

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        return _answered(refused.code.removeprefix("code"), refused.message)

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        try:
            client_id = self.tokens.client_of_bearer(headers.get("authorization", ""), self._clock.now_ms())
        except TokenExpiredError:
            raise PushRefusedError(TOKEN_EXPIRED, "the access token has expired") from None
        path, app = _SEND_PATH.fullmatch(headers[":path"]), self._apps.get(client_id or "")
        if app is None or path is None or path[1] != app.app_id:
            raise PushRefusedError(NOT_AUTHENTICATED, "the access token is not that of a client of the app")

    def _grant(self, headers: Mapping[str, str], body: bytes) -> SimulatorReply:
        try:
            client_id = client_of_form(headers, body, self._secret_of)
        except GrantRefusedError as refused:
            self.refused[refused.error] += 1
            words = {"error": refused.error, "error_description": refused.description}
            return json_reply(400, msgspec.json.encode(words))
        token = self.tokens.grant(client_id, self._clock.now_ms())
        granted = {"access_token": token, "expires_in": TOKEN_LIFE_S, "token_type": "Bearer"}
        return json_reply(200, msgspec.json.encode(granted))

    def _secret_of(self, client_id: str) -> str | None:
        app = self._apps.get(client_id)
        return app.client_secret if app else None


def _answered(code: str, message: str, data: Mapping[str, object] | None = None) -> SimulatorReply:
    return json_reply(200, msgspec.json.encode({"code": int(code), "message": message, "data": data or {}}))
