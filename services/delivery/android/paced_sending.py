"""Pushes with a speed of their own: who has still to be sent each of them, and when the next ones may go."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from services.delivery.android.rate_limiter import Pace
from services.delivery.outcome_recorder import OutcomeRecorder
from services.delivery.state.delivery_state import DeliveryState
from services.delivery.state.pushes import Push
from services.runtime.process.clock import Clock
from services.runtime.process.logs import logger

_SLICE = 1000

SendSome = Callable[[Push, int, Sequence[int]], int]
"""Sends a push to devices of a partition, those that are here and have not got it; returns how many messages."""


@dataclass(slots=True)
class _Queue:
    """The devices, by partition, that wait for their turn; its pace goes on for as long as the push does."""

    push: Push
    pace: Pace
    waiting: dict[int, BitMap] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None

    def take(self, count: int) -> tuple[int, list[int]]:
        partition, numbers = next(iter(self.waiting.items()))
        some = numbers[:count]
        numbers -= some
        if not numbers:
            del self.waiting[partition]
        return partition, list(some)


class Pacing:
    """A task a push, while somebody waits for it; so that a slow one delays nothing else.

    `shards` instances send the push at once, each at its share of the speed.
    """

    def __init__(
        self, state: DeliveryState, recorder: OutcomeRecorder, clock: Clock, shards: int, send: SendSome
    ) -> None:
        self._state = state
        self._recorder = recorder
        self._clock = clock
        self._shards = shards
        self._send = send
        self._queues: dict[int, _Queue] = {}

    def add(self, push: Push, partition: int, numbers: BitMap) -> None:
        """Have the push sent to these devices when their turn comes; those that wait for it already wait once."""
        if not numbers:
            return
        queue = self._queues.get(push.msgid)
        if queue is None:
            self._forget()
            queue = self._queues[push.msgid] = _Queue(push, Pace(self._clock, push.send.qps / self._shards))
        queue.waiting[partition] = queue.waiting.get(partition, BitMap()) | numbers
        if queue.task is None:
            queue.task = asyncio.create_task(self._work_off(queue))

    async def close(self) -> None:
        """Stop; what was not sent is sent after the next start."""
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_off(self, queue: _Queue) -> None:
        try:
            while queue.waiting:
                count = await queue.pace.free(_SLICE)
                await self._recorder.room()
                if not self._may_go(queue.push):
                    queue.waiting.clear()
                    return
                queue.pace.went(self._send(queue.push, *queue.take(count)))
        except Exception as error:
            logger.error("a push stopped on its way; who missed it gets it with the next connection", exc_info=error)
        finally:
            queue.task = None

    def _may_go(self, push: Push) -> bool:
        over = push.expires_ms <= self._clock.now_ms() or push.msgid in self._state.cancels
        return not over and self._state.is_under_way(push.msgid)

    def _forget(self) -> None:
        self._queues = {
            msgid: queue for msgid, queue in self._queues.items() if queue.task or self._state.is_under_way(msgid)
        }
