"""The ledger of a world of roles: the answers that its driver has got."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from protos.push.v1.push_pb2 import SendPush
from protos.scheduling.v1.scheduling_pb2 import CreateTask
from services.errors import CarillonError
from services.process.clock import Clock

Result = TypeVar("Result")
_RETRY_S = 1.0


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

    async def attempt(self, name: str, action: Callable[[], Awaitable[None]], clock: Clock) -> None:
        """Carry out the action; note its error, after which it is not known whether its command was appended."""
        begun_ms = clock.now_ms()
        try:
            await action()
        except CarillonError as error:
            self.failed_calls.append(FailedCall(name, begun_ms, clock.now_ms(), repr(error)))


async def until_answered(call: Callable[[], Awaitable[Result]]) -> Result:
    """Call again and again until there is an answer."""
    while True:
        try:
            return await call()
        except CarillonError:
            await asyncio.sleep(_RETRY_S)
