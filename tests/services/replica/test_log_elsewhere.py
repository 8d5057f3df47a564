"""A process whose log is away is unready only where the log serves other processes."""

import math
from pathlib import Path

import pytest

from services.domain.topics import DELIVERIES, TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.http.operations import Operations
from services.process.clock import ManualClock
from services.replica.health import CHECK_S, Health
from testkit.faults.full_disk import full_disk

RECORD = NewRecord(*Partition(DELIVERIES.name, 0), b"key", b"value")


class Others:
    """What other processes answer: when the log last accepted a record of theirs; None where none of them answers."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.accepted_ms: float | None = 0

    async def age_ms(self) -> float | None:
        return None if self.accepted_ms is None else self._clock.now_ms() - self.accepted_ms


async def statuses(
    health: Health, clock: ManualClock, others: Others, tmp_path: Path, *, elsewhere: str
) -> list[tuple[int, bool]]:
    """Return the status of /healthz, and whether it names the log, after each of six checks while the disk is full."""
    operations = Operations("127.0.0.1", 0, health.problems, health.shared_problems)
    operations.set_ready()
    found = []
    log = health.monitored(SqliteLog(tmp_path / "log.db", TOPICS))
    await log.append([RECORD])
    with full_disk((tmp_path / "log.db-wal").stat().st_size):
        with pytest.raises(UnavailableError):
            await log.append([RECORD])
        for _ in range(6):
            clock.move(CHECK_S)
            match elsewhere:
                case "works":
                    others.accepted_ms = clock.now_ms() - 1000
                case "unknown":
                    others.accepted_ms = -math.inf
                case "unreachable":
                    others.accepted_ms = None
            await health.check()
            status, _, body = await operations.answer("/healthz")
            found.append((status, b'"log"' in body))
    await health.check()
    assert await operations.answer("/healthz") == (200, "application/json", b'{"status":"ready"}')
    await log.close()
    return found


@pytest.mark.parametrize(
    ("elsewhere", "statuses_of_checks"),
    [
        ("away", [200] * 6),
        ("unknown", [200] * 6),
        ("works", [200, 200, 503, 503, 503, 503]),
        ("unreachable", [200, 503, 503, 503, 503, 503]),
    ],
)
async def test_an_edge_is_taken_out_where_another_could_do_better(
    tmp_path: Path, elsewhere: str, statuses_of_checks: list[int]
) -> None:
    """The first check notes since when the log is away; what others appended before proves nothing."""
    clock = ManualClock(0)
    health, others = Health(clock), Others(clock)
    health.compare_with(others.age_ms)
    found = await statuses(health, clock, others, tmp_path, elsewhere=elsewhere)
    assert found == [(status, True) for status in statuses_of_checks]


async def test_a_process_without_others_stays_ready_and_names_the_problem(tmp_path: Path) -> None:
    clock = ManualClock(0)
    found = await statuses(Health(clock), clock, Others(clock), tmp_path, elsewhere="away")
    assert found == [(200, True)] * 6
