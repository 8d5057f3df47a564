"""The app directory: catching up, refreshing, and revoked keys."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import App, AppFact, Pause, QuotaReached, Revocations, TeamWebhooks, Webhook
from protos.runtime.v1.log_pb2 import Meta
from services.domain.apps import AppDirectory, quota_key, team_webhooks_key
from services.domain.revocations import revocations_key
from services.domain.topics import TOPICS
from services.errors import UnavailableError
from services.log.port import NewRecord, Partition, Reader, Record
from services.log.sqlite.log import SqliteLog
from services.replica import partition_reader
from services.replica.epochs import next_epoch

BOUND_S = 60.0


def new_record(appkey: str, name: str = "Weather", created_ms: int = 1) -> NewRecord:
    fact = AppFact(app=App(appkey=appkey, name=name, created_ms=created_ms))
    return NewRecord("apps", 0, appkey.encode(), fact.SerializeToString())


def revoked(appkey: str, partition: int, below: int = 0, numbers: Sequence[int] = ()) -> NewRecord:
    bitmap = BitMap(numbers).serialize() if numbers else b""
    record = Revocations(appkey=appkey, partition=partition, below=below, numbers=bitmap)
    return NewRecord("apps", 0, revocations_key(record), AppFact(revocations=record).SerializeToString())


class GatedReader:
    """A reader that returns records only while its gate is open, and may fail once before."""

    def __init__(self, reader: Reader, gate: asyncio.Event, fails: bool) -> None:
        self._reader = reader
        self._gate = gate
        self._fails = fails

    async def read(self, max_records: int = 5000) -> list[Record]:
        if self._fails:
            self._fails = False
            raise UnavailableError("the log is away")
        await self._gate.wait()
        return await self._reader.read(max_records)

    async def close(self) -> None:
        await self._reader.close()


class GatedLog(SqliteLog):
    """The embedded log with gates: `ends` returns the ends at the time of the call, once the test opens the gate."""

    def __init__(self, path: Path, fails: bool = False) -> None:
        super().__init__(path, TOPICS)
        self.ends_gate, self.read_gate, self.asked = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.ends_gate.set()
        self.read_gate.set()
        self.questions = 0
        self._fails = fails

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        found = await super().ends(partitions)
        self.questions += 1
        self.asked.set()
        await self.ends_gate.wait()
        return found

    async def open(self, starts: Mapping[Partition, int]) -> Any:
        return GatedReader(await super().open(starts), self.read_gate, self._fails)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[GatedLog]:
    log = GatedLog(tmp_path / "log.sqlite")
    yield log
    log.ends_gate.set()
    await log.close()


class RunningDirectory:
    """Run a directory while the block runs."""

    def __init__(self, log: SqliteLog) -> None:
        self._apps = AppDirectory(log)

    async def __aenter__(self) -> AppDirectory:
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._apps.run(ready))
        await asyncio.wait_for(ready.wait(), BOUND_S)
        return self._apps

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


async def test_a_ready_directory_has_the_latest_record_of_each_app(log: GatedLog) -> None:
    await log.append([new_record("2", created_ms=5), new_record("1", "Old", 9), new_record("1", "New", 9)])
    async with RunningDirectory(log) as apps:
        assert [(app.appkey, app.name) for app in apps.all()] == [("2", "Weather"), ("1", "New")]
        assert apps.get("1") == App(appkey="1", name="New", created_ms=9)
        assert apps.get("3") is None


async def test_revoked_keys_are_known_and_listeners_are_notified(log: GatedLog) -> None:
    await log.append([revoked("1", 3, below=4), revoked("1", 3, below=4, numbers=[9]), new_record("1")])
    async with RunningDirectory(log) as apps:
        refused = {number for number in range(12) if apps.is_revoked("1", 3, number)}
        assert refused == {0, 1, 2, 3, 9}
        assert not apps.is_revoked("1", 2, 0)
        assert not apps.is_revoked("2", 3, 0)
        notified: list[str] = []
        apps.on_revoked(notified.append)
        await log.append([new_record("1"), revoked("1", 2, below=1), revoked("2", 3, numbers=[0])])
        await apps.refresh()
        assert notified == ["1", "2"]
        assert apps.is_revoked("1", 2, 0)
        assert apps.is_revoked("2", 3, 0)


async def test_another_thread_asks_for_pauses_while_apps_are_added(log: GatedLog) -> None:
    interval_s = sys.getswitchinterval()
    ended = threading.Event()

    def ask() -> int:
        while not ended.is_set():
            assert not apps.has_pauses
        return 1

    await log.append([new_record(str(number)) for number in range(1000)])
    async with RunningDirectory(log) as apps:
        sys.setswitchinterval(1e-5)
        try:
            asking = asyncio.create_task(asyncio.to_thread(ask))
            await log.append([new_record(str(number)) for number in range(1000, 1500)])
            await apps.refresh()
        finally:
            ended.set()
            sys.setswitchinterval(interval_s)
        assert await asking


async def test_whether_any_app_is_paused(log: GatedLog) -> None:
    paused = AppFact(app=App(appkey="1", pause=Pause())).SerializeToString()
    async with RunningDirectory(log) as apps:
        for value, expected in ((new_record("1").value, False), (paused, True), (paused, True)):
            await log.append([NewRecord("apps", 0, b"1", value), new_record("2")])
            await apps.refresh()
            assert apps.has_pauses is apps.is_paused("1") is expected
            assert not apps.is_paused("2")
        await log.append([new_record("1")])
        await apps.refresh()
        assert not apps.has_pauses
        assert not apps.is_paused("1")


async def test_a_late_record_of_a_former_owner_does_not_replace_the_webhooks_of_a_team(log: GatedLog) -> None:
    def of_team(epoch: int, *webhook_ids: str) -> NewRecord:
        webhooks = TeamWebhooks(team_id="t", webhooks=[Webhook(webhook_id=each) for each in webhook_ids])
        fact = AppFact(meta=Meta(epoch=epoch), team_webhooks=webhooks)
        return NewRecord("apps", 0, team_webhooks_key("t"), fact.SerializeToString())

    def announced(epoch: int) -> NewRecord:
        return NewRecord("apps", 0, b"epoch/%d" % epoch, AppFact(meta=Meta(epoch=epoch)).SerializeToString())

    first = next_epoch(0)
    second = next_epoch(first)
    await log.append([announced(first), of_team(first, "a")])
    async with RunningDirectory(log) as apps:
        await log.append([announced(second), of_team(first, "b")])
        await apps.refresh()
        assert [webhook.webhook_id for webhook in apps.webhooks_of_team("t")] == ["a"]
        assert apps.refused == {team_webhooks_key("t")}
        valid = apps.valid(team_webhooks_key("t"))
        assert valid is not None
        assert valid.team_webhooks.webhooks[0].webhook_id == "a"
        assert not apps.webhooks_of_team("u")


async def test_the_latest_day_of_a_reached_quota_is_known(log: GatedLog) -> None:
    def reached(quota: str, day: str) -> NewRecord:
        fact = AppFact(quota_reached=QuotaReached(appkey="1", quota=quota, limit=5, day=day))
        return NewRecord("apps", 0, quota_key("1", quota), fact.SerializeToString())

    await log.append([reached("devices", "2027-01-14"), reached("devices", "2027-01-15")])
    async with RunningDirectory(log) as apps:
        assert apps.quota_reached_on("1", "devices") == "2027-01-15"
        assert apps.quota_reached_on("1", "requests_per_s") == apps.quota_reached_on("2", "devices") == ""
        valid = apps.valid(quota_key("1", "devices"))
        assert valid is not None
        assert valid.quota_reached.day == "2027-01-15"


async def test_a_directory_on_an_empty_log_is_ready_at_once_and_follows_it(log: GatedLog) -> None:
    async with RunningDirectory(log) as apps:
        await log.append([new_record("1")])
        await apps.refresh()
        assert apps.get("1") is not None


async def test_a_refresh_that_began_too_early_is_not_shared(log: GatedLog) -> None:
    """A caller that refreshes after an app was created must find it, also while an earlier refresh is in progress."""
    log.read_gate.clear()
    async with RunningDirectory(log) as apps:
        log.ends_gate.clear()
        log.asked.clear()
        early = asyncio.create_task(apps.refresh())
        await asyncio.wait_for(log.asked.wait(), BOUND_S)
        await log.append([new_record("1")])
        late = asyncio.create_task(apps.refresh())
        await asyncio.sleep(0)
        log.ends_gate.set()
        await asyncio.wait_for(early, BOUND_S)
        assert not late.done()
        log.read_gate.set()
        await asyncio.wait_for(late, BOUND_S)
        assert apps.get("1") is not None


async def test_many_callers_share_the_next_refresh(log: GatedLog) -> None:
    async with RunningDirectory(log) as apps:
        log.ends_gate.clear()
        before = log.questions
        log.asked.clear()
        first = asyncio.create_task(apps.refresh())
        await asyncio.wait_for(log.asked.wait(), BOUND_S)
        others = [asyncio.create_task(apps.refresh()) for _ in range(100)]
        await asyncio.sleep(0)
        log.ends_gate.set()
        await asyncio.wait_for(asyncio.gather(first, *others), BOUND_S)
        assert log.questions == before + 2


async def test_a_refresh_says_whether_the_directory_is_up_to_date(
    log: GatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "_REFRESH_S", 0.01)
    log.read_gate.clear()
    async with RunningDirectory(log) as apps:
        log.ends_gate.clear()
        await log.append([new_record("1")])
        assert not await apps.refresh(), "the log does not answer"
        log.ends_gate.set()
        assert not await apps.refresh(), "the log answers, and its records do not come"
        monkeypatch.setattr(partition_reader, "_REFRESH_S", BOUND_S)
        log.read_gate.set()
        assert await apps.refresh()
        assert apps.get("1") is not None


async def test_a_cancelled_caller_does_not_cancel_the_refresh_of_others(log: GatedLog) -> None:
    async with RunningDirectory(log) as apps:
        log.ends_gate.clear()
        waiting = [asyncio.create_task(apps.refresh()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        log.ends_gate.set()
        await asyncio.wait_for(waiting[1], BOUND_S)


async def test_a_log_that_is_unavailable_for_a_moment_does_not_end_the_directory(tmp_path: Path) -> None:
    log = GatedLog(tmp_path / "log.sqlite", fails=True)
    await log.append([new_record("1")])
    async with RunningDirectory(log) as apps:
        assert apps.get("1") is not None
    await log.close()


async def test_a_record_that_cannot_be_decoded_is_skipped_and_logged(log: GatedLog) -> None:
    unreadable = AppFact(revocations=Revocations(appkey="1", numbers=b"canary")).SerializeToString()
    await log.append(
        [new_record("1"), NewRecord("apps", 0, b"x", b"\xff canary"), NewRecord("apps", 0, b"y", b""), new_record("2")]
    )
    await log.append([NewRecord("apps", 0, b"z", unreadable)])
    with capture_logs() as logs:
        async with RunningDirectory(log) as apps:
            assert [app.appkey for app in apps.all()] == ["1", "2"]
    event = "a record of the log could not be applied and is left out"
    assert [(line["event"].partition(":")[0], line["offset"]) for line in logs] == [(event, 1), (event, 4)]
    assert "canary" not in str(logs)
