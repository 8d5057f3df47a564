"""Ends expired pushes, and the waits of devices for an older connection's end or for messages that have ended."""

import asyncio

from services.delivery import decide
from services.delivery.channels.sockets.fanout import Fanout
from services.delivery.event_writer import EventWriter, new_facts
from services.delivery.starting import PushStarter
from services.delivery.state.delivery_state import DeliveryState
from services.domain.topics import PUSHES
from services.process.clock import Clock
from services.process.crashpoint import Point, reached

_SWEEP_MS = 1000


class ExpirySweeper:
    """A service that ends what has expired, once a second."""

    name = "delivery expiry"

    def __init__(
        self, state: DeliveryState, fanout: Fanout, starter: PushStarter, events: EventWriter, clock: Clock
    ) -> None:
        self._state = state
        self._fanout = fanout
        self._starter = starter
        self._events = events
        self._clock = clock

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        while True:
            await self.sweep()
            await self._clock.sleep_until(self._clock.now_ms() + _SWEEP_MS)

    async def sweep(self) -> None:
        """End the pushes and waits that are over by now."""
        self._fanout.end_overdue_takeovers()
        self._fanout.refill_after_ended()
        self._starter.end_expired()
        facts = [fact for push in self._state.pop_expired(self._clock.now_ms()) for fact in decide.finish(push)]
        if facts:
            reached(Point.EXPIRY_DECIDED)
            await self._events.write(PUSHES, new_facts(facts))
            reached(Point.EXPIRY_DONE)
