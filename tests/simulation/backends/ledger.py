"""The ledger of a world of roles: the answers that its driver has got."""

from dataclasses import dataclass, field
from typing import NamedTuple

from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import CreateTask


class FailedCall(NamedTuple):
    """A call of the driver that got an error instead of an answer, from when until when."""

    name: str
    begun_ms: int
    ended_ms: int
    error: str


@dataclass
class Ledger:
    """The answered pushes, tasks and cancels, of which none may be lost. `errors`: reads that contradict them."""

    pushes: dict[int, SendPush] = field(default_factory=dict)
    tasks: dict[str, CreateTask] = field(default_factory=dict)
    cancelled_pushes: set[int] = field(default_factory=set)
    cancelled_tasks: set[str] = field(default_factory=set)
    """Tasks that scheduling has said to be cancelled."""
    targets: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    """The appkeys and tokens of devices that were registered when a push to everyone was made, by message id."""
    errors: list[str] = field(default_factory=list)
    failed_calls: list[FailedCall] = field(default_factory=list)
