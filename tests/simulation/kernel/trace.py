"""The trace of a world: what happened when, and a hash over it that is the same whenever the seed is the same."""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping

Value = int | float | str | bytes | bool | None

_HASHED_TOGETHER = 200
"""Lines that are hashed at a time, which takes less than one by one."""


class _Encoder(json.JSONEncoder):
    """Writes sets in the order of their members, and what JSON does not know as texts."""

    def default(self, o: object) -> object:
        return sorted(o) if isinstance(o, frozenset) else str(o)


_ENCODER = _Encoder()


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
        self._unhashed: list[str] = []
        self._lines: deque[str] = deque(maxlen=kept)

    def event(self, name: str, /, **fields: Value) -> None:
        """Record an event. Its fields are values that the seed determines."""
        self.counts[name] += 1
        line = self._line(name, fields)
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == _HASHED_TOGETHER:
            self._hash_lines()

    def json_event(self, name: str, fields: Mapping[str, object]) -> None:
        """Record an event, with its fields as JSON."""
        self.event(name, fields=_ENCODER.encode(fields))

    def note(self, name: str, /, **fields: object) -> None:
        """Record a text for the reader of the trace."""
        self._lines.append(self._line(name, fields))

    @property
    def digest(self) -> str:
        """The hash over all events so far."""
        self._hash_lines()
        return self._hash.hexdigest()

    def lines(self) -> list[str]:
        """Return the latest lines, oldest first."""
        return list(self._lines)

    def _hash_lines(self) -> None:
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    def _line(self, name: str, fields: Mapping[str, object]) -> str:
        line = f"{self._now_s():14.6f} {self._process():<16} {name}"
        for key, value in fields.items():
            line += f" {key}={value.hex() if isinstance(value, bytes) else value}"
        return line + "\n"
