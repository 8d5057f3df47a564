"""The state of the installation, from what its processes announce: a line for each role, and rates."""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from protos.runtime.v1.processes_pb2 import ProcessStage, ProcessStatus, RoleStatus
from services.domain.call_permissions import EVERY_ROLE
from services.process.clock import Clock
from services.replica.status_board import SILENT_MS, Process, StatusBoard

LATE_MS = 30_000
"""A role whose oldest waiting record is this old is behind."""

NUMBERS = ("devices", "requests", "pushes", "sent", "received", "refused", "faults")
"""Names of the numbers of the whole installation."""

State = Literal["works", "behind", "not ready", "partly away", "away", "starts", "stops", "unknown"]
Severity = Literal["good", "plain", "warn", "bad"]

_SEVERITIES: Mapping[State, Severity] = {
    "works": "good",
    "behind": "warn",
    "not ready": "bad",
    "partly away": "bad",
    "away": "bad",
    "starts": "plain",
    "stops": "plain",
    "unknown": "plain",
}


class RoleLine(NamedTuple):
    """A role with its processes. `away`: shards, of `shards`, that no process owns; `why`: problems of a process."""

    name: str
    state: State
    why: str
    shards: int
    away: Sequence[int]
    present: Sequence[Process]
    silent: Sequence[Process]
    standbys: int
    lag_records: int
    lag_ms: int
    work: float
    history: Sequence[float]

    @property
    def severity(self) -> Severity:
        return "warn" if self.state == "works" and self.silent else _SEVERITIES[self.state]


class Number(NamedTuple):
    """A number of the installation: now, and over the last ten minutes."""

    name: str
    now: float
    history: Sequence[float]


class InstallationState(NamedTuple):
    """All roles, the numbers, refused requests a second by result, and the connected devices of each app.

    `processes`: all processes. `silent`: the ids of the processes that are not heard of any more. `is_log_away`: no
    process was heard of lately, not even this one, so the log does not answer. `heard_ms`: when a process was heard
    last, or 0.
    """

    roles: Sequence[RoleLine]
    numbers: Sequence[Number]
    refused: Sequence[tuple[int, float]]
    devices: Mapping[str, int]
    processes: Sequence[Process]
    silent: Collection[str]
    is_log_away: bool
    heard_ms: int

    @property
    def troubled(self) -> Sequence[RoleLine]:
        """The roles that need attention, the worst first."""
        found = [role for role in self.roles if role.severity in ("bad", "warn")]
        return sorted(found, key=lambda role: role.severity)

    @property
    def severity(self) -> Severity:
        if self.is_log_away:
            return "bad"
        return self.troubled[0].severity if self.troubled else "good"


class Observer:
    """Reads the state of the installation from the status board."""

    def __init__(self, board: StatusBoard, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._since_ms = clock.now_ms()

    @property
    def is_early(self) -> bool:
        """Whether the board may not have heard of all processes yet, which announce themselves within seconds."""
        return self._clock.now_ms() - self._since_ms <= SILENT_MS

    async def read(self) -> InstallationState:
        """Return the present state of the installation."""
        board, now_ms = self._board, self._clock.now_ms()
        is_early = self.is_early  # an absent process does not count as missing
        processes = board.processes()
        present = [each for each in processes if not each.is_silent(now_ms)]
        results = {name for each in present for name in each.rates if name.startswith("result ")}
        return InstallationState(
            [self._role(name, processes, now_ms, is_early=is_early) for name in EVERY_ROLE],
            [Number(name, board.rate(name), board.history(name)) for name in NUMBERS],
            sorted((int(name.partition(" ")[2]), rate) for name in results if (rate := board.rate(name))),
            _devices([each.status for each in present]),
            sorted(processes, key=_sort_key),
            frozenset(each.id for each in processes if each.is_silent(now_ms)),
            not present and not is_early,
            board.heard_ms,
        )

    def _role(self, name: str, processes: Sequence[Process], now_ms: int, *, is_early: bool) -> RoleLine:
        of_role = [(each, role) for each in processes for role in each.status.roles if role.role == name]
        present = [(each, role) for each, role in of_role if not each.is_silent(now_ms)]
        shards = max((role.shards for _, role in present), default=0)
        owned = {role.shard for each, role in present if not role.stands_by}
        away = [shard for shard in range(shards) if shard not in owned]
        owners = [(each, role) for each, role in present if not role.stands_by]
        lag_ms = max((role.lag_ms for _, role in owners), default=0)
        why = next((_why(each) for each, _ in present if each.status.problems), "")
        return RoleLine(
            name,
            _state(present, away, why, lag_ms, is_early=is_early),
            why,
            shards,
            away,
            [each for each, _ in present],
            [each for each, _ in of_role if each.is_silent(now_ms)],
            len(present) - len(owners),
            sum(role.lag_records for _, role in owners),
            lag_ms,
            self._board.rate(f"work {name}"),
            self._board.history(f"work {name}"),
        )


def _state(
    present: Sequence[tuple[Process, RoleStatus]], away: Sequence[int], why: str, lag_ms: int, *, is_early: bool
) -> State:
    stages = {each.status.stage for each, _ in present}
    if not present:
        return "unknown" if is_early else "away"
    if why:
        return "not ready"
    if stages == {ProcessStage.PROCESS_STAGE_STARTING}:
        return "starts"
    if stages == {ProcessStage.PROCESS_STAGE_STOPPING}:
        return "stops"
    if away:
        return "partly away"
    return "behind" if lag_ms > LATE_MS else "works"


def _sort_key(process: Process) -> tuple[object, ...]:
    return [(role.role, role.shard) for role in process.status.roles], process.status.host, process.id


def _why(process: Process) -> str:
    return "; ".join(f"{problem.part}: {problem.text}" for problem in process.status.problems)


def _devices(statuses: Sequence[ProcessStatus]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for status in statuses:
        for each in status.devices:
            found[each.appkey] = found.get(each.appkey, 0) + each.count
    return found
