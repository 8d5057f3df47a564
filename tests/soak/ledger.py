"""What the clients did and saw: in memory for the checks, and a line each in a file for people."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(Enum):
    """What a request came to: result 0, a refusal, or nobody knows."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class State(NamedTuple):
    """What a device is like, as far as pushes select by it."""

    token: str
    alias: str | None = None
    tags: frozenset[int] = frozenset()
    stags: frozenset[str] = frozenset()
    channel: str = ""


class Change(NamedTuple):
    """A state that a device asked for at `asked_ms` and that every later request sees from `seen_ms` on."""

    asked_ms: int
    seen_ms: int
    state: State


class Shown(NamedTuple):
    """When a device showed a message."""

    msgid: int
    content: str
    time_ms: int


class Frame(NamedTuple):
    """One push as it came over the wire, a repeated one too; `connected_ms`: when that connection was begun."""

    msgid: int
    connection: int
    connected_ms: int
    is_calm: bool


@dataclass
class Push:
    """One request to send, and what became of it. `ids`: the first message id by appkey."""

    serial: int
    kind: str
    appkeys: tuple[str, ...]
    matches: Callable[[State], bool]
    period_s: int
    qps: int
    is_timed: bool = False
    most_active_only: bool = False
    may_be_cancelled: bool = False
    begun_ms: int = 0
    outcome: Outcome = Outcome.UNKNOWN
    ids: dict[str, int] = field(default_factory=dict)
    task_key: str = ""
    cancel: Outcome | None = None
    cancelled_ms: int = 0

    @property
    def content(self) -> str:
        return f"soak {self.serial}"


class Ledger:
    """`faults`: what a client noticed by itself and must never happen."""

    def __init__(self, path: Path) -> None:
        self.pushes: list[Push] = []
        self.faults: list[str] = []
        self.is_calm = True
        """Nothing is killed or stopped, and nothing was since everything was last seen to be well."""
        self._file = path.open("w", encoding="utf-8")

    def write(self, what: str, **fields: Any) -> None:
        line = {"time_ms": now_ms(), "what": what, **fields}
        self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self._file.close()

    def count(self, outcome: Outcome) -> int:
        return sum(push.outcome is outcome for push in self.pushes)


def certain_state(history: list[Change], since_ms: int, until_ms: int) -> State | None:
    """The state a device certainly had all that time. None: it changed meanwhile, or did not exist yet."""
    for index, change in enumerate(history):
        later = history[index + 1].asked_ms if index + 1 < len(history) else until_ms + 1
        if change.seen_ms < since_ms and until_ms < later:
            return change.state
    return None


def now_ms() -> int:
    return time.time_ns() // 1_000_000
