"""The ledger: all requests and observations of the clients, in memory for the checks and in a file for people."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

LONG_S = 86_400
"""Seconds to live of pushes that must not expire."""


class Outcome(Enum):
    """The outcome of a request: result 0, refused, or unknown because there was no answer."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class State(NamedTuple):
    """The properties of a device by which pushes select it."""

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
    time_ms: int
    connection: int
    connected_ms: int


class Reachability(NamedTuple):
    """From this time on a device was connected and awake, or it was not."""

    time_ms: int
    is_reachable: bool


@dataclass
class Push:
    """A push request and its outcome. `ids`: the first message id by appkey. `delay_s`: of a timed push.

    `is_repeated`: the request had no answer at first, and was sent again under its idempotency key.
    """

    serial: int
    kind: str
    appkeys: tuple[str, ...]
    matches: Callable[[State], bool]
    period_s: int
    qps: int
    delay_s: int = 0
    most_active_only: bool = False
    may_be_cancelled: bool = False
    begun_ms: int = 0
    answered_ms: int = 0
    is_repeated: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    ids: dict[str, int] = field(default_factory=dict)
    task_key: str = ""
    cancel: Outcome | None = None
    cancelled_ms: int = 0

    @property
    def is_timed(self) -> bool:
        return self.delay_s > 0

    @property
    def content(self) -> str:
        return f"soak {self.serial}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class LedgerFile:
    """A file with one JSON object for each event."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event, ensure_ascii=False, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


class Ledger:
    """The requests and events of all clients. `errors`: observations that must never be made.

    `record` gets each event for people to read; `now_ms` is the time of the clients.
    """

    def __init__(self, record: Callable[[Mapping[str, Any]], None], now_ms: Callable[[], int] = now_ms) -> None:
        self.now_ms = now_ms
        self.pushes: list[Push] = []
        self.errors: list[str] = []
        self.doubled: list[int] = []
        """Messages that a device showed once more."""
        self.apart: set[str] = set()
        """Apps whose pushes are not in the ledger."""
        self.wrong_signs: list[tuple[int, Sequence[str]]] = []
        """When requests were refused because of their sign, and the secret keys that they were signed with."""
        self.has_paused = False
        """The app was paused, so that timed pushes with a short time to live may have expired unsent."""
        self._record = record

    def write(self, what: str, **fields: Any) -> None:
        self._record({"time_ms": self.now_ms(), "what": what, **fields})

    def may_expire_unsent(self, push: Push) -> bool:
        """Return whether the push may end before it is in the log of pushes."""
        return self.has_paused and push.is_timed and push.period_s < LONG_S

    def count(self, outcome: Outcome) -> int:
        return sum(push.outcome is outcome for push in self.pushes)


def certain_state(history: list[Change], since_ms: int, until_ms: int) -> State | None:
    """Return the state that a device certainly had all that time; None when it changed or did not exist yet."""
    for index, change in enumerate(history):
        later = history[index + 1].asked_ms if index + 1 < len(history) else until_ms + 1
        if change.seen_ms < since_ms and until_ms < later:
            return change.state
    return None
