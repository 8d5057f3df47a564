"""Health and metrics of an edge with several workers: any worker answers for all, asking each by a Unix socket."""

import asyncio
import mmap
import secrets
import socket
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, Metric
from prometheus_client.parser import text_string_to_metric_families

from services.net.http.operations import Operations, Stage, answer, readiness
from services.process.metrics import exposition

ANSWER_S = 2.0
"""Time in which a worker must answer, seconds."""

_BACKLOG = 64


class WorkerSockets:
    """The listening Unix sockets of the workers, opened before they are forked, and which of them are in use.

    A worker that replaces another one takes over its number. There are twice as many as workers, because a reload
    (SIGHUP) forks the new workers before it ends the old ones. `instance`: the random id of this edge.
    """

    def __init__(self, directory: Path, workers: int) -> None:
        self.instance = secrets.token_hex(8)
        self._paths = [str(directory / f"worker-{number}.sock") for number in range(1, 2 * workers + 1)]
        self._listeners = [_listener(path) for path in self._paths]
        self._workers: list[object] = [None] * len(self._paths)
        self._in_use = mmap.mmap(-1, len(self._paths))  # shared with the workers

    def assign(self, worker: object) -> None:
        """Give a worker that is about to be forked a free number. ValueError: there are too many workers."""
        index = self._workers.index(None)
        self._workers[index] = worker
        self._in_use[index] = 1

    def release(self, worker: object) -> None:
        """Free the number of a worker that has ended."""
        if worker in self._workers:
            index = self._workers.index(worker)
            self._workers[index] = None
            self._in_use[index] = 0

    def of(self, worker: object) -> socket.socket:
        """Return the socket of this worker."""
        return self._listeners[self._workers.index(worker)]

    def paths(self) -> dict[str, str]:
        """Return the paths of the sockets in use, by the number of their worker."""
        return {str(index + 1): path for index, path in enumerate(self._paths) if self._in_use[index]}


class WorkersOperations:
    """Answers /healthz and /metrics for all workers: ready while all are, and the metrics of each."""

    def __init__(self, own: Operations, sockets: WorkerSockets) -> None:
        self._own = own
        self._sockets = sockets

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application of /healthz, /livez and /metrics."""
        if scope["type"] == "http":
            await answer(scope, send, self._answer)

    async def _answer(self, path: str) -> tuple[int, str, bytes]:
        if path == "/livez":
            return await self._own.answer(path)
        sockets = self._sockets.paths()
        answers = await asyncio.gather(*(_ask(socket_path, path) for socket_path in sockets.values()))
        by_worker = dict(zip(sockets, answers, strict=True))
        if path == "/metrics":
            return 200, CONTENT_TYPE_LATEST, merged({name: a.text for name, a in by_worker.items() if a is not None})
        return merged_readiness(by_worker)


async def _ask(socket_path: str, path: str) -> httpx.Response | None:
    """Return the answer of one worker; None when it does not come in time."""
    transport = httpx.AsyncHTTPTransport(uds=socket_path)
    try:
        async with asyncio.timeout(ANSWER_S), httpx.AsyncClient(transport=transport, timeout=ANSWER_S) as client:
            return await client.get(f"http://worker{path}")
    except (TimeoutError, httpx.HTTPError):
        return None


def merged_readiness(by_worker: dict[str, httpx.Response | None]) -> tuple[int, str, bytes]:
    """Return the readiness of all workers. A reload replaces workers, so stopping ones count only if all stop."""
    problems: dict[str, str] = {}
    shared: set[str] = set()
    stages: set[Stage] = set()
    for name, found in by_worker.items():
        if found is None:
            problems[f"worker {name}"] = "does not answer"
            continue
        told = msgspec.json.decode(found.content)
        of_worker = {f"worker {name}: {part}": text for part, text in told.get("problems", {}).items()}
        problems |= of_worker
        if told["status"] == "ready":
            shared |= of_worker.keys()
        stages.add(told["status"] if told["status"] in ("starting", "stopping") else "ready")
    if stages == {"stopping"} and problems.keys() <= shared:
        return readiness("stopping", problems)
    return readiness("starting" if "starting" in stages and problems.keys() <= shared else "ready", problems, shared)


def merged(texts: dict[str, str]) -> bytes:
    """Return the metrics of all workers as one text; each series has the name of its worker as the label `worker`."""
    families: dict[str, Metric] = {}
    for worker, text in texts.items():
        for family in text_string_to_metric_families(text):
            target = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                target.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    return exposition(families.values())


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(_BACKLOG)
    return listener
