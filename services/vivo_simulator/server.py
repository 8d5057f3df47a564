"""Simulator of vivo's push service: it grants auth tokens, validates, answers, and knows what phones show."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.granted_tokens import GrantedTokens, TokenExpiredError
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import Http1SimulatedService, PushRefusedError, ReceivedRequest, json_reply
from services.vivo_simulator.requests import (
    NOT_AUTHENTICATED,
    OTHER_APP,
    VivoMessageSchema,
    signed_by,
    validate,
)

TOKEN_LIFE_S = 86_400

_AUTH_PATH = "/message/auth"
_SEND_PATH = "/message/send"
_INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class VivoApp:
    """An app in vivo's console: its id and key, and the AppSecret that signs for it."""

    app_id: str
    app_key: str
    app_secret: str = field(repr=False)


class VivoSimulator(Http1SimulatedService[VivoMessageSchema]):
    """vivo's call. `10070:x` is answered with this result; `invalid1:x` to `invalid4:x` as invalidUser of this status.

    An answer with an invalidUser has the result 0.
    """

    name = "vivo-simulator"
    codes = re.compile("[0-9]{5}")
    reasons = frozenset(f"{_INVALID}{status}" for status in (1, 2, 3, 4))

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self.tokens = GrantedTokens(TOKEN_LIFE_S)
        self._clock = clock
        self._apps: dict[str, VivoApp] = {}

    def register(self, app: VivoApp) -> None:
        """Grant tokens to whoever signs with the app's secret."""
        self._apps[app.app_id] = app

    def delete(self, app_id: str) -> None:
        """Grant no further tokens; those that were granted stay valid."""
        del self._apps[app_id]

    def shown(self, address: str) -> dict[int | str, VivoMessageSchema]:
        """Return what the phone with this regId shows by itself: the latest message of each notifyId."""
        return {
            f"without {number}" if received.message.notify_id is msgspec.UNSET
            else received.message.notify_id: received.message
            for number, received in enumerate(self.received)
            if received.token == address
        }  # fmt: skip

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        if headers[":method"] == "POST" and headers[":path"] == _AUTH_PATH:
            return self._grant(body)
        if headers[":path"] != _SEND_PATH:
            return SimulatorReply(404, [])
        return super().reply_to(fields, body)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[VivoMessageSchema]:
        try:
            app_id = self.tokens.client_of(headers.get("authtoken", ""), self._clock.now_ms())
        except TokenExpiredError:
            app_id = None
        if app_id is None:
            raise PushRefusedError(NOT_AUTHENTICATED, "the auth token is wrong or has expired")
        request = validate(body)
        if str(request.message.app_id) != app_id:
            raise PushRefusedError(OTHER_APP, "the auth token is that of another app")
        return request

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        answered: dict[str, object] = {"taskId": f"simulated-{self.requests}"}
        for token, why in refused.items():
            answered["invalidUser"] = {"userid": token, "status": int(why.removeprefix(_INVALID))}
        return _answered("0", "success", answered)

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        return _answered(refused.code, refused.message, {})

    def _grant(self, body: bytes) -> SimulatorReply:
        now_ms = self._clock.now_ms()
        try:
            app_id = signed_by(body, self._key_and_secret_of, now_ms)
        except PushRefusedError as refused:
            self.refused[refused.code] += 1
            return self.refusal(refused)
        return _answered("0", "success", {"authToken": self.tokens.grant(app_id, now_ms)})

    def _key_and_secret_of(self, app_id: str) -> tuple[str, str] | None:
        app = self._apps.get(app_id)
        return (app.app_key, app.app_secret) if app else None


def _answered(result: str, desc: str, data: Mapping[str, object]) -> SimulatorReply:
    return json_reply(200, msgspec.json.encode({"result": int(result), "desc": desc, **data}))
