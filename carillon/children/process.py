"""Code that the child processes of `carillon up` share: commands, sockets, and running a role as a child."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import uvloop

from carillon.environment import environment
from carillon.startup import logged_errors, restrict_permissions, restrict_state, shorten_switch_interval
from protos.runtime.v1.process_pb2_grpc import add_ProcessServiceServicer_to_server
from services.domain.role import BuiltRole
from services.domain.settings import Settings, load
from services.errors import ConflictError
from services.net.child import ProcessServicer, end_with_parent, lower_priority, stop_is_asked, tell_ready
from services.net.rpc.server import RpcListener, serve
from services.process import background, data_directory, memory
from services.process.clock import SystemClock
from services.process.logs import configure, logger
from services.process.memory import IdleMemory, OwnMemory
from services.process.runner import run
from services.replica.own_status import OwnStatus

_LOCK_EVERY_S = 0.2

S = TypeVar("S", bound=Settings)
Progress = Callable[[], int]
"""Returns how many records of the log the process has read."""

Opened = Callable[[S], AbstractAsyncContextManager[tuple[BuiltRole, Progress]]]
"""Builds the role from its settings, and releases what it needed."""


def command(name: str, parent: int) -> list[str]:
    """Return the command line of a child command: that of this `carillon up` with its last word, `up`, replaced."""
    return [sys.executable, *sys.orig_argv[1:-1], name, "--parent", str(parent)]


def address(settings: Settings, name: str) -> str:
    """Return the address of the Unix socket at which a role or process of `carillon up` takes calls."""
    return f"unix:{settings.data.absolute() / name}.sock"


def run_as_child(parent: int, role: str, opened: Opened[S], of: type[S]) -> None:
    """Run the role in this process, the child of PARENT, until the parent asks it to stop or ends."""
    end_with_parent(parent)
    lower_priority()
    restrict_permissions()
    shorten_switch_interval()
    memory.collect_rarely()
    with logged_errors():
        settings = load(of, environment())
        configure(settings.log_level)
        restrict_state(settings.state_dir(role))
        uvloop.run(_run(role, settings, opened))


async def _run(role: str, settings: S, opened: Opened[S]) -> None:
    stopping = asyncio.Event()
    asking = background.start("the parent's request to stop", stop_is_asked(stopping))
    try:
        async with _locked(role, settings.state_dir(role), stopping), opened(settings) as (built, progress):
            server = serve([address(settings, role)])
            for add_to in built.servicers:
                add_to(server)
            stage = _Stage()
            own = OwnStatus([built.reported(settings)], SystemClock().now_ms(), stage.name, background.ended)
            add_ProcessServiceServicer_to_server(ProcessServicer(background.ended, own.read), server)
            listener = RpcListener(f"{role} calls", server)
            services = [*built.services, IdleMemory(SystemClock(), OwnMemory())]
            await run(services, on_ready=stage.set_ready, progress=progress, listeners=[listener], stopping=stopping)
    finally:
        asking.cancel()


@asynccontextmanager
async def _locked(role: str, state: Path, stopping: asyncio.Event) -> AsyncIterator[None]:
    """Lock the role's state; wait for a process of a former start, whose parent may have been killed just now."""
    with contextlib.ExitStack() as stack:
        while not stopping.is_set():
            try:
                stack.enter_context(data_directory.lock_directory(state, data_directory.RUNNING_LOCK))
                break
            except ConflictError:
                logger.warning("a child process waits for the end of its former one", role=role, state=str(state))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOCK_EVERY_S):
                        await stopping.wait()
        yield


class _Stage:
    """The stage of this process, starting or ready, as its parent is told."""

    def __init__(self) -> None:
        self._is_ready = False

    def name(self) -> str:
        return "ready" if self._is_ready else "starting"

    def set_ready(self) -> None:
        self._is_ready = True
        memory.freeze_startup_objects()
        tell_ready()
