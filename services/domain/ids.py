"""Ids: events, tokens, apps, and message ids."""

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
    """16 random bytes."""
    return os.urandom(16)


def new_appkey() -> str:
    """Ten decimal digits below 2^31: clients in the field keep an appkey in a 32-bit int."""
    return str(1_000_000_000 + secrets.randbelow(2**31 - 1_000_000_000))


def new_secret() -> str:
    """64 letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(64))


def new_token() -> str:
    """A device token: 32 hexadecimal digits."""
    return secrets.token_hex(16)


class MessageIds:
    """Unique, increasing ids below 2^53: 30 bits of seconds since 2026, 5 bits of worker, 18 bits of ticks.

    A worker that needs more than 262,144 ids in a second runs ahead of the clock and the clock catches up. Ids of two
    workers are in order from one second to the next, not within one.

    `mark` is the worker's file, which keeps the last second in use: a worker that starts again goes on after it, though
    it had run ahead or the clock was set back meanwhile. None: in memory alone.
    """

    def __init__(self, clock: Clock, worker: int, mark: IO[bytes] | None = None) -> None:
        self._clock = clock
        self._worker = worker << _TICK_BITS
        self._mark = mark
        self._marked = -1 if mark is None else int.from_bytes(os.pread(mark.fileno(), _MARK_BYTES, 0), "big")
        self._second = self._marked + 1
        self._tick = 0

    def take(self, count: int = 1) -> int:
        """The first of `count` ids that follow each other. InputError: not between 1 and 2^18 of them."""
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
    """When a message id was issued, milliseconds since 1970, to the second."""
    return _EPOCH_MS + (msgid >> (_WORKER_BITS + _TICK_BITS)) * 1000


def claim_worker(directory: Path, shard: int, shards: int) -> tuple[int, IO[bytes]]:
    """A worker number that no other process has, one of the shard's share, and its file.

    The worker is held by a lock on the file until that is closed or the process ends.
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
