"""The size of a run of the ledger test, its faults, and its result."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tests.soak.checks import Observations, Violation
from tests.soak.ios_devices import DeviceServer
from tests.soak.pushes import ANY_PUSH, Mixture
from tests.soak.senders import IN_FLIGHT, HttpInterface


@dataclass(frozen=True)
class Plan:
    """The size of a run: seconds of load, devices, requests a second; the seed fixes the random choices.

    `steady`: further devices, which only stay connected. `in_flight`: requests at a time at most.
    """

    seconds: float
    devices: int
    rate: float
    seed: int
    steady: int = 0
    in_flight: int = IN_FLIGHT
    mixture: Mixture = ANY_PUSH


class Verdict(NamedTuple):
    """The result of a run. `counts` are for people; `timelines` explain the messages of the violations."""

    violations: Sequence[Violation]
    timelines: Sequence[str]
    counts: dict[str, Any]
    observed: Observations


class EdgeClient(HttpInterface, DeviceServer, Protocol):
    """A client of an edge for app servers, and for devices without a connection."""


class Faults(Protocol):
    """Injects faults into an installation under load.

    `done` counts the faults, `ended` the processes that ended by themselves.
    """

    done: Counter[str]
    ended: Counter[str]

    async def inject(self, seconds: float) -> None:
        """Inject faults for about so many seconds; return once every process runs again."""
        ...
