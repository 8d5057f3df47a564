"""Generation of ids: events, device tokens, appkeys, secrets and messages."""

import fcntl
import os
import secrets
import string
from pathlib import Path
from typing import IO

from services.runtime.errors import CarillonError, InputError
from services.runtime.process.clock import Clock

_EPOCH_MS = 1_767_225_600_000  # 2026-01-01 UTC
_TICK_BITS = 18
_WORKER_BITS = 5
_MARK_BYTES = 8
WORKERS = 1 << _WORKER_BITS
_LETTERS = string.ascii_letters + string.digits


def event_id() -> bytes:
    """Return a new event id: 16 random bytes."""
    return os.urandom(16)


def new_appkey() -> str:
    """Return ten decimal digits below 2^31: clients in the field store an appkey in a 32-bit int."""
    return str(1_000_000_000 + secrets.randbelow(2**31 - 1_000_000_000))


def new_secret() -> str:
    """Return 64 random letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(64))


def new_token() -> str:
    """Return a device token: 32 hexadecimal digits."""
    return secrets.token_hex(16)


class MessageIds:
    """Unique, increasing ids below 2^53: 30 bits of seconds since 2026, 5 bits of worker, 18 bits of ticks.

    A worker that needs more than 262,144 ids in a second runs ahead of the clock until the clock catches up. Ids of
    two workers are in order from one second to the next, not within a second.

    `mark` is the worker's file, which stores the last second in use: a restarted worker continues after it, even if it
    had run ahead or the clock was set back meanwhile. None: the second is not stored.
    """

    def __init__(self, clock: Clock, worker: int, mark: IO[bytes] | None = None) -> None:
        self._clock = clock
        self._worker = worker << _TICK_BITS
        self._mark = mark
        self._marked = -1 if mark is None else int.from_bytes(os.pread(mark.fileno(), _MARK_BYTES, 0), "big")
        self._second = self._marked + 1
        self._tick = 0

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive ids. InputError: `count` is not between 1 and 2^18."""
        if not 1 <= count <= 1 << _TICK_BITS:
            raise InputError(f"{count} message ids cannot be given at once")
        elapsed_ms = self._clock.now_ms() - _EPOCH_MS
        second, tick = elapsed_ms // 1000, (elapsed_ms % 1000 << _TICK_BITS) // 1000
        if (second, tick) > (self._second, self._tick):
            self._second, self._tick = second, tick
        if self._tick + count > 1 << _TICK_BITS:
            self._second, self._tick = self._second + 1, 0
        if self._second > self._marked:
            self._note()
        first = self._second << (_WORKER_BITS + _TICK_BITS) | self._worker | self._tick
        self._tick += count
        return first

    def _note(self) -> None:
        self._marked = self._second
        if self._mark is not None:
            os.pwrite(self._mark.fileno(), self._marked.to_bytes(_MARK_BYTES, "big"), 0)


def issued_ms(msgid: int) -> int:
    """Return the time at which a message id was issued, in ms since 1970, to the second."""
    return _EPOCH_MS + (msgid >> (_WORKER_BITS + _TICK_BITS)) * 1000


def claim_worker(directory: Path, shard: int, shards: int) -> tuple[int, IO[bytes]]:
    """Return a worker number of the shard's share that no other process uses, and its file.

    The lock on the file reserves the number until the file is closed or the process ends.
    """
    directory.mkdir(parents=True, exist_ok=True)
    share = range(shard, WORKERS, shards)
    for worker in share:
        descriptor = os.open(directory / f"worker-{worker}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        lock = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return worker, lock
    raise CarillonError(f"all of this shard's {len(share)} message id workers are taken; start fewer edge workers")
