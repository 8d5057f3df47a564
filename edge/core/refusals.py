"""Records the refused requests of apps that exist, for the people of the app: the answer, the time, and the caller.

A refusal is kept in memory and appended to topic `refusals` with others. No answer waits for that or depends on it:
what is too much, or what the log does not take, is left out and counted. Nothing is kept of unknown appkeys.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from falcon.asgi import Request

from edge.core.answers import refusal_words
from protos.runtime.v1.log_pb2 import Origin
from protos.runtime.v1.refusals_pb2 import Refusal, RefusalFact, Refusals
from services.domain.apps import AppDirectory
from services.domain.ids import RecordStamp
from services.domain.topics import REFUSALS
from services.errors import CarillonError
from services.log.port import Log, NewRecord
from services.process import background
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import REFUSALS_LEFT_OUT

MINUTE_MS = 60_000
MAX_SIGNED = 60
"""Refusals of signed requests that a process records for an app in a minute."""

MAX_UNSIGNED = 10
"""Those of requests without a right sign: whoever knows an appkey can send them, and must not displace the others."""

MAX_WAITING = 1_000
"""Upper bound of the refusals of all apps that wait for the log."""

BATCH_MS = 1_000
MAX_IN_RECORD = 200


class Caller(NamedTuple):
    """Who makes a request, as far as it is known: the apps that it names, and whether they have signed it."""

    origin: Origin
    appkeys: Sequence[str]
    is_signed: bool = False


@dataclass(slots=True)
class _Minute:
    """The refusals of an app since a moment, and those since the latest recorded one that were left out."""

    begun_ms: int
    recorded: int = 0
    left_out: int = 0


class RefusalRecorder:
    """Records the refusals of the process."""

    def __init__(self, role: str, apps: AppDirectory, log: Log, clock: Clock) -> None:
        self._apps = apps
        self._log = log
        self._clock = clock
        self._stamp = RecordStamp(role)
        self._minutes: dict[tuple[str, bool], _Minute] = {}
        self._waiting: deque[Refusal] = deque()
        self._is_writing = False

    def note(self, request: Request, error: CarillonError) -> None:
        """Note that a request is answered with the error. Without effect if it names no app that exists."""
        caller: Caller | None = getattr(request.context, "caller", None)
        if caller is None:
            return
        for appkey in dict.fromkeys(caller.appkeys):
            # Made of unknown apps too: the time of an answer must not tell which apps exist.
            refusal = self._refusal(appkey, caller, request, error)
            if self._apps.get(appkey) is not None:
                self._keep(refusal)

    def _refusal(self, appkey: str, caller: Caller, request: Request, error: CarillonError) -> Refusal:
        return Refusal(
            appkey=appkey,
            time_ms=self._clock.now_ms(),
            origin=Origin(interface=caller.origin.interface, address=caller.origin.address),
            call=f"{request.method} {request.uri_template or request.path}"[:100],
            result=error.result,
            answer=refusal_words(error),
            code=error.code.name if error.code else "",
            is_signed=caller.is_signed,
        )

    def _keep(self, refusal: Refusal) -> None:
        """Let the refusal wait for the log, or count it as left out."""
        minute = self._minutes.setdefault((refusal.appkey, refusal.is_signed), _Minute(refusal.time_ms))
        if not minute.begun_ms <= refusal.time_ms < minute.begun_ms + MINUTE_MS:
            minute.begun_ms, minute.recorded = refusal.time_ms, 0
        most = MAX_SIGNED if refusal.is_signed else MAX_UNSIGNED
        if minute.recorded >= most or len(self._waiting) >= MAX_WAITING:
            minute.left_out += 1
            REFUSALS_LEFT_OUT.inc()
            return
        refusal.left_out = minute.left_out
        minute.recorded, minute.left_out = minute.recorded + 1, 0
        self._waiting.append(refusal)
        if not self._is_writing:
            self._is_writing = True
            background.start("refused requests", self._write())

    async def _write(self) -> None:
        """Append what waits, and what comes meanwhile."""
        try:
            while self._waiting:
                await self._clock.sleep_until(self._clock.now_ms() + BATCH_MS)
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_IN_RECORD))]
                fact = RefusalFact(refusals=Refusals(refusals=batch))
                self._stamp.complete(fact.meta, self._clock.now_ms())
                try:
                    await self._log.append([NewRecord(REFUSALS.name, 0, fact.meta.event_id, fact.SerializeToString())])
                except CarillonError as error:
                    REFUSALS_LEFT_OUT.inc(len(batch))
                    logger.warning("refused requests are not recorded", refusals=len(batch), error=str(error))
        finally:
            self._is_writing = False
