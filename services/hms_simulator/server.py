"""Simulator of HMS and of Huawei's token server: it grants access tokens, validates, and knows what phones show."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from protos.registry.v1.apps_pb2 import App
from services.domain.channel_credentials.hms import HmsCredentials
from services.hms_simulator.clients import Clients
from services.hms_simulator.push_kit import PushKitSimulator
from services.hms_simulator.requests import (
    ALL_TOKENS,
    NOT_AUTHENTICATED,
    SOME_TOKENS,
    TOKEN_EXPIRED,
    HmsMessageSchema,
    HmsNotificationSchema,
    is_token,
    validate,
)
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.granted_tokens import GrantRefusedError, TokenExpiredError
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import PushRefusedError, ReceivedRequest, Script, json_reply

_TOKEN_PATH = "/oauth2/v3/token"  # noqa: S105  # an address, no secret
_INVALID = (SOME_TOKENS, ALL_TOKENS)
_SECRET = "simulator"  # noqa: S105  # known to all


class HmsSimulator(PushKitSimulator[HmsMessageSchema]):
    """HMS and Huawei's token server. `80100000:x` and `80300007:x` are tokens that are refused alone.

    `may_be_urgent`: apps have the right to high importance.
    """

    name = "hms-simulator"

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(host, port, certificate)
        self._clock = clock
        self.clients = Clients()
        self.may_be_urgent = False

    @property
    def token_url(self) -> str:
        return f"{self.url}{_TOKEN_PATH}"

    def shown(self, token: str) -> dict[str, HmsNotificationSchema]:
        """Return what the phone with this token shows by itself: the latest notification of each tag."""
        return {
            notification.tag or str(number): notification
            for number, received in enumerate(self.received)
            if received.token == token and not received.is_dry
            if (notification := received.message.android.notification)
        }

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        if headers[":method"] == "POST" and headers[":path"] == _TOKEN_PATH:
            return self._grant(headers, body)
        return super().reply_to(fields, body)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[HmsMessageSchema]:
        self._authenticate(headers)
        return validate(body, may_be_urgent=self.may_be_urgent)

    def refused_as(self, token: str, script: Script) -> str:
        return "invalid" if script.code in _INVALID or not is_token(token) else ""

    def told(self, valid: int, refused: Mapping[str, str]) -> str:
        if not valid:
            return "all the tokens are invalid"
        counts = {"success": valid, "failure": len(refused), "illegal_tokens": list(refused)}
        return msgspec.json.encode(counts).decode()

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        try:
            client = self.clients.client_of(headers.get("authorization", ""), self._clock.now_ms())
        except TokenExpiredError:
            raise PushRefusedError(TOKEN_EXPIRED, "the access token has expired") from None
        if client is None or headers[":path"] not in self.clients.paths(client):
            raise PushRefusedError(NOT_AUTHENTICATED, "OAuth authentication error")

    def _grant(self, headers: Mapping[str, str], body: bytes) -> SimulatorReply:
        try:
            granted = msgspec.json.encode(self.clients.grant(headers, body, self._clock.now_ms()))
        except GrantRefusedError as refused:
            self.refused[refused.error] += 1
            words = {"error": refused.error, "error_description": refused.description}
            return json_reply(400, msgspec.json.encode(words))
        return json_reply(200, granted.replace(b"/", b"\\/"))


def simulated_clients(
    simulator: HmsSimulator, credentials_of: Callable[[App], HmsCredentials | None]
) -> Callable[[App], HmsCredentials | None]:
    """Return the credentials of apps with a secret of the simulator's in the place of Huawei's."""
    made: dict[str, tuple[HmsCredentials, HmsCredentials]] = {}

    def client_of(app: App) -> HmsCredentials | None:
        real = credentials_of(app)
        if real is None:
            return None
        known = made.get(app.appkey)
        if known is None or known[0] is not real:
            known = made[app.appkey] = real, replace(real, client_secret=_SECRET)
            simulator.clients.register(known[1])
        return known[1]

    return client_of
