"""Sends pushes to one of Apple's services with one key, over a few lasting connections."""

import asyncio
import ssl
from collections import deque
from functools import partial
from urllib.parse import urlsplit

from services.delivery.apns.circuit_breaker import Circuit
from services.delivery.apns.connection import Link, Times
from services.delivery.apns.provider_tokens import ProviderToken
from services.delivery.apns.push import ApnsResult, Sending
from services.delivery.apns.reasons import Action, label, verdict
from services.delivery.apns.request import fault, header_block
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger
from services.runtime.process.metrics import APNS_ANSWERS

CONNECTIONS = 2
"""To one service with one key. More bring little: Apple takes up to a thousand requests at once on each."""

_FIRST_REST_MS = 1_000
_LONGEST_REST_MS = 900_000


class _Seat:
    """A place for one connection, which is made when it is needed and again after it broke and rested."""

    def __init__(self) -> None:
        self.circuit = Circuit(_FIRST_REST_MS, _LONGEST_REST_MS)
        self.link: Link | None = None
        self.connecting: asyncio.Task[None] | None = None

    @property
    def is_new(self) -> bool:
        """Whether its connection still takes one push at a time, but may take more soon."""
        return self.link is not None and self.circuit.is_closed and not (self.link.is_proven or self.link.draining)

    def free(self, now_ms: int) -> int:
        if self.link is None or self.circuit.rests(now_ms):
            return 0
        return self.link.free if self.circuit.is_closed else min(self.link.free, 1 - self.link.in_flight)


class ApnsSender:
    """`authority`: PEM text of the certificates to trust; None for the system's. The caller bounds what it submits."""

    def __init__(
        self,
        url: str,
        provider_token: ProviderToken,
        clock: Clock,
        authority: str | None = None,
        times: Times | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        place = urlsplit(url)
        self._host = place.hostname or ""
        self._port = place.port or 443
        self._authority = place.netloc
        self._provider_token = provider_token
        self._clock = clock
        self._times = times or Times()
        self._trust = ssl.create_default_context(cadata=authority)
        self._trust.set_alpn_protocols(["h2"])
        self._seats = [_Seat() for _ in range(connections)]
        self._links: set[Link] = set()
        self._queue: deque[Sending] = deque()
        self._waking: asyncio.Task[None] | None = None
        self._pumping = False
        self._closed = False

    def submit(self, sending: Sending) -> None:
        """Send it as soon as there is room; it is told once what became of it."""
        self._queue.append(sending)
        self._pump_soon()

    async def close(self) -> None:
        """Close the connections; what is under way is answered with UNKNOWN, what waits is not answered."""
        self._closed = True
        tasks = [seat.connecting for seat in self._seats if seat.connecting]
        if self._waking:
            tasks.append(self._waking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links):
            link.close()

    # --- from the queue to the connections

    def _pump_soon(self) -> None:
        if not self._pumping and not self._closed:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._closed:
            return
        now_ms = self._clock.now_ms()
        for seat in self._seats:
            if seat.link is not None and seat.link.is_over:
                seat.link = None
            while self._queue and seat.link is not None and seat.free(now_ms) > 0:
                self._send(seat.link, self._queue.popleft())
        if self._queue:
            self._connect_more(now_ms)

    def _send(self, link: Link, sending: Sending) -> None:
        if not sending.wanted():
            sending.skipped()
        elif refusal := fault(sending.push):
            sending.answered(refusal)
        else:
            token = self._provider_token.text()
            link.send(sending, header_block(sending.push, self._authority, token), token)

    def _connect_more(self, now_ms: int) -> None:
        """Open the next connection, one at a time, or wait for the first that has rested."""
        if any(seat.connecting for seat in self._seats):
            return
        if any(seat.is_new for seat in self._seats):
            return
        for seat in self._seats:
            if (seat.link is None or seat.link.draining) and not seat.circuit.rests(now_ms):
                seat.connecting = asyncio.create_task(self._connect(seat))
                return
        resting = [seat.circuit.until_ms for seat in self._seats if seat.circuit.rests(now_ms)]
        if resting and self._waking is None:
            self._waking = asyncio.create_task(self._wake_at(min(resting)))

    async def _connect(self, seat: _Seat) -> None:
        link = Link(partial(self._answered, seat), self._returned, partial(self._changed, seat), self._times)
        try:
            await link.open(self._host, self._port, self._trust)
            self._links.add(link)
            seat.link = link
        except OSError as error:
            if seat.circuit.trip(self._clock.now_ms()):
                logger.warning("no connection to the push service", host=self._host, error=_text(error))
        finally:
            seat.connecting = None
            self._pump_soon()

    async def _wake_at(self, moment_ms: int) -> None:
        await self._clock.sleep_until(moment_ms)
        self._waking = None
        self._pump_soon()

    # --- what comes back

    def _answered(self, seat: _Seat, link: Link, sending: Sending, provider_token: str, result: ApnsResult) -> None:
        APNS_ANSWERS.labels(label(result)).inc()
        self._upkeep(seat, link, provider_token, verdict(result).action)
        sending.answered(result)

    def _upkeep(self, seat: _Seat, link: Link, provider_token: str, action: Action) -> None:
        """What an answer means for the connection and the provider token."""
        match action:
            case Action.RENEW_TOKEN:
                if not self._provider_token.renew(provider_token):
                    logger.error("Apple calls a new provider token expired: is this machine's clock right?")
            case Action.HOLD_TOKEN:
                self._provider_token.hold()
                seat.circuit.trip(self._clock.now_ms())
                link.drain()
            case Action.BACK_OFF:
                if seat.circuit.trip(self._clock.now_ms()):
                    logger.warning("the push service has trouble; its connection rests", host=self._host)
            case Action.RECONNECT:
                link.drain()
            case Action.REPEAT | Action.STOP_APP | Action.DELAY_DEVICE:
                pass
            case _:
                seat.circuit.close()

    def _returned(self, sending: Sending) -> None:
        self._queue.appendleft(sending)
        self._pump_soon()

    def _changed(self, seat: _Seat, link: Link) -> None:
        """A connection that ends before it proved to be of use is not made again at once."""
        if link.is_over:
            self._links.discard(link)
            if not link.is_proven and not link.is_idle:
                seat.circuit.trip(self._clock.now_ms())
        self._pump_soon()


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__
