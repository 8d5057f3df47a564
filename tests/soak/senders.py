"""App servers: they sign and send push requests, retry where that is allowed, and record the answers."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, Protocol

import httpx

from tests.soak.ledger import Ledger, Outcome, Push
from tests.soak.pushes import PushGenerator, Request, Targets, ids_in

IN_FLIGHT = 24
"""Requests at a time at most, those included that wait to be repeated or cancelled."""

_RETRY_S = 0.3
_REPEATED_MS = 540_000
"""How long a request is repeated under its key at most: a key counts for ten minutes."""

_WITH_KEY = 0.75
_CANCELLED = 0.25
_TWICE = 0.1

WRONG_SIGN = "sign not correct"
"""The refusal of a request whose secret key has been replaced meanwhile: it is signed and sent again."""

Answer = Mapping[str, Any]


class HttpInterface(Protocol):
    """One HTTP interface of the edge, as app servers call it."""

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        headers: Mapping[str, str] | None = None,
        statuses: Collection[int] = (200,),
    ) -> Answer:
        """Send a signed request; return its answer, whose HTTP status is one of these. httpx.TransportError: none."""
        ...

    async def close(self) -> None: ...


class Senders:
    """Sends requests at a rate; each gets a definite outcome, or counts as unknown."""

    def __init__(
        self,
        interfaces: Mapping[str, HttpInterface],
        pushes: PushGenerator,
        ledger: Ledger,
        random: Random,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._interfaces = interfaces
        self._pushes = pushes
        self._ledger = ledger
        self._random = random
        self._in_flight: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(in_flight)

    async def send_continuously(self, rate: float, targets: Callable[[], Targets]) -> None:
        """Send until cancelled, to `targets()`; `finish` waits for the requests in flight."""
        while True:
            await self._slots.acquire()
            self._start(self._pushes.next(targets()))
            await asyncio.sleep(self._random.expovariate(rate))

    async def finish(self) -> None:
        """Return once every request has its outcome; no faults may be injected meanwhile."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def close(self) -> None:
        for task in self._in_flight:
            task.cancel()
        for interface in self._interfaces.values():
            await interface.close()

    async def send(self, request: Request) -> Push:
        """Send a push with an idempotency key, and retry until it is answered."""
        await self._send(request, f"soak-{request.push.serial}")
        return request.push

    async def call(
        self,
        interface: str,
        method: str,
        path: str,
        body: Mapping[str, Any],
        *secrets: str,
        statuses: Collection[int] = (200,),
    ) -> Answer:
        return await self._interfaces[interface].call(method, path, body, *secrets, statuses=statuses)

    def _start(self, request: Request) -> None:
        task = asyncio.create_task(self._one(request))
        self._in_flight.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()):
            self._ledger.errors.append(f"a request failed: {error!r}")

    async def _one(self, request: Request) -> None:
        key = f"soak-{request.push.serial}" if self._random.random() < _WITH_KEY else None
        cancels, twice = self._random.random() < _CANCELLED, self._random.random() < _TWICE
        wait_s = self._random.uniform(0, 2)
        first = await self._send(request, key)
        if key is not None and twice and first is not None and first["result"] == 0:
            again = await self._ask("POST", request, request.body, key)
            if again is not None and _outcome(again) is not Outcome.UNKNOWN and again != first:
                self._ledger.errors.append(f"the answer under {key} was first {first}, then {again}")
        if cancels and request.push.outcome is Outcome.ACCEPTED:
            await asyncio.sleep(wait_s)
            await self._cancel(request)

    async def _send(self, request: Request, key: str | None) -> Answer | None:
        push = request.push
        push.begun_ms = self._ledger.now_ms()
        self._ledger.pushes.append(push)
        self._ledger.write("sent", serial=push.serial, kind=push.kind, key=key, body=request.body)
        answer = await self._ask("POST", request, request.body, key)
        while key is not None and _outcome(answer) is Outcome.UNKNOWN and self._may_repeat(push):
            push.is_repeated = True
            await asyncio.sleep(_RETRY_S)
            answer = await self._ask("POST", request, request.body, key)
        self._ledger.write("answered", serial=push.serial, answer=answer)
        push.outcome, push.answered_ms = _outcome(answer), self._ledger.now_ms()
        if answer is not None and push.outcome is Outcome.ACCEPTED:
            push.ids = ids_in(answer, push)
            push.task_key = answer.get("task_key", "")
        return answer

    def _may_repeat(self, push: Push) -> bool:
        return self._ledger.now_ms() - push.begun_ms < _REPEATED_MS

    async def _cancel(self, request: Request) -> None:
        """Cancel a broadcast by its id, a timed push by its task; a repeated cancel gets the same answer."""
        push = request.push
        if push.is_timed:
            appkeys = request.body["sendTo"]["appkey"]
            body: dict[str, Any] = {"appkey": appkeys, "task_key": push.task_key}
            asked = request._replace(path="/v2/timed", body=body)
        elif push.may_be_cancelled:
            body = {"appkey": push.appkeys[0], "msgid": push.ids[push.appkeys[0]]}
            asked = request._replace(interface="android", path="/push", body=body)
        else:
            return
        push.cancel = Outcome.UNKNOWN
        answer = await self._ask("DELETE", asked, body, None)
        asked_again = False
        while _outcome(answer) is Outcome.UNKNOWN:
            asked_again = True
            await asyncio.sleep(_RETRY_S)
            answer = await self._ask("DELETE", asked, body, None)
        push.cancel, push.cancelled_ms = _outcome(answer), self._ledger.now_ms()
        if push.is_timed and asked_again and push.cancel is Outcome.REFUSED:
            push.cancel = Outcome.UNKNOWN
        self._ledger.write("cancelled", serial=push.serial, answer=answer)

    async def _ask(self, method: str, request: Request, body: Mapping[str, Any], key: str | None) -> Answer | None:
        """Return the answer; None when there was none."""
        secrets = [self._pushes.secret_of(app) for app in request.apps]
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            answer = await self._interfaces[request.interface].call(
                method, request.path, body, *secrets, headers=headers, statuses=(200, 403, 429, 503)
            )
        except httpx.TransportError as error:
            self._ledger.write("no answer", serial=request.push.serial, error=repr(error))
            return None
        if answer.get("desc") == WRONG_SIGN:
            self._ledger.wrong_signs.append((self._ledger.now_ms(), secrets))
        return answer


def _outcome(answer: Answer | None) -> Outcome:
    """Classify an answer; a push is refused for good only with 400 or 401, otherwise it may be sent by a repetition."""
    if answer is None or answer["result"] not in (0, 400, 401) or answer.get("desc") == WRONG_SIGN:
        return Outcome.UNKNOWN
    return Outcome.ACCEPTED if answer["result"] == 0 else Outcome.REFUSED
