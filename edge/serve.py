"""The edge in its own processes: gunicorn with uvicorn workers, each with all HTTP interfaces."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from uvicorn_worker import UvicornWorker

from edge.core.parsing.body import Application, refuse
from edge.interfaces import Interfaces
from edge.settings import KEYS, EdgeSettings
from services.domain.role_context import connected_peers, role_context
from services.runtime.errors import CarillonError
from services.runtime.http.connections import HttpConnections
from services.runtime.http.limits import CONSOLE_LIMITS, api_limits
from services.runtime.http.listener import GRACE_S
from services.runtime.http.operations import Operations
from services.runtime.http.server import HttpServer
from services.runtime.process import garbage_collection
from services.runtime.process.clock import SystemClock
from services.runtime.process.logs import configure, logger
from services.runtime.process.settings import SettingsError, load
from services.runtime.sockets.open_files import raise_file_limit
from services.runtime.sockets.peers import shared_addresses

_START_S = 20.0
_LOOK_S = 1.0


def run(env: Mapping[str, str]) -> None:
    """Serve the edge until SIGTERM. SettingsError before anything is started."""
    settings = load(EdgeSettings, env)
    ports = (*settings.interface_ports, settings.console_port)
    if 0 in ports or len(set(ports)) < len(ports):
        raise SettingsError(
            "CARILLON_ANDROID_PORT, CARILLON_IOS_PORT, CARILLON_V2_PORT and CARILLON_CONSOLE_PORT must be four "
            "different ports, and not 0"
        )
    raise_file_limit()
    _Gunicorn(settings, env).run()


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
        """Serve as UvicornWorker does, within the limits of HTTP connections: the console is the last listener."""
        self.config.app = self.wsgi
        settings = self.wsgi.settings
        shared = shared_addresses(settings.client_addresses())
        api = HttpConnections("api", api_limits(settings), SystemClock(), shared)
        console = HttpConnections("console", CONSOLE_LIMITS, SystemClock())
        server = HttpServer(self.config, [*[api] * (len(self.sockets) - 1), console])
        self._install_sigquit_handler()
        await server.serve(sockets=self.sockets)
        if not server.started:
            sys.exit(Arbiter.WORKER_BOOT_ERROR)


class EdgeProcess:
    """One worker's ASGI application, which chooses the interface by the port of a request.

    It opens the log and the channels after the fork; until then /healthz answers 503 and requests wait.
    """

    def __init__(self, settings: EdgeSettings, env: Mapping[str, str]) -> None:
        self.settings = settings
        self._env = env
        self._operations = Operations(settings.host, settings.console_port)
        self._applications: dict[int, Application] = {settings.console_port: self._operations.application}
        self._stop = asyncio.Event()
        self._started: asyncio.Future[None]
        self._living: asyncio.Task[None]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        port = scope["server"][1]
        if port != self.settings.console_port:
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

    async def _live(self) -> None:
        watching = asyncio.create_task(_end_with_parent(os.getppid()))
        try:
            async with role_context(self.settings, connected_peers(self._env, self.settings.tls()), KEYS) as context:
                with contextlib.closing(Interfaces(self.settings, context)) as interfaces:
                    self._applications |= interfaces.by_port(self.settings)
                    garbage_collection.freeze_startup_objects()
                    self._operations.set_ready()
                    self._started.set_result(None)
                    await self._stop.wait()
        except CarillonError as error:
            logger.critical("the edge ends: it cannot start or go on", error=str(error))
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            logger.critical("the edge ends: it cannot start or go on", exc_info=error)
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            watching.cancel()


async def _end_with_parent(parent: int) -> None:
    """Stop this worker when gunicorn was killed, so that the ports are free for the next one."""
    while os.getppid() == parent:
        await asyncio.sleep(_LOOK_S)
    logger.critical("the edge ends: gunicorn is gone")
    os.kill(os.getpid(), signal.SIGTERM)


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(self, settings: EdgeSettings, env: Mapping[str, str]) -> None:
        self._settings = settings
        self._env = env
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
            "graceful_timeout": GRACE_S + 5,
            "control_socket_disable": True,
            "proc_name": "carillon edge",
            "loglevel": settings.log_level.lower(),
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> EdgeProcess:
        configure(self._settings.log_level)
        return EdgeProcess(self._settings, self._env)
