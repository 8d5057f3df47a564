"""The `carillon` command on a clock that the demo moves: the machine's, and a difference that another process sets.

    DEMO_CLOCK=FILE python -m demo.moved_clock up

FILE holds the difference. It begins below zero, so that days of history pass in a minute, grows in leaps, and ends at
zero: from then on the clock is the machine's. Clocks only ever go forward.
"""

import asyncio
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from services.process import clock

VARIABLE = "DEMO_CLOCK"
NOT_KEPT = {"connection": "close"}
"""Headers of each request to the service: after a leap it closes all connections, as unused for too long."""

_DIFFERENCE = struct.Struct("<q")
_POLL_S = 0.05
_POLL_AT_MACHINE_TIME_S = 60.0


class ClockFile:
    """The difference to the machine's clock in milliseconds, in a file that several processes have mapped."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _DIFFERENCE.size)

    @classmethod
    def create(cls, path: Path, difference_ms: int) -> "ClockFile":
        path.write_bytes(_DIFFERENCE.pack(difference_ms))
        return cls(path)

    @property
    def difference_ms(self) -> int:
        difference: int = _DIFFERENCE.unpack_from(self._bytes)[0]
        return difference

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.difference_ms

    def move_to(self, moment_ms: int) -> None:
        """Move the clock forward to this moment, at most to the machine's time; an earlier moment changes nothing."""
        difference_ms = min(moment_ms - time.time_ns() // 1_000_000, 0)
        _DIFFERENCE.pack_into(self._bytes, 0, max(difference_ms, self.difference_ms))


class MovedClock(clock.SteadyClock):
    """The clock of every role. Sleepers read the file again at intervals, so that they notice each leap."""

    def __init__(self) -> None:
        super().__init__()
        self._file = ClockFile(Path(os.environ[VARIABLE]))

    def now_ms(self) -> int:
        return self._file.now_ms()

    def host_ms(self) -> int:
        return self._file.now_ms()

    async def sleep_until(self, moment_ms: int) -> None:
        while (left_ms := moment_ms - self.now_ms()) > 0:
            await asyncio.sleep(min(left_ms / 1000, self._poll_s()))

    def call_at(self, moment_ms: int, callback: Callable[[], None]) -> None:
        left_ms = moment_ms - self.now_ms()
        if left_ms <= 0:
            asyncio.get_running_loop().call_soon(callback)
        else:
            pause_s = min(left_ms / 1000, self._poll_s())
            asyncio.get_running_loop().call_later(pause_s, self.call_at, moment_ms, callback)

    def _poll_s(self) -> float:
        return _POLL_S if self._file.difference_ms else _POLL_AT_MACHINE_TIME_S


def run() -> None:
    """Run the command line with this clock in place of the machine's."""
    clock.SystemClock = MovedClock  # type: ignore[misc]
    clock.SteadyClock = MovedClock  # type: ignore[misc, assignment]
    from carillon.main import main

    main()


if __name__ == "__main__":
    run()
