"""Sends pushes with a speed (`qps`) to connected devices, each push at its rate."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from services.delivery.limits import RateLimiter
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import StartedPush
from services.domain.apps import AppDirectory
from services.process.clock import Clock
from services.process.logs import logger

_SLICE = 1000
_CAPACITY_CHECK_MS = 100
"""Interval at which a push without capacity in the streams to gateways checks for it."""

SendToNumbers = Callable[[StartedPush, int, Sequence[int]], int]
"""Sends a push to those of the device numbers in a partition that are connected; returns the number of messages."""


@dataclass(slots=True)
class _PacedPush:
    """A push, its rate limiter, and by partition the devices that are still to be sent it."""

    push: StartedPush
    limiter: RateLimiter
    unsent: dict[int, BitMap] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None

    def take(self, count: int) -> tuple[int, list[int]]:
        """Remove up to `count` devices of one partition and return them."""
        partition, numbers = next(iter(self.unsent.items()))
        some = numbers[:count]
        numbers -= some
        if not numbers:
            del self.unsent[partition]
        return partition, list(some)


class PacedSender:
    """Runs one task for each push while devices are unsent, so that a slow push delays no other.

    The task of a push waits while its app is paused, or has no capacity in the streams to gateways. Each of the
    `shards` instances sends a push at an equal share of its rate.
    """

    def __init__(
        self,
        state: DeliveryState,
        recorder: OutcomeRecorder,
        apps: AppDirectory,
        clock: Clock,
        shards: int,
        has_capacity: Callable[[str], bool],
        send: SendToNumbers,
    ) -> None:
        self._state = state
        self._apps = apps
        self._recorder = recorder
        self._clock = clock
        self._shards = shards
        self._has_capacity = has_capacity
        self._send = send
        self._paced: dict[int, _PacedPush] = {}

    def add(self, push: StartedPush, partition: int, numbers: BitMap) -> None:
        """Queue the push for these devices; devices that are queued for it already stay queued once."""
        if not numbers:
            return
        paced = self._paced.get(push.msgid)
        if paced is None:
            self._forget()
            paced = _PacedPush(push, RateLimiter(self._clock, push.send.qps / self._shards))
            self._paced[push.msgid] = paced
        paced.unsent[partition] = paced.unsent.get(partition, BitMap()) | numbers
        if paced.task is None:
            paced.task = asyncio.create_task(self._send_all(paced))

    async def close(self) -> None:
        """Stop sending. Devices are sent the rest when they connect after the next start."""
        tasks = [paced.task for paced in self._paced.values() if paced.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_all(self, paced: _PacedPush) -> None:
        appkey = paced.push.send.appkey
        try:
            while paced.unsent:
                count = await paced.limiter.wait_allowed(_SLICE)
                await self._recorder.wait_capacity()
                if self._apps.is_paused(appkey):
                    await self._apps.until_resumed(appkey)
                    continue
                if not self._has_capacity(appkey):
                    await self._clock.sleep_until(self._clock.now_ms() + _CAPACITY_CHECK_MS)
                    continue
                if not self._state.may_send(paced.push, self._clock.now_ms()):
                    paced.unsent.clear()
                    return
                paced.limiter.consume(self._send(paced.push, *paced.take(count)))
        except Exception as error:
            logger.error("a paced push stopped; devices get it with their next connection", exc_info=error)
        finally:
            paced.task = None

    def _forget(self) -> None:
        """Drop the pushes that are over; those in progress keep their rate limiter."""
        self._paced = {
            msgid: paced for msgid, paced in self._paced.items() if paced.task or self._state.is_in_progress(msgid)
        }
