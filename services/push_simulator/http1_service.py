"""A simulator as a service that listens, over TLS and HTTP/1.1, and answers as the addresses of phones script it."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from services.push_simulator.certificates import SelfSigned
from services.push_simulator.http1 import FAULTS, LOST_ANSWER, Http1Connection, SimulatorReply

RECEIVED_HISTORY = 10_000
"""Messages in memory; beyond it the oldest are dropped."""

_SCRIPTED = re.compile(r"(once-)?(?:([1-5][0-9]{2})|(-?[0-9]+|[A-Za-z][A-Za-z0-9]*)):.*", re.DOTALL)


class PushRefusedError(Exception):
    """A vendor's refusal of a request: its code, and its words."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.message = message


Sent = TypeVar("Sent")


@dataclass(frozen=True, slots=True)
class ReceivedRequest(Generic[Sent]):
    """A right request. `tokens`: the phones that get it. `is_dry`: the vendor was asked to validate it only."""

    message: Sent
    tokens: Sequence[str]
    is_dry: bool = False


@dataclass(frozen=True, slots=True)
class PhoneMessage(Generic[Sent]):
    """A message for one phone. `is_dry`: the vendor was asked to validate it only."""

    token: str
    message: Sent
    is_dry: bool


class Script(NamedTuple):
    """What an address asks of the answer to a request that names it: at most one of a code, a status and a word."""

    code: str = ""
    status: int = 0
    word: str = ""


UNSCRIPTED = Script()


class Http1SimulatedService(ABC, Generic[Sent]):
    """Service that simulates a vendor on `port` (0: any free port).

    The beginning of a phone's address, which vendors call its token or registration id, scripts the answer to a
    request that names it: one of the vendor's codes, as in `80300002:x`, is answered with this code, `503:x` with this
    HTTP status and nothing else, `cut:x` by the fault CUT; with `once-` before it only the first one. `retry_after` is
    the header of that name in answers with 429 and 503.
    """

    name: str
    codes: re.Pattern[str]
    """The form of the vendor's codes in scripts: digits, perhaps with a minus sign, or letters and digits."""

    reasons: frozenset[str] = frozenset()
    """Why addresses are refused alone, in words by which addresses may begin as well."""

    kept_bytes = 4 << 20

    def __init__(self, host: str = "127.0.0.1", port: int = 0, certificate: SelfSigned | None = None) -> None:
        self.connections: set[Http1Connection] = set()
        self.received: deque[PhoneMessage[Sent]] = deque(maxlen=RECEIVED_HISTORY)
        self.requests = 0
        self.batches: list[int] = []
        """How many phones each accepted request had."""
        self.refused: Counter[str] = Counter()
        self.retry_after: str | None = None
        self._once: set[str] = set()
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
            return self._answer(self.judge(headers, body))
        except PushRefusedError as refused:
            self.refused[refused.code] += 1
            return self.refusal(refused)

    @abstractmethod
    def judge(self, headers: Mapping[str, str], body: bytes) -> ReceivedRequest[Sent]:
        """Return the request, if it is right. PushRefusedError."""

    @abstractmethod
    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        """Return the answer to a request that is refused as a whole."""

    @abstractmethod
    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        """Return the answer to a right request; `refused`: why, by token. PushRefusedError."""

    def refused_as(self, token: str, script: Script) -> str:
        """Return why a token is refused alone; "" if it is not."""
        return script.word if script.word in self.reasons else ""

    def _answer(self, request: ReceivedRequest[Sent]) -> SimulatorReply:
        scripted = [(token, self._script(token)) for token in request.tokens]
        refused = {token: why for token, script in scripted if (why := self.refused_as(token, script))}
        script = next((script for token, script in scripted if any(script) and token not in refused), UNSCRIPTED)
        if script.code:
            raise PushRefusedError(script.code, "scripted")
        if script.status:
            self.refused[str(script.status)] += 1
            after = [("retry-after", self.retry_after)] if self.retry_after and script.status in (429, 503) else []
            return SimulatorReply(script.status, after)
        valid = [token for token in request.tokens if token not in refused]
        if valid and script.word in ("", LOST_ANSWER):
            self._take(request, valid)
        return self.answer(valid, refused)._replace(fault=script.word)

    def _script(self, token: str) -> Script:
        found = _SCRIPTED.fullmatch(token)
        if found is None or (found[1] and token in self._once):
            return UNSCRIPTED
        self._once.add(token)
        if found[2]:
            return Script(status=int(found[2]))
        if self.codes.fullmatch(found[3]):
            return Script(code=found[3])
        return Script(word=found[3]) if found[3] in FAULTS or found[3] in self.reasons else UNSCRIPTED

    def _take(self, request: ReceivedRequest[Sent], tokens: list[str]) -> None:
        self.batches.append(len(request.tokens))
        self.received.extend(PhoneMessage(token, request.message, request.is_dry) for token in tokens)
        self._changed.set()
        self._changed = asyncio.Event()


def json_reply(status: int, body: bytes) -> SimulatorReply:
    """Return an answer whose body is JSON."""
    return SimulatorReply(status, [("content-type", "application/json;charset=utf-8")], body)
