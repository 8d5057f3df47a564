"""Signed topics on a real log: what their owner has not signed changes nothing, for any reader."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from protos.registry.v1.apps_pb2 import App, AppFact, Revocations
from protos.runtime.v1.log_pb2 import Meta
from services.domain.apps import APPS_PARTITION, AppDirectory
from services.domain.ids import event_id
from services.domain.revocations import revocations_key
from services.domain.signed_log import SignedLog
from services.domain.signing_keys import derive_signing_key
from services.domain.topics import TOPICS
from services.log.port import NewRecord, Record
from services.log.sqlite.log import SqliteLog
from services.process.clock import ManualClock
from services.process.metrics import DEAD_LETTERS
from services.registry.app_epochs import AppEpochs
from services.replica.dead_letters import DeadLetters
from testkit.faults.crashing_log import records_of
from testkit.services import running_services

KEY = derive_signing_key(bytes(32), "registry")
NEXT_KEY = derive_signing_key(b"\1" * 32, "registry")
STRANGERS = derive_signing_key(bytes(32), "accounts")


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.sqlite", TOPICS)
    yield log
    await log.close()


class Readers:
    """Processes that have the public keys alone, each with the dead letters of one directory."""

    def __init__(self, log: SqliteLog, directory: Path) -> None:
        self.log = log
        self.file = directory / "dead-letters" / "signatures.jsonl"

    def reading(self, *keys: Ed25519PrivateKey) -> SignedLog:
        public = [key.public_key() for key in keys or (KEY,)]
        return SignedLog(self.log, {}, {"registry": public}, DeadLetters(self.file, "signatures").add)

    @contextlib.asynccontextmanager
    async def running(self, *keys: Ed25519PrivateKey) -> AsyncIterator[AppDirectory]:
        """Run a process that knows the apps."""
        directory = AppDirectory(self.reading(*keys))
        async with running_services([directory]):
            yield directory

    def refused(self) -> list[int]:
        """Return the offsets of the dead letters."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line)["offset"] for line in lines]


async def names(directory: AppDirectory) -> dict[str, str]:
    """Return the names of the apps by key, once all records are applied that are in the log now."""
    assert await directory.refresh()
    return {app.appkey: app.name for app in directory.all()}


@pytest.fixture
def readers(log: SqliteLog, tmp_path: Path) -> Readers:
    return Readers(log, tmp_path)


def owner(log: SqliteLog, key: Ed25519PrivateKey = KEY) -> SignedLog:
    return SignedLog(log, {"registry": key}, {}, lambda record, error: None)


def app(appkey: str, name: str = "app", epoch: int = 0) -> NewRecord:
    fact = AppFact(meta=Meta(event_id=event_id(), epoch=epoch), app=App(appkey=appkey, name=name))
    return NewRecord(*APPS_PARTITION, appkey.encode(), fact.SerializeToString())


async def stored(log: SqliteLog) -> Sequence[Record]:
    return await records_of(log, APPS_PARTITION)


async def test_what_the_owner_appends_is_read_as_it_was_with_the_bytes_of_the_signature_behind(
    log: SqliteLog, readers: Readers
) -> None:
    record = app("1")
    await owner(log).append([record])
    (found,) = await records_of(readers.reading(), APPS_PARTITION)
    assert found.value.startswith(record.value)
    assert len(found.value) == len(record.value) + 72
    async with readers.running() as directory:
        assert await names(directory) == {"1": "app"}
    assert readers.refused() == []


@pytest.mark.parametrize("forgery", ["unsigned", "stripped", "another key", "changed", "another owner", "two metas"])
async def test_a_record_without_its_owners_signature_changes_nothing_and_raises_the_alert(
    log: SqliteLog, readers: Readers, forgery: str
) -> None:
    """Each process notes it once; `apps` is compacted, so those that know the valid record write it again."""
    owners = owner(log)
    await owners.append([app("1"), app("2")])
    genuine = (await stored(log))[0]
    counted = DEAD_LETTERS.labels("signatures")._value
    before = counted.get()
    async with readers.running() as directory:
        if forgery == "another owner":
            await owner(log, STRANGERS).append([app("1", "forged")])
        else:
            value, key = {
                "unsigned": (app("1", "forged").value, b"1"),
                "stripped": (genuine.value[:-68], b"1"),
                "another key": (genuine.value, b"2"),
                "changed": (genuine.value.replace(b"app", b"oop"), b"1"),
                "two metas": (app("1", "forged").value + genuine.value[-68:], b"1"),
            }[forgery]
            await log.append([NewRecord(*APPS_PARTITION, key, value)])
        with capture_logs() as logs:
            assert await names(directory) == {"1": "app", "2": "app"}
        assert readers.refused() == [2]
        assert counted.get() - before == 1
        (line,) = [each for each in logs if each["event"] == "record dead-lettered"]
        assert (line["topic"], line["partition"], line["offset"]) == ("apps", 0, 2)
        assert directory.refused == {b"2" if forgery == "another key" else b"1"}
        await owners.append([app("1", "later"), app("2", "later")])
        assert await names(directory) == {"1": "later", "2": "later"}
        assert directory.refused == set()


async def test_the_registry_writes_the_valid_record_behind_a_forged_one_that_compaction_would_keep(
    log: SqliteLog, readers: Readers
) -> None:
    public = {"registry": [KEY.public_key()]}
    signed = SignedLog(log, {"registry": KEY}, public, lambda record, error: None)
    directory = AppDirectory(signed)
    epochs = AppEpochs(signed, directory, ManualClock(1), lambda: 5 << 24)
    revocations = Revocations(appkey="1", partition=3, below=7, reason="revoked")
    async with running_services([directory]):
        assert await epochs.begin()
        await signed.append([app("1", epoch=5 << 24)])
        revoked = NewRecord(
            *APPS_PARTITION, revocations_key(revocations), AppFact(revocations=revocations).SerializeToString()
        )
        await signed.append([revoked])
        assert await directory.refresh()
        repairing = asyncio.create_task(epochs.repair())
        await log.append([app("1", "forged"), revoked._replace(value=app("1").value)])
        async with asyncio.timeout(60):
            while (await log.ends([APPS_PARTITION]))[APPS_PARTITION] < 7 or directory.refused:
                await directory.refresh()
        repairing.cancel()
    async with readers.running() as fresh:
        assert await names(fresh) == {"1": "app"}
        assert fresh.is_revoked("1", 3, 6)


async def test_a_genuine_record_that_is_appended_once_more_takes_nothing_back(log: SqliteLog, readers: Readers) -> None:
    owners = owner(log)
    await owners.append([app("1", "leaked secret")])
    first = (await stored(log))[0]
    await owners.append([app("1", "rotated secret")])
    async with readers.running() as directory:
        await log.append([NewRecord(*APPS_PARTITION, first.key, first.value)])
        assert await names(directory) == {"1": "rotated secret"}
        assert directory.refused == {b"1"}  # compaction would keep it


async def test_records_from_before_the_first_signature_stay_and_later_ones_need_one(
    log: SqliteLog, readers: Readers
) -> None:
    await log.append([app("1", "old"), app("2", "old")])
    async with readers.running() as directory:
        assert await names(directory) == {"1": "old", "2": "old"}
        await owner(log).append([app("2", "signed")])
        await log.append([app("1", "forged")])
        assert await names(directory) == {"1": "old", "2": "signed"}
    assert readers.refused() == [3]


async def test_a_reader_that_starts_behind_the_first_signature_knows_that_there_is_one(
    log: SqliteLog, readers: Readers
) -> None:
    await log.append([app("1")])
    await owner(log).append([app("2")])
    await log.append([app("1", "forged"), app("1", "forged")])
    reader = await readers.reading().open({APPS_PARTITION: 3})
    assert [record.value for record in await reader.read()] == [b""]
    await reader.close()
    last = await readers.reading().last(APPS_PARTITION)
    assert last is not None
    assert last.value == b""


async def test_while_keys_change_records_of_both_are_valid(log: SqliteLog, readers: Readers) -> None:
    await owner(log).append([app("1")])
    await owner(log, NEXT_KEY).append([app("2")])
    async with readers.running(KEY, NEXT_KEY) as directory:
        assert await names(directory) == {"1": "app", "2": "app"}
    assert readers.refused() == []
    async with readers.running(KEY) as directory:
        assert await names(directory) == {"1": "app"}
    assert readers.refused() == [1]
