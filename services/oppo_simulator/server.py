"""Simulator of OPPO's push service: it grants auth tokens, validates, answers, and knows what phones show."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from services.oppo_simulator.requests import (
    WRONG_REGISTRATION_ID,
    WRONG_TOKEN,
    OppoMessageSchema,
    OppoNotificationSchema,
    read_message,
    signed_by,
    validate,
)
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.granted_tokens import GrantedTokens, TokenExpiredError
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import Http1SimulatedService, PushRefusedError, ReceivedRequest, json_reply

TOKEN_LIFE_S = 86_400

_AUTH_PATH = "/server/v1/auth"
_UNICAST_PATH = "/server/v1/message/notification/unicast"
_WORDS = {WRONG_REGISTRATION_ID: "registration id is invalid"}


@dataclass(frozen=True, slots=True)
class OppoApp:
    """An app in OPPO's console: its AppKey, and the MasterSecret that signs for it."""

    app_key: str
    master_secret: str = field(repr=False)


class OppoSimulator(Http1SimulatedService[OppoMessageSchema]):
    """OPPO's unicast. `-2:x`, `67:x` and `10000:x` are answered with these codes; 10000 names the registration id."""

    name = "oppo-simulator"
    codes = re.compile("-[12]|[1-9][0-9]?|[1-9][0-9]{4}")

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self.tokens = GrantedTokens(TOKEN_LIFE_S)
        self._clock = clock
        self._apps: dict[str, OppoApp] = {}

    def register(self, app: OppoApp) -> None:
        """Grant tokens to whoever signs with the app's secret."""
        self._apps[app.app_key] = app

    def delete(self, app_key: str) -> None:
        """Grant no further tokens; those that were granted stay valid."""
        del self._apps[app_key]

    def shown(self, address: str) -> dict[int | str, OppoNotificationSchema]:
        """Return what the phone with this registration id shows by itself.

        Of one app_message_id that is the first notification alone; of one notify_id the latest.
        """
        shown: dict[int | str, OppoNotificationSchema] = {}
        pushed: set[str] = set()
        for number, received in enumerate(self.received):
            notification = received.message.notification
            if received.token != address or not notification or notification.app_message_id in pushed:
                continue
            if notification.app_message_id is not msgspec.UNSET:
                pushed.add(notification.app_message_id)
            notify_id = notification.notify_id
            shown[f"without {number}" if notify_id is msgspec.UNSET else notify_id] = notification
        return shown

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        if headers[":method"] == "POST" and headers[":path"] == _AUTH_PATH:
            return self._grant(headers, body)
        if headers[":path"] != _UNICAST_PATH:
            return SimulatorReply(404, [])
        return super().reply_to(fields, body)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[OppoMessageSchema]:
        token, message = read_message(headers, body)
        try:
            app_key = self.tokens.client_of(token, self._clock.now_ms())
        except TokenExpiredError:
            app_key = None
        if app_key is None:
            raise PushRefusedError(WRONG_TOKEN, "the auth token is wrong or has expired")
        return validate(message)

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        return _answered("0", "Success", {"messageId": f"simulated-{self.requests}"})

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        return _answered(refused.code, _WORDS.get(refused.code, refused.message), {})

    def _grant(self, headers: Mapping[str, str], body: bytes) -> SimulatorReply:
        now_ms = self._clock.now_ms()
        try:
            app_key = signed_by(headers, body, self._secret_of, now_ms)
        except PushRefusedError as refused:
            self.refused[refused.code] += 1
            return self.refusal(refused)
        return _answered("0", "Success", {"auth_token": self.tokens.grant(app_key, now_ms), "create_time": now_ms})

    def _secret_of(self, app_key: str) -> str | None:
        app = self._apps.get(app_key)
        return app.master_secret if app else None


def _answered(code: str, message: str, data: Mapping[str, object]) -> SimulatorReply:
    return json_reply(200, msgspec.json.encode({"code": int(code), "message": message, "data": data}))
