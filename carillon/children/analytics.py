"""`carillon up-analytics`: the analytics of `carillon up`, which starts it as its child process.

The command is in no help text: only its parent starts it.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.abc import MetaPathFinder
from typing import Any, cast

import click

from analytics.settings import ROLE_NAME, AnalyticsSettings
from carillon.children.process import Progress, run_as_child
from carillon.roles import role_definition
from protos.analytics.v1.analytics_pb2 import DESCRIPTOR
from protos.analytics.v1.analytics_pb2_grpc import AnalyticsServiceStub, add_AnalyticsServiceServicer_to_server
from services.domain.apps import AppDirectory
from services.domain.master_key import Keys
from services.domain.role import BuiltRole, RoleContext
from services.domain.role_context import open_log, readable_log
from services.domain.signing_keys import load_signing_keys
from services.domain.topics import TOPICS
from services.errors import UnavailableError
from services.log.monitored import MonitoredLog
from services.net.rpc.channel import Channel, SocketChannel
from services.net.rpc.server import Context, Server
from services.process.clock import SystemClock
from services.process.retries import retry_until_available
from services.replica.peers import Peers

COMMAND = "up-analytics"
_POLL_S = 1.0


@click.command(name=COMMAND, hidden=True)
@click.option("--parent", type=int, required=True)
def up_analytics(parent: int) -> None:
    """Run the analytics of `carillon up`, the process PARENT."""
    sys.meta_path.insert(0, _WithoutPandas())
    run_as_child(parent, ROLE_NAME, _role, AnalyticsSettings)


class _WithoutPandas(MetaPathFinder):
    """Makes pandas count as not installed: pyarrow imports it where it is, and nothing here uses it.

    It takes 30 to 40 MiB and half a second of the start.
    """

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=fullname)


@asynccontextmanager
async def _role(settings: AnalyticsSettings) -> AsyncIterator[tuple[BuiltRole, Progress]]:
    """Yield the role, and a function that returns how much it has read. The role calls no other one and has no key."""
    opened = await retry_until_available(
        "the log cannot be reached yet", lambda: open_log(settings, read_only=True, poll_s=_POLL_S)
    )
    monitored = MonitoredLog(opened, SystemClock())
    try:
        log = await readable_log(settings, load_signing_keys(settings, ROLE_NAME, reads_master=False), monitored)
        context = RoleContext(log, SystemClock(), Peers({}, TOPICS), Keys({}), AppDirectory(log))
        yield role_definition(ROLE_NAME).build(settings, context), lambda: monitored.records_read
    finally:
        await monitored.close()


# The operators' calls of analytics at the commands' socket of `carillon up`, passed on to the child process.


def add_forwarded_analytics(channel: Channel, server: Server) -> None:
    """Serve the calls by passing them on to the channel."""
    add_AnalyticsServiceServicer_to_server(_ForwardedAnalytics(channel), server)  # type: ignore[arg-type]


class _ForwardedAnalytics:
    """A servicer that forwards every method to the child process, with the caller's deadline."""

    def __init__(self, channel: Channel) -> None:
        self._channel = cast(SocketChannel, channel)
        stub = AnalyticsServiceStub(channel)
        for method in DESCRIPTOR.services_by_name["AnalyticsService"].methods:
            forwarded = self._stream if method.client_streaming else self._answer
            setattr(self, method.name, forwarded(getattr(stub, method.name)))

    def _answer(self, call: Callable[..., Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Any, context: Context) -> Any:
            with self._plain_errors():
                return await call(request, timeout=context.time_remaining())

        return answer

    def _stream(
        self, call: Callable[..., AsyncIterator[Any]]
    ) -> Callable[[AsyncIterator[Any], Context], AsyncGenerator[Any, None]]:
        async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncGenerator[Any, None]:
            with self._plain_errors():
                async for response in call(requests):
                    yield response

        return stream

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Replace the error of a child process that does not run by one in plain words."""
        try:
            yield
        except UnavailableError:
            if self._channel.is_connected:
                raise
            raise UnavailableError("its process is starting; the service's log says why") from None
