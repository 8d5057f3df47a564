"""The status of this process, read from its metrics and announced at short intervals."""

import asyncio
import contextlib
import heapq
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from prometheus_client import Counter, Gauge

from protos.runtime.v1.log_pb2 import Meta
from protos.runtime.v1.processes_pb2 import (
    AppDevices,
    HeldKeys,
    ProcessCounts,
    ProcessFact,
    ProcessLeft,
    ProcessProblem,
    ProcessStage,
    ProcessStatus,
    ResultCount,
    RoleStatus,
)
from services.errors import CarillonError
from services.log.port import Log, NewRecord
from services.process.clock import Clock
from services.process.logs import logger
from services.process.metrics import (
    APPENDED,
    APPLIED,
    BACKGROUND_FAILURES,
    CONNECTIONS,
    DEAD_LETTERS,
    ERASURES_APPLIED,
    EVERY_ROLE,
    FRAMES_SENT,
    LAG,
    LAG_SECONDS,
    OUTCOMES,
    OWNER,
    PERSON_KEYS,
    REPORTS,
    REQUESTS,
    RPC_ERRORS,
)

MAX_APPS = 200
"""Upper bound of the apps that a status names with their devices; `connected_devices` counts those of all apps."""

_MAX_TEXT = 500
_STAGES = {
    "starting": ProcessStage.PROCESS_STAGE_STARTING,
    "ready": ProcessStage.PROCESS_STAGE_READY,
    "stopping": ProcessStage.PROCESS_STAGE_STOPPING,
}
_PUSHES = "push-commands"


@dataclass(frozen=True)
class ReportedRole:
    """A role of this process. `followers`: the names under which its metrics are counted, besides its own.

    `devices` returns the number of connected devices of each app.
    """

    name: str
    shard: int = 0
    shards: int = 1
    followers: Collection[str] = ()
    devices: Callable[[], Mapping[str, int]] | None = None


class OwnStatus:
    """Reads the status of this process. `stage` and `problems` are those that /healthz answers.

    `instance`: a random id that processes have in common which share counts, such as the workers of an edge.
    """

    def __init__(
        self,
        roles: Sequence[ReportedRole],
        started_ms: int,
        stage: Callable[[], str],
        problems: Callable[[], Mapping[str, str]],
        instance: str = "",
        held_keys: Callable[[], HeldKeys] | None = None,
    ) -> None:
        self._roles = roles
        self._stage = stage
        self._problems = problems
        self._held_keys = held_keys
        self._always = ProcessStatus(
            host=socket.gethostname(), version=version("carillon"), started_ms=started_ms, instance=instance
        )

    def read(self) -> ProcessStatus:
        """Return the present status of the process."""
        status = ProcessStatus(
            stage=_STAGES[self._stage()],
            problems=[ProcessProblem(part=part, text=text[:_MAX_TEXT]) for part, text in self._problems().items()],
            roles=map(_role_status, self._roles),
            counts=_counts(),
            connected_devices=_total(CONNECTIONS),
            has_person_keys=bool(_total(PERSON_KEYS)),
            held_keys=self._held_keys() if self._held_keys else None,
        )
        by_app: dict[str, int] = {}
        for role in self._roles:
            by_app |= role.devices() if role.devices else {}
        for appkey in heapq.nlargest(MAX_APPS, by_app, key=by_app.__getitem__):
            status.devices.append(AppDevices(appkey=appkey, count=by_app[appkey]))
        status.MergeFrom(self._always)
        return status


def _role_status(role: ReportedRole) -> RoleStatus:
    names = {role.name, *role.followers}
    owner = [value for labels, value in _values(OWNER) if labels["role"] == role.name]
    waited_s = [value for labels, value in _values(LAG_SECONDS) if labels["role"] in names]
    return RoleStatus(
        role=role.name,
        shard=role.shard,
        shards=role.shards,
        stands_by=bool(owner) and not any(owner),
        lag_records=_total(LAG, role=names),
        lag_ms=round(max(waited_s, default=0) * 1000),
        work=_work(role.name, names),
        erasures_until=_erasures_until(role.name),
    )


def _erasures_until(role: str) -> int:
    """Return how many erasures each part of the role has applied; keys are forgotten by the process, for all roles."""
    applied = (value for labels, value in _values(ERASURES_APPLIED) if labels["role"] in (role, EVERY_ROLE))
    return round(min(applied, default=0))


def _work(role: str, names: Collection[str]) -> int:
    match role:
        case "edge":
            return _total(REQUESTS)
        case "gateway":
            return _total(FRAMES_SENT) + _total(REPORTS)
        case "delivery":
            return _total(OUTCOMES)
        case _:
            return _total(APPLIED, role=names)


def _counts() -> ProcessCounts:
    requests: dict[int, int] = {}
    for labels, value in _values(REQUESTS):
        result = int(labels["result"])
        requests[result] = requests.get(result, 0) + round(value)
    return ProcessCounts(
        requests=[ResultCount(result=result, count=count) for result, count in sorted(requests.items())],
        pushes=_total(APPENDED, topic=[_PUSHES]),
        sent=_total(OUTCOMES, kind=["sent"]),
        received=_total(OUTCOMES, kind=["received"]),
        faults=_total(RPC_ERRORS, code=["INTERNAL"]) + _total(BACKGROUND_FAILURES) + _total(DEAD_LETTERS),
    )


def _total(metric: Counter | Gauge, **wanted: Collection[str]) -> int:
    """Return the sum of the series of a metric whose labels have one of the wanted values."""
    found = (value for labels, value in _values(metric) if all(labels[name] in of for name, of in wanted.items()))
    return round(sum(found))


def _values(metric: Counter | Gauge) -> Iterator[tuple[Mapping[str, str], float]]:
    for family in metric.collect():
        for sample in family.samples:
            yield sample.labels, sample.value


# Announces the status of this process at short intervals: in the log, or from `carillon up` to its console process.

PROCESSES_TOPIC = "processes"
STATUS_INTERVAL_S = 5
"""Interval at which a process announces its status."""

_LAST_RECORD_S = 2.0

Publish = Callable[[ProcessFact], Awaitable[None]]


def process_id() -> str:
    """Return a random id for a process that starts now."""
    return secrets.token_hex(8)


class Announcer:
    """Service that publishes statuses, by the id of their process, and at its end that these processes have left.

    A status that cannot be published is left out: another one follows after STATUS_INTERVAL_S.
    """

    name = "announcer"

    def __init__(
        self, statuses: Callable[[], Mapping[str, ProcessStatus]], publish: Publish, clock: Clock, writer: str
    ) -> None:
        self._statuses = statuses
        self._publish = publish
        self._clock = clock
        self._writer = writer
        self._announced: set[str] = set()

    async def run(self, ready: asyncio.Event) -> None:
        ready.set()
        try:
            while True:
                for process, status in self._statuses().items():
                    self._announced.add(process)
                    await self._try(ProcessFact(process=process, status=status))
                await self._clock.sleep_until(self._clock.now_ms() + STATUS_INTERVAL_S * 1000)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_RECORD_S):
                    for process in self._announced:
                        await self._try(ProcessFact(process=process, left=ProcessLeft()))

    async def _try(self, fact: ProcessFact) -> None:
        fact.meta.CopyFrom(Meta(event_id=secrets.token_bytes(16), time_ms=self._clock.now_ms(), writer=self._writer))
        try:
            await self._publish(fact)
        except CarillonError as error:
            logger.debug("the state of this process cannot be announced", error=str(error))


def to_log(log: Log) -> Publish:
    """Return a function that appends facts to the topic `processes`."""

    async def publish(fact: ProcessFact) -> None:
        await log.append([NewRecord(PROCESSES_TOPIC, 0, fact.process.encode(), fact.SerializeToString())])

    return publish
