"""The trace of a world: what happened when, and a hash over it that is the same whenever the seed is the same."""

import hashlib
from collections import Counter, deque
from collections.abc import Callable

Value = int | float | str | bytes | bool | None


class Trace:
    """Named events with their simulated time and process. `counts` holds the number of events by name.

    `event` is for what must be the same in each run of the seed: it enters the hash. `note` is for texts that name
    paths, memory addresses or other details of this run: they are printed and do not enter the hash.
    """

    def __init__(self, now_s: Callable[[], float], process: Callable[[], str], kept: int = 20_000) -> None:
        self.counts: Counter[str] = Counter()
        self._now_s = now_s
        self._process = process
        self._hash = hashlib.blake2b(digest_size=16)
        self._lines: deque[str] = deque(maxlen=kept)

    def event(self, name: str, /, **fields: Value) -> None:
        """Record an event. Its fields are values that the seed determines."""
        self.counts[name] += 1
        line = self._line(name, fields)
        self._hash.update(line.encode())
        self._lines.append(line)

    def note(self, name: str, /, **fields: object) -> None:
        """Record a text for the reader of the trace."""
        self._lines.append(self._line(name, fields))

    @property
    def digest(self) -> str:
        """The hash over all events so far."""
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """Return the latest lines, oldest first."""
        return list(self._lines)

    def _line(self, name: str, fields: object) -> str:
        assert isinstance(fields, dict)
        details = "".join(
            f" {key}={value.hex() if isinstance(value, bytes) else value}" for key, value in fields.items()
        )
        return f"{self._now_s():14.6f} {self._process():<16} {name}{details}\n"
