"""`carillon up-analytics`: the analytics of `carillon up`, which starts it as its child process.

The command is in no help text: only its parent starts it.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import click
import uvloop

from analytics.settings import ROLE_NAME, AnalyticsSettings
from carillon.environment import environment
from carillon.roles import role_definition
from carillon.startup import logged_errors, restrict_permissions, shorten_thread_turns
from protos.runtime.v1.process_pb2_grpc import add_ProcessServiceServicer_to_server
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import BuiltRole, RoleContext
from services.domain.role_context import open_log
from services.domain.topics import TOPICS
from services.runtime.child.of_parent import (
    ProcessServicer,
    end_with_parent,
    lower_priority,
    stop_is_asked,
    tell_ready,
)
from services.runtime.errors import ConflictError
from services.runtime.log.monitored import MonitoredLog
from services.runtime.process import background, data_directory, memory
from services.runtime.process.clock import SystemClock
from services.runtime.process.logs import configure, logger
from services.runtime.process.memory import IdleMemory, OwnMemory
from services.runtime.process.retries import retry_until_available
from services.runtime.process.runner import run
from services.runtime.process.settings import Settings, load
from services.runtime.rpc.listener import RpcListener
from services.runtime.rpc.peers import Peers
from services.runtime.rpc.server import serve
from services.runtime.status.own_status import OwnStatus

_SOCKET_NAME = "analytics.sock"
_POLL_S = 1.0
_LOCK_EVERY_S = 0.2


def command(parent: int) -> list[str]:
    """Return how `carillon up`, which has no arguments, starts this command: as it was started itself."""
    return [sys.executable, *sys.orig_argv[1:-1], "up-analytics", "--parent", str(parent)]


def address(settings: Settings) -> str:
    """Return the address of the Unix socket at which the process takes calls."""
    return f"unix:{settings.data.absolute() / _SOCKET_NAME}"


@click.command(hidden=True)
@click.option("--parent", type=int, required=True)
def up_analytics(parent: int) -> None:
    """Run the analytics of `carillon up`, the process PARENT."""
    end_with_parent(parent)
    lower_priority()
    sys.meta_path.insert(0, _WithoutPandas())
    restrict_permissions()
    shorten_thread_turns()
    memory.collect_rarely()
    with logged_errors():
        settings = load(AnalyticsSettings, environment())
        configure(settings.log_level)
        uvloop.run(_up_analytics(settings))


class _WithoutPandas(MetaPathFinder):
    """Makes pandas count as not installed: pyarrow imports it where it is, and nothing here uses it.

    It takes 30 to 40 MiB and half a second of the start.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


async def _up_analytics(settings: AnalyticsSettings) -> None:
    stopping = asyncio.Event()
    asking = background.start("the parent's request to stop", stop_is_asked(stopping))
    try:
        async with _locked(settings.state_dir(ROLE_NAME), stopping), _role(settings) as (built, log):
            server = serve([address(settings)])
            for add_to in built.servicers:
                add_to(server)
            stage = _Stage()
            own = OwnStatus([built.reported(settings)], SystemClock().now_ms(), stage.name, background.ended)
            add_ProcessServiceServicer_to_server(ProcessServicer(background.ended, own.read), server)
            listener = RpcListener("analytics calls", server)
            services = [*built.services, IdleMemory(SystemClock(), OwnMemory())]
            await run(
                services,
                on_ready=stage.set_ready,
                progress=lambda: log.records_read,
                listeners=[listener],
                stopping=stopping,
            )
    finally:
        asking.cancel()


@asynccontextmanager
async def _locked(state: Path, stopping: asyncio.Event) -> AsyncIterator[None]:
    """Lock the role's state, once a process of a former start has ended: its parent may have been killed just now."""
    with contextlib.ExitStack() as stack:
        while not stopping.is_set():
            try:
                stack.enter_context(data_directory.lock_directory(state, data_directory.RUNNING_LOCK))
                break
            except ConflictError:
                logger.warning("analytics waits for the end of its former process", state=str(state))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOCK_EVERY_S):
                        await stopping.wait()
        yield


@asynccontextmanager
async def _role(settings: AnalyticsSettings) -> AsyncIterator[tuple[BuiltRole, MonitoredLog]]:
    """Yield the role and its log. It is given no more than it needs: it reads the log, calls no other role, and has no
    key."""
    opened = await retry_until_available(
        "the log cannot be reached yet", lambda: open_log(settings, read_only=True, poll_s=_POLL_S)
    )
    log = MonitoredLog(opened)
    try:
        context = RoleContext(log, SystemClock(), Peers({}, TOPICS), Keys({}), AppDirectory(log))
        yield role_definition(ROLE_NAME).build(settings, context), log
    finally:
        await log.close()


class _Stage:
    """Whether this process is ready, for its parent."""

    def __init__(self) -> None:
        self._is_ready = False

    def name(self) -> str:
        return "ready" if self._is_ready else "starting"

    def set_ready(self) -> None:
        self._is_ready = True
        memory.freeze_startup_objects()
        tell_ready()
