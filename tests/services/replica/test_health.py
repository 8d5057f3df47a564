"""The readiness of a process: appends succeed, followers move, background tasks run."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from services.domain.topics import DELIVERIES, TOPICS
from services.errors import CarillonError, UnavailableError
from services.log import monitored
from services.log.port import Log, NewRecord, Partition
from services.log.sqlite.log import SqliteLog
from services.net.http.operations import Operations
from services.process import background
from services.process.clock import ManualClock
from services.replica.health import CHECK_S, ENDED_CHECKS, STALLED_CHECKS, Followed, Health
from services.replica.positions import AppliedPositions
from testkit import plain_http
from testkit.faults.full_disk import full_disk
from testkit.services import running_services
from testkit.waiting import run_ready_tasks, until_holds

PLACE = Partition(DELIVERIES.name, 0)
RECORD = NewRecord(*PLACE, b"key", b"value")


@pytest.fixture
def health() -> Health:
    return Health(ManualClock(0))


@pytest.fixture
async def log(health: Health, tmp_path: Path) -> AsyncIterator[Log]:
    log = health.monitored(SqliteLog(tmp_path / "log.db", TOPICS))
    yield log
    await log.close()


async def checks(health: Health, count: int) -> dict[str, str]:
    for _ in range(count):
        await health.check()
    return dict(health.problems())


async def test_a_full_disk_is_a_problem_until_records_can_be_appended_again(
    health: Health, log: Log, tmp_path: Path
) -> None:
    await log.append([RECORD])
    assert await checks(health, 2) == {}
    with full_disk((tmp_path / "log.db-wal").stat().st_size):
        with pytest.raises(UnavailableError):
            await log.append([RECORD])
        for _ in range(3):
            (problem,) = (await checks(health, 1)).items()
            assert problem[0] == "log"
            assert "cannot be written" in problem[1]
    assert await checks(health, 1) == {}
    assert (await log.ends([PLACE]))[PLACE] == 1
    assert await log.append([RECORD]) == [1]


async def test_an_append_that_succeeds_ends_the_problem_at_once(health: Health, log: Log, tmp_path: Path) -> None:
    await log.append([RECORD])
    with full_disk((tmp_path / "log.db-wal").stat().st_size), pytest.raises(UnavailableError):
        await log.append([RECORD])
    assert health.problems()
    await log.append([RECORD])
    assert not health.problems()


async def test_an_append_without_an_answer_is_a_problem(
    health: Health, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitored, "PROBE_S", 0.01)
    blocker = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(log.append([RECORD]))
    await asyncio.sleep(0)
    assert await checks(health, 3) == {}
    assert "log" in await checks(health, 2)
    blocker.rollback()
    blocker.close()
    assert await waiting == [0]
    assert await checks(health, 1) == {}


async def test_a_follower_that_stands_still_with_records_waiting_is_a_problem(health: Health, log: Log) -> None:
    applied = AppliedPositions()
    applied.advance({PLACE: 0})
    health.watch([Followed("test", applied, [PLACE])])
    assert await checks(health, 3 * STALLED_CHECKS) == {}
    await log.append([RECORD] * 3)
    assert await checks(health, STALLED_CHECKS) == {}
    assert await checks(health, 1) == {"follower test": "stands still with 3 records waiting"}
    lag = partial(REGISTRY.get_sample_value, "carillon_lag_records", {"role": "test", "topic": PLACE.topic})
    assert lag() == 3
    applied.advance({PLACE: 1})
    assert await checks(health, STALLED_CHECKS) == {}
    assert lag() == 2
    applied.advance({PLACE: 2})
    assert await checks(health, STALLED_CHECKS) == {}
    applied.advance({PLACE: 3})
    assert await checks(health, 3 * STALLED_CHECKS) == {}


async def _fail() -> None:
    raise ValueError("broken")


async def test_an_endless_background_task_that_has_ended_is_a_problem(health: Health) -> None:
    tasks = [
        background.start_endless("apps", asyncio.sleep(0)),
        background.start_endless("sweep", _fail()),
        background.start_endless("stopped", asyncio.sleep(60)),
    ]
    assert not health.problems()
    tasks[-1].cancel()
    await asyncio.wait(tasks)
    assert health.problems() == {"apps": "has ended", "sweep": "failed: ValueError: broken"}


async def test_the_process_ends_a_while_after_an_endless_background_task(log: Log) -> None:
    """Until then /healthz names it. The service manager starts the process again."""
    health = Health(clock := ManualClock(0))
    health.monitored(log)
    running = asyncio.create_task(health.run(asyncio.Event()))
    await run_ready_tasks()
    await asyncio.wait([background.start_endless("apps", asyncio.sleep(0))])
    for _ in range(ENDED_CHECKS):
        assert health.problems() == {"apps": "has ended"}
        assert not running.done()
        clock.move(CHECK_S)
        await run_ready_tasks()
    with pytest.raises(CarillonError, match="cannot go on without a part of it: apps has ended"):
        await asyncio.wait_for(running, 60)


async def test_any_other_background_task_that_fails_is_logged_and_counted(
    health: Health,
) -> None:
    count = REGISTRY.get_sample_value("carillon_background_failures_total") or 0
    with capture_logs() as logged:
        await asyncio.wait([background.start("retry", _fail()), background.start("refresh", asyncio.sleep(0))])
    assert REGISTRY.get_sample_value("carillon_background_failures_total") == count + 1
    assert [(entry["task"], repr(entry["exc_info"])) for entry in logged] == [("retry", "ValueError('broken')")]
    assert not health.problems()


async def test_healthz_shows_the_problems_and_livez_stays_alive(log: Log, health: Health, tmp_path: Path) -> None:
    operations = Operations("127.0.0.1", 0, health.problems)
    operations.set_ready()
    async with running_services([operations]), plain_http.async_client(timeout=60) as http:
        url = f"http://127.0.0.1:{operations.port}"
        assert (await http.get(f"{url}/healthz")).json() == {"status": "ready"}
        await log.append([RECORD])
        with full_disk((tmp_path / "log.db-wal").stat().st_size), pytest.raises(UnavailableError):
            await log.append([RECORD])
        found = await http.get(f"{url}/healthz")
        assert found.status_code == 503
        assert found.json()["status"] == "not ready"
        assert "cannot be written" in found.json()["problems"]["log"]
        alive = await http.get(f"{url}/livez")
        assert (alive.status_code, alive.json()) == (200, {"status": "alive"})


async def test_the_service_checks_by_itself(log: Log, tmp_path: Path) -> None:
    clock = ManualClock(0)
    health = Health(clock)
    own = health.monitored(log)
    async with running_services([health]):
        await own.append([RECORD])
        with full_disk((tmp_path / "log.db-wal").stat().st_size), pytest.raises(UnavailableError):
            await own.append([RECORD])
        assert health.problems()
        clock.move(CHECK_S)
        await until_holds(lambda: not health.problems())
