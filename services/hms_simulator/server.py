"""Simulators over TLS and HTTP/1.1: they grant access tokens, validate, answer, and know what phones show."""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import msgspec

from protos.registry.v1.apps_pb2 import App
from services.domain.channel_credentials.hms import HmsCredentials
from services.hms_simulator.clients import Clients, ExpiredError, HmsGrantError
from services.hms_simulator.requests import (
    ALL_TOKENS,
    JWT_EXPIRED,
    NOT_AUTHENTICATED,
    SOME_TOKENS,
    SUCCESS,
    TOKEN_EXPIRED,
    HmsMessageSchema,
    HmsNotificationSchema,
    HmsRefusedError,
    ReceivedRequest,
    is_token,
    validate,
)
from services.process.clock import Clock
from services.push_simulator.certificates import SelfSigned
from services.push_simulator.http1 import FAULTS, LOST_ANSWER, Http1Connection, SimulatorReply

RECEIVED_HISTORY = 10_000
"""Messages in memory; beyond it the oldest are dropped."""

_TOKEN_PATH = "/oauth2/v3/token"  # noqa: S105  # an address, no secret
_SCRIPTED = re.compile(r"(once-)?(?:([0-9]{8})|([1-5][0-9]{2})|([A-Za-z]+)):.*")
_INVALID = (SOME_TOKENS, ALL_TOKENS)
_SECRET = "simulator"  # noqa: S105  # known to all


class HasTokens(Protocol):
    """A message, as one generation writes it."""

    @property
    def token(self) -> Sequence[str]: ...


Sent = TypeVar("Sent", bound=HasTokens)


@dataclass(frozen=True, slots=True)
class PhoneMessage(Generic[Sent]):
    """A message for one phone. `is_dry`: Huawei was asked to validate it only."""

    token: str
    message: Sent
    is_dry: bool


class PushKitSimulator(Generic[Sent]):
    """Service that simulates one generation of Huawei's Push Kit on `port` (0: any free port).

    The beginning of a phone's token scripts the answer to a request that names it: `80300002:x` is answered with this
    code, `503:x` with this HTTP status and nothing else, `cut:x` by the fault CUT; with `once-` before it only the
    first one. What is no token at all is refused alone. `retry_after` is the header of that name in answers with 429
    and 503.
    """

    name: str
    reasons: Collection[str] = ()
    """Why tokens are refused alone, in words by which tokens may begin as well."""

    kept_bytes = 4 << 20

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        self.connections: set[Http1Connection] = set()
        self.received: deque[PhoneMessage[Sent]] = deque(maxlen=RECEIVED_HISTORY)
        self.requests = 0
        self.batches: list[int] = []
        """How many tokens each accepted request had."""
        self.refused: Counter[str] = Counter()
        self.retry_after: str | None = None
        self._once: set[str] = set()
        self._clock = clock
        self._certificate = certificate or SelfSigned.make(host)
        self._address = (host, port)
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        host, port = self._address
        return f"https://{host}:{port}"

    @property
    def authority(self) -> str:
        """PEM text of the certificate that clients have to trust."""
        return self._certificate.certificate_pem

    async def run(self, ready: asyncio.Event) -> None:
        context = self._certificate.server_context(["http/1.1"])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Http1Connection(self), *self._address, ssl=context)
        self._address = server.sockets[0].getsockname()[:2]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in list(self.connections):
                connection.close()

    async def wait_for(self, count: int) -> None:
        """Return once phones have got `count` messages since the start; no time-out."""
        while len(self.received) < count:
            await self._changed.wait()

    def reply_to(self, fields: list[tuple[str, str]], body: bytes) -> SimulatorReply:
        headers = dict(fields)
        if headers[":method"] != "POST":
            return SimulatorReply(404, [])
        self.requests += 1
        try:
            request = self.judge(headers, body)
        except HmsRefusedError as refused:
            return self._refusal(refused)
        return self._answer(request)

    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[Sent]:
        """Return the request, if it is right. RefusedError."""
        raise NotImplementedError

    def refused_as(self, token: str, script: str) -> str:
        """Return why a token is refused alone; "" if it is not."""
        raise NotImplementedError

    def told(self, valid: int, refused: Mapping[str, str]) -> str:
        """Return what an answer says of tokens that are refused, by token, beside so many valid ones."""
        raise NotImplementedError

    def _answer(self, request: ReceivedRequest[Sent]) -> SimulatorReply:
        scripted = [(token, self._script(token)) for token in request.message.token]
        invalid = {token: why for token, script in scripted if (why := self.refused_as(token, script))}
        script = next((script for token, script in scripted if script and token not in invalid), "")
        if len(script) == len(SUCCESS):
            return self._refusal(HmsRefusedError(script, "scripted"))
        if script.isdigit():
            self.refused[script] += 1
            after = [("retry-after", self.retry_after)] if self.retry_after and script in ("429", "503") else []
            return SimulatorReply(int(script), after)
        valid = [token for token in request.message.token if token not in invalid]
        if not valid:
            return self._refusal(HmsRefusedError(ALL_TOKENS, self.told(0, invalid)))
        if script in ("", LOST_ANSWER):
            self._take(request, valid)
        message = self.told(len(valid), invalid) if invalid else "Success"
        return _answered(200, SOME_TOKENS if invalid else SUCCESS, message)._replace(fault=script)

    def _script(self, token: str) -> str:
        """Return the code, status or fault that the token scripts; "" for none."""
        found = _SCRIPTED.fullmatch(token)
        if found is None or (found[1] and token in self._once):
            return ""
        self._once.add(token)
        script = found[2] or found[3] or found[4]
        return script if script.isdigit() or script in FAULTS or script in self.reasons else ""

    def _refusal(self, refused: HmsRefusedError) -> SimulatorReply:
        self.refused[refused.code] += 1
        is_of_token = refused.code in (NOT_AUTHENTICATED, TOKEN_EXPIRED, JWT_EXPIRED)
        return _answered(401 if is_of_token else 400, refused.code, refused.message)

    def _take(self, request: ReceivedRequest[Sent], tokens: list[str]) -> None:
        self.batches.append(len(request.message.token))
        self.received.extend(PhoneMessage(token, request.message, request.is_dry) for token in tokens)
        self._changed.set()
        self._changed = asyncio.Event()


class HmsSimulator(PushKitSimulator[HmsMessageSchema]):
    """HMS and Huawei's token server. `80100000:x` and `80300007:x` are tokens that are refused alone.

    `may_be_urgent`: apps have the right to high importance.
    """

    name = "hms-simulator"

    def __init__(
        self, clock: Clock, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None
    ) -> None:
        super().__init__(clock, host, port, certificate)
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

    def refused_as(self, token: str, script: str) -> str:
        return "invalid" if script in _INVALID or not is_token(token) else ""

    def told(self, valid: int, refused: Mapping[str, str]) -> str:
        if not valid:
            return "all the tokens are invalid"
        counts = {"success": valid, "failure": len(refused), "illegal_tokens": list(refused)}
        return msgspec.json.encode(counts).decode()

    def _authenticate(self, headers: Mapping[str, str]) -> None:
        try:
            client = self.clients.client_of(headers.get("authorization", ""), self._clock.now_ms())
        except ExpiredError:
            raise HmsRefusedError(TOKEN_EXPIRED, "the access token has expired") from None
        if client is None or headers[":path"] not in self.clients.paths(client):
            raise HmsRefusedError(NOT_AUTHENTICATED, "OAuth authentication error")

    def _grant(self, headers: Mapping[str, str], body: bytes) -> SimulatorReply:
        is_form = headers.get("content-type") == "application/x-www-form-urlencoded"
        try:
            granted = msgspec.json.encode(self.clients.grant(body if is_form else b"", self._clock.now_ms()))
        except HmsGrantError as refused:
            self.refused[refused.error] += 1
            words = {"error": refused.error, "error_description": refused.description}
            return _json(400, msgspec.json.encode(words))
        return _json(200, granted.replace(b"/", b"\\/"))


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


def _answered(status: int, code: str, message: str) -> SimulatorReply:
    return _json(status, msgspec.json.encode({"code": code, "msg": message, "requestId": "157440955549500001002006"}))


def _json(status: int, body: bytes) -> SimulatorReply:
    return SimulatorReply(status, [("content-type", "application/json;charset=utf-8")], body)
