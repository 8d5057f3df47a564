"""Schedule of one app: pushes in progress, sent chunk by chunk, and messages that are ready or delayed."""

from collections import deque
from collections.abc import Callable, Iterable

from services.delivery.ios.delay_queue import DelayQueue
from services.delivery.ios.device_message import DeviceMessage
from services.delivery.ios.push_progress import PayloadOf, PushProgress
from services.delivery.ios.round_robin import Chunk, RoundRobin
from services.delivery.state.pushes import StartedPush
from services.runtime.process.clock import Clock

MAX_DELAYED = 10_000
"""Upper bound of the retry queue per app; messages beyond it wait for the next pass over the audience."""

_KEY_CHECK_MS = 5_000
"""Longest wait before another pass while the app has no key."""


class PushSchedule:
    """Chooses the messages of one app to send next.

    `wake_up` is called when there may be something to send; `has_key` returns whether the app has a signing key.
    """

    def __init__(
        self,
        clock: Clock,
        shards: int,
        wake_up: Callable[[], None],
        has_key: Callable[[], bool],
        payload_of: PayloadOf,
    ) -> None:
        self._clock = clock
        self._payload_of = payload_of
        self._has_key = has_key
        self._running: set[PushProgress] = set()
        self._turns = RoundRobin(clock, shards, wake_up, self._end_if_done)
        self._ready: deque[DeviceMessage] = deque()
        self._delayed: DelayQueue[DeviceMessage | PushProgress | None] = DelayQueue(clock, wake_up)

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, push: StartedPush, partitions: Iterable[int]) -> None:
        progress = PushProgress(push, partitions, self._payload_of)
        self._running.add(progress)
        self._turns.add(progress)

    def collect_due(self) -> None:
        """Make ready what was delayed until now."""
        for item in self._delayed.take_due():
            if isinstance(item, PushProgress):
                self._turns.add(item)
            elif item is not None:
                self._ready.append(item)

    def take_ready(self, count: int) -> list[DeviceMessage]:
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    def take_chunks(self, count: int) -> list[Chunk]:
        """Chunks with up to `count` devices in all; the caller releases each chunk's push once."""
        return self._turns.take(count)

    def resend(self, message: DeviceMessage) -> None:
        """Make a message ready at once."""
        self._ready.append(message)

    def postpone(self, message: DeviceMessage, due_ms: int) -> None:
        """Make a message ready at a time; if too many are delayed, leave its device to the push's next pass."""
        if len(self._delayed) + len(self._ready) < MAX_DELAYED:
            self._delayed.put(due_ms, message)
        else:
            message.progress.needs_pass = True
            self.release(message.progress)

    def wake_at(self, time_ms: int) -> None:
        self._delayed.put(time_ms, None)

    def release(self, progress: PushProgress) -> None:
        """Note that a chunk or a message of the push is concluded."""
        progress.in_flight -= 1
        if not progress.in_flight:
            self._end_if_done(progress)

    def close(self) -> None:
        self._delayed.close()
        self._turns.close()

    def _end_if_done(self, progress: PushProgress) -> None:
        """With nothing of the push in flight: continue its pass, schedule another one, or end it."""
        now_ms = self._clock.now_ms()
        is_running = progress.is_running(now_ms)
        if is_running and not progress.is_pass_complete:
            return
        if is_running and progress.needs_pass:
            wait_ms = progress.start_pass()
            self._delayed.put(now_ms + (wait_ms if self._has_key() else min(wait_ms, _KEY_CHECK_MS)), progress)
        else:
            self._running.discard(progress)
