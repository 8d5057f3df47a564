"""The edge in its own processes: gunicorn with uvicorn workers, each with all HTTP interfaces."""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from uvicorn.config import Config
from uvicorn_worker import UvicornWorker

from edge.core.parsing.body import Application, refuse
from edge.interfaces import Interfaces
from edge.settings import KEYS, ROLE_NAME, EdgeSettings
from edge.workers import WorkerSockets, WorkersOperations
from services.domain.master_key import load_keys
from services.domain.role import RoleContext
from services.domain.role_context import connected_peers, held_keys, role_context
from services.domain.settings import SettingsError, load
from services.errors import CarillonError
from services.log.port import LOG_UNAVAILABLE
from services.net.child import die_with_parent
from services.net.http.connections import OPERATIONS_LIMITS, HttpConnections, api_limits
from services.net.http.operations import Operations
from services.net.http.server import GRACE_S, HttpServer
from services.net.rpc.clock_sync import ClockSync
from services.net.sockets import raise_file_limit, shared_addresses
from services.process import background, memory
from services.process.clock import SteadyClock
from services.process.logs import logger
from services.process.retries import retry_until_available
from services.replica.health import Health
from services.replica.own_status import Announcer, OwnStatus, ReportedRole, process_id, to_log

_START_S = 20.0


def run(env: Mapping[str, str]) -> None:
    """Serve the edge until SIGTERM. CarillonError before anything is started: a setting is wrong, or a key missing."""
    settings = load(EdgeSettings, env)
    ports = (*settings.interface_ports, settings.console_port)
    if 0 in ports or len(set(ports)) < len(ports):
        raise SettingsError(
            "CARILLON_ANDROID_PORT, CARILLON_IOS_PORT, CARILLON_V2_PORT and CARILLON_CONSOLE_PORT must be four "
            "different ports, and not 0"
        )
    load_keys(settings, KEYS)
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="carillon-edge-") as directory:
        _Gunicorn(settings, env, WorkerSockets(Path(directory), settings.edge_workers)).run()


class EdgeWorker(UvicornWorker):  # type: ignore[misc]
    """A uvicorn worker with uvicorn's settings, which gunicorn does not pass on."""

    CONFIG_KWARGS = {  # noqa: RUF012
        "loop": "uvloop",
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_graceful_shutdown": GRACE_S,
    }

    async def _serve(self) -> None:
        """Serve as UvicornWorker does, within the limits of HTTP connections.

        The last two listeners serve health and metrics: to clients, and to other workers.
        """
        die_with_parent(self.ppid)
        self.config.app = self.wsgi
        settings = self.wsgi.settings
        shared = shared_addresses(settings.client_addresses())
        limits = api_limits(settings.http_max_connections, settings.http_connections_per_address)
        api = HttpConnections("api", limits, SteadyClock(), shared)
        operations = HttpConnections("operations", OPERATIONS_LIMITS, SteadyClock())
        workers = HttpConnections("workers", OPERATIONS_LIMITS, SteadyClock())
        groups = [*[api] * len(settings.interface_ports), operations, workers]
        server = _WorkerServer(self.config, groups, self.wsgi)
        self._install_sigquit_handler()
        await server.serve(sockets=[*self.sockets, self.wsgi.sockets.of(self)])
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)


class _WorkerServer(HttpServer):
    """The server of a worker. Asked to stop, by gunicorn or directly, it goes on accepting during the drain."""

    def __init__(self, config: Config, groups: Sequence[HttpConnections], process: "EdgeProcess") -> None:
        super().__init__(config, groups)
        self._process = process

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        drain_s = self._process.begin_stop()
        asyncio.get_running_loop().call_later(drain_s, super().handle_exit, sig, None)


class EdgeProcess:
    """One worker's ASGI application, which chooses the interface by the port of a request.

    It opens the log and the channels after the fork; until then /healthz answers 503 and requests wait.
    """

    def __init__(self, settings: EdgeSettings, env: Mapping[str, str], sockets: WorkerSockets) -> None:
        self.settings = settings
        self.sockets = sockets
        self._env = env
        self._clock = SteadyClock()
        self._health = Health(self._clock)
        self._operations = Operations(
            settings.host, settings.console_port, self._health.problems, self._health.shared_problems
        )
        operations = self._operations if settings.edge_workers == 1 else WorkersOperations(self._operations, sockets)
        self._applications: dict[int, Application] = {settings.console_port: operations.application}
        self._stop = asyncio.Event()
        self._failed = False
        self._started: asyncio.Future[None]
        self._living: asyncio.Task[None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        port = scope["server"][1]
        if port is None:  # another worker asks, over this one's Unix socket
            await self._operations.application(scope, receive, send)
            return
        if port != self.settings.console_port and not self._started.done():
            await asyncio.wait([self._started], timeout=_START_S)
        if port in self._applications:
            await self._applications[port](scope, receive, send)
        else:
            await refuse(send, 503, "the service is starting")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        self._started = asyncio.get_running_loop().create_future()
        self._living = asyncio.create_task(self._live())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._stop.set()
        await asyncio.wait([self._living])
        await send({"type": "lifespan.shutdown.complete"})

    def begin_stop(self) -> float:
        """Turn readiness off; return for how long this worker should go on accepting, in seconds."""
        self._operations.set_stopping()
        serves = self._started.done() and not self._failed
        return self.settings.drain_s if serves else 0

    def _fail(self, error: Exception) -> None:
        """Stop this worker without a drain, because a part of it has ended; gunicorn starts another one."""
        known = isinstance(error, CarillonError)
        details: dict[str, Any] = {"error": str(error)} if known else {"exc_info": error}
        logger.critical("the edge ends: it cannot start or go on", **details)
        self._failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    async def _check_health(self) -> None:
        try:
            await self._health.run(asyncio.Event())
        except CarillonError as error:
            self._fail(error)

    @asynccontextmanager
    async def _announced(self, context: RoleContext) -> AsyncIterator[None]:
        """Announce the status of this worker, which the console lists as a process of its own."""
        operations, process = self._operations, process_id()
        role, instance = ReportedRole(ROLE_NAME), self.sockets.instance
        keys = partial(held_keys, context)
        own = OwnStatus([role], self._clock.now_ms(), lambda: operations.stage, self._health.problems, instance, keys)
        announcer = Announcer(lambda: {process: own.read()}, to_log(context.log), self._clock, ROLE_NAME)
        announcing = background.start_endless(announcer.name, announcer.run(asyncio.Event()))
        try:
            yield
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])

    async def _live(self) -> None:
        tasks = [
            background.start_endless("health", self._check_health()),
        ]
        try:
            peers = connected_peers(self._env, self.settings.tls())
            async with role_context(self.settings, peers, KEYS, self._health, self._clock, role=ROLE_NAME) as context:
                sync = ClockSync(self._clock, peers.channels)
                self._health.compare_with(sync.log_age_elsewhere)
                await sync.check()
                tasks.append(background.start_endless(sync.name, sync.run(asyncio.Event())))
                interfaces = Interfaces(self.settings, context)
                tasks.append(background.start_endless(interfaces.hangs.name, interfaces.hangs.run(asyncio.Event())))
                async with self._announced(context):
                    await retry_until_available(LOG_UNAVAILABLE, interfaces.message_ids.claim, role=ROLE_NAME)
                    self._applications |= interfaces.by_port(self.settings)
                    memory.freeze_startup_objects()
                    self._operations.set_ready()
                    self._started.set_result(None)
                    await self._stop.wait()
        except Exception as error:
            self._fail(error)
        finally:
            for task in tasks:
                task.cancel()


class _Arbiter(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter, which stops on SIGINT as on SIGTERM, and at once on a second one of these signals."""

    _stops = False

    def handle_int(self) -> None:
        self.handle_term()

    def signal(self, sig: int, frame: FrameType | None) -> None:
        if sig in (signal.SIGTERM, signal.SIGINT):
            if self._stops:
                self.kill_workers(signal.SIGKILL)
                sys.exit(128 + sig)
            self._stops = True
        super().signal(sig, frame)


class _GunicornLogger(Logger):  # type: ignore[misc]
    """Sends gunicorn's messages, and those that uvicorn logs in its workers, to the handlers of the process."""

    def setup(self, cfg: Any) -> None:
        self.error_log.handlers = []
        super().setup(cfg)
        self.error_log.handlers = [*logging.getLogger().handlers]


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(self, settings: EdgeSettings, env: Mapping[str, str], sockets: WorkerSockets) -> None:
        self._settings = settings
        self._env = env
        self._sockets = sockets
        super().__init__()

    def load_config(self) -> None:
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        options = {
            "bind": [f"{host}:{port}" for port in (*settings.interface_ports, settings.console_port)],
            "workers": settings.edge_workers,
            "worker_class": EdgeWorker,
            "backlog": 4096,
            "timeout": 60,
            "graceful_timeout": settings.drain_s + GRACE_S + 5,
            "control_socket_disable": True,
            "pre_fork": lambda arbiter, worker: self._sockets.assign(worker),
            "child_exit": lambda arbiter, worker: self._sockets.release(worker),
            "proc_name": "carillon edge",
            "logger_class": _GunicornLogger,
            "loglevel": settings.log_level.lower(),
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def run(self) -> None:
        _Arbiter(self).run()

    def load(self) -> EdgeProcess:
        return EdgeProcess(self._settings, self._env, self._sockets)
