"""`carillon archive`: old records leave Kafka, and are read from the archive as if Kafka had them."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from carillon.main import main
from services.domain.role_context import open_log
from services.domain.settings import Settings
from services.log.archive.archiver import DAY_MS
from services.log.archive.directory import ArchiveDirectory
from services.log.archive.log import ArchivedLog
from services.log.port import TrimmedError
from services.process.clock import SystemClock
from testkit.installation.object_store import BUCKET, SECRET, object_store
from testkit.kafka.broker import KafkaBroker
from tests.contract.log.conftest import PARTITIONS, Connect
from tests.contract.log.reading import P0, P1, read_count, read_to_end
from tests.contract.log.test_archive import fact


async def carillon(**env: object) -> Result:
    settings = {f"CARILLON_{name}": str(value) for name, value in env.items()}
    runner = CliRunner(env={"CARILLON_PARTITIONS": str(PARTITIONS), **settings})
    return await asyncio.to_thread(runner.invoke, main, ["archive", "--json"])


@pytest.mark.kafka
async def test_old_records_leave_kafka_and_are_read_from_the_archive(
    connect: Connect, empty_broker: KafkaBroker, tmp_path: Path
) -> None:
    now_ms = SystemClock().now_ms()
    live = await connect()
    log = ArchivedLog(live, ArchiveDirectory(tmp_path))
    await log.append([fact(number, now_ms - 40 * DAY_MS) for number in range(1200)])
    await log.append([fact(number, now_ms - 30 * DAY_MS) for number in range(100)])
    all_records = await read_to_end(log, {P0: 0})
    behind = await log.open({P0: 0})
    assert await read_count(behind, 10, 10) == all_records[:10]

    done = await carillon(KAFKA_BOOTSTRAP=empty_broker.bootstrap, KAFKA_ARCHIVE_DIR=tmp_path)
    assert (done.exit_code, json.loads(done.output)["records"]) == (0, 1200)
    assert await live.begins([P0, P1]) == {P0: 1200, P1: 0}
    with pytest.raises(TrimmedError):
        await live.open({P0: 1199})
    for start in (0, 1199, 1200):
        assert await read_to_end(log, {P0: start}) == all_records[start:]
    assert await read_count(behind, 1290) == all_records[10:]
    again = await carillon(KAFKA_BOOTSTRAP=empty_broker.bootstrap, KAFKA_ARCHIVE_DIR=tmp_path)
    assert (again.exit_code, json.loads(again.output)["records"]) == (0, 0)

    (tmp_path / "elsewhere").mkdir()
    unmounted = await carillon(KAFKA_BOOTSTRAP=empty_broker.bootstrap, KAFKA_ARCHIVE_DIR=tmp_path / "elsewhere")
    assert (unmounted.exit_code, "is it mounted?" in unmounted.stderr) == (1, True)


@pytest.mark.long
@pytest.mark.kafka
async def test_old_records_go_to_a_bucket(
    connect: Connect, empty_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = SystemClock().now_ms()
    live = await connect()
    await live.append([fact(number, now_ms - 40 * DAY_MS) for number in range(1200)])
    await live.append([fact(number, now_ms - 30 * DAY_MS) for number in range(100)])
    all_records = await read_to_end(live, {P0: 0})
    url = f"s3://{BUCKET}/log"
    with object_store() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        done = await carillon(KAFKA_BOOTSTRAP=empty_broker.bootstrap, KAFKA_ARCHIVE_URL=url)
        assert (done.exit_code, json.loads(done.output)) == (0, {"url": url, "records": 1200})
        settings = Settings(kafka_bootstrap=empty_broker.bootstrap, kafka_archive_url=url, partitions=PARTITIONS)
        log = await open_log(settings)
        try:
            assert await live.begins([P0]) == {P0: 1200}
            assert await read_to_end(log, {P0: 0}) == all_records
        finally:
            await log.close()
    away = await carillon(KAFKA_BOOTSTRAP=empty_broker.bootstrap, KAFKA_ARCHIVE_URL=url)
    assert (away.exit_code, f"the archive {url} does not work" in away.stderr) == (1, True)
    assert SECRET not in away.output


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({}, "moves its old records into the archive by itself"),
        ({"KAFKA_BOOTSTRAP": "127.0.0.1:1"}, "set CARILLON_KAFKA_ARCHIVE_DIR or CARILLON_KAFKA_ARCHIVE_URL, for this"),
        ({"KAFKA_ARCHIVE_URL": "s3://bucket/p"}, "KAFKA_BOOTSTRAP is not: the embedded log has its archive at data"),
        ({"KAFKA_BOOTSTRAP": "127.0.0.1:1", "KAFKA_ARCHIVE_URL": "s3://k:secret@bucket"}, "use s3://BUCKET/PREFIX"),
        (
            {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "KAFKA_ARCHIVE_DIR": ".", "KAFKA_ARCHIVE_URL": "s3://bucket"},
            "CARILLON_KAFKA_ARCHIVE_DIR and CARILLON_KAFKA_ARCHIVE_URL are set, but a log has one archive",
        ),
        ({"KAFKA_ARCHIVE_DIR": "."}, "KAFKA_BOOTSTRAP is not: the embedded log has its archive at data/log/archive"),
        ({"KAFKA_BOOTSTRAP": "127.0.0.1:1", "KAFKA_ARCHIVE_DIR": "/none"}, "which is no directory here"),
    ],
)
async def test_what_cannot_be_archived_is_refused(env: dict[str, str], why: str) -> None:
    refused = await carillon(**env)
    assert (refused.exit_code, why in refused.stderr) == (1, True), refused.stderr
