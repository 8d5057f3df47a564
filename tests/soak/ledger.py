"""The ledger: everything the clients did and saw, in memory for the checks and as lines of a file for people."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple


class Outcome(Enum):
    """The outcome of a request: result 0, refused, or unknown because there was no answer."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class State(NamedTuple):
    """The properties of a device that pushes select by."""

    token: str
    alias: str | None = None
    tags: frozenset[int] = frozenset()
    stags: frozenset[str] = frozenset()
    channel: str = ""


class Change(NamedTuple):
    """A state that a device requested at `asked_ms`; requests from `seen_ms` on see it."""

    asked_ms: int
    seen_ms: int
    state: State


class Shown(NamedTuple):
    """A message that a device showed, and when."""

    msgid: int
    content: str
    time_ms: int


class Frame(NamedTuple):
    """A push frame received, repeated ones too; `connected_ms`: when its connection was begun."""

    msgid: int
    connection: int
    connected_ms: int
    is_fault_free: bool


@dataclass
class Push:
    """A push request and its outcome. `ids`: the first message id by appkey."""

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
    """The requests and events of all clients. `errors`: what a client saw that must never happen."""

    def __init__(self, path: Path) -> None:
        self.pushes: list[Push] = []
        self.errors: list[str] = []
        self.is_fault_free = True
        """No fault has been injected since nothing was pending any more."""
        self._file = path.open("w", encoding="utf-8")

    def write(self, what: str, **fields: Any) -> None:
        line = {"time_ms": now_ms(), "what": what, **fields}
        self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self._file.close()

    def count(self, outcome: Outcome) -> int:
        return sum(push.outcome is outcome for push in self.pushes)


def certain_state(history: list[Change], since_ms: int, until_ms: int) -> State | None:
    """Return the state that a device certainly had all that time; None when it changed or did not exist yet."""
    for index, change in enumerate(history):
        later = history[index + 1].asked_ms if index + 1 < len(history) else until_ms + 1
        if change.seen_ms < since_ms and until_ms < later:
            return change.state
    return None


def now_ms() -> int:
    return time.time_ns() // 1_000_000
