"""The archive in an S3-compatible store: it is read as a directory is, and its failures are named without secrets."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import ConflictError, UnavailableError
from services.log.archive.bucket import ArchiveBucket
from services.log.archive.log import ArchivedLog
from services.log.archive.store import SegmentName
from testkit.installation.object_store import BUCKET, SECRET, object_store
from tests.contract.log.reading import P0, P1, read_to_end
from tests.contract.log.test_archive import Disk, filled

URL = f"s3://{BUCKET}/carillon/log"
SEGMENT = SegmentName(0, 10, "0" * 32)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with object_store() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("store")
async def test_old_records_are_read_from_the_bucket(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.archive = ArchiveBucket(URL)
    log, all_records = await filled(disk)
    assert await disk.archiver(log).archive_old() == 2000
    assert await log.live.begins([P0]) == {P0: 2000}
    assert disk.files() == []
    disk.archive = ArchiveBucket(URL)  # as another process has it
    other = disk.open(read_only=True)
    assert len(disk.archive.names(P0)) > 2
    assert await other.begins([P0, P1]) == {P0: 0, P1: 0}
    for start in (0, 1234, 2000):
        assert await read_to_end(other, {P0: start}) == all_records[start:]
    assert await disk.archiver(other).archive_old() == 0
    for opened in disk.opened:
        await opened.close()


@pytest.mark.usefixtures("store")
def test_names_are_those_of_the_partition_and_new_ones_are_found() -> None:
    writer, reader = ArchiveBucket(URL), ArchiveBucket(URL)
    names = [SegmentName(first, first + 10, "a" * 32) for first in range(0, 50, 10)]
    assert reader.names(P0) == []
    for known in range(0, 5, 2):
        for name in names[known : known + 2]:
            writer.write(P0, name, b"content")
            writer.write(P1, name, b"other")
        assert reader.names(P0) == names[: known + 2]
    assert reader.read(P0, names[4]) == b"content"
    assert ArchiveBucket(URL).names(P0) == names


@pytest.mark.usefixtures("store")
def test_a_segment_before_known_ones_is_found_when_all_are_listed() -> None:
    writer, reader = ArchiveBucket(URL), ArchiveBucket(URL)
    known, late = SegmentName(50, 60, "a" * 32), SegmentName(0, 200, "a" * 32)
    writer.write(P0, known, b"content")
    assert reader.names(P0) == [known]
    writer.write(P0, late, b"content")
    assert reader.names(P0) == [known]
    assert reader.names(P0, anew=True) == [late, known] == reader.names(P0)


@pytest.mark.usefixtures("store")
async def test_two_archivers_at_once_lose_no_record(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.archive = ArchiveBucket(URL)
    log, all_records = await filled(disk)
    other = ArchivedLog(log.live, ArchiveBucket(URL))
    archivers = [disk.archiver(log), disk.archiver(other, segment_bytes=7_000)]
    counts = await asyncio.gather(*(archiver.archive_old() for archiver in archivers))
    assert all(counts), "each has written segments"
    assert await log.live.begins([P0]) == {P0: 2000}
    reader = ArchivedLog(log.live, ArchiveBucket(URL))
    assert await reader.begins([P0]) == {P0: 0}
    for start in (0, 1234, 2000):
        assert await read_to_end(reader, {P0: start}) == all_records[start:]
    assert await disk.archiver(reader).archive_old() == 0
    for opened in disk.opened:
        await opened.close()


@pytest.mark.usefixtures("store")
def test_failures_say_what_is_wrong_and_no_secret() -> None:
    archive = ArchiveBucket(URL)
    with pytest.raises(ConflictError, match=rf"the archive {URL} has lost the segment {P0.topic}/0000/0+-0+10-0+"):
        archive.read(P0, SEGMENT)
    missing = ArchiveBucket("s3://nowhere")
    for call in (
        lambda: missing.names(P0),
        lambda: missing.write(P0, SEGMENT, b"content"),
    ):
        with pytest.raises(UnavailableError, match=r"the archive s3://nowhere does not work: .*NoSuchBucket") as raised:
            call()
        assert SECRET not in str(raised.value)


def test_a_store_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        archive = ArchiveBucket(URL)
        archive.write(P0, SEGMENT, b"content")
        assert archive.names(P0) == [SEGMENT]
    for call in (lambda: archive.names(P0), lambda: archive.read(P0, SEGMENT)):
        with pytest.raises(UnavailableError, match="does not work") as raised:
            call()
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(raised.value)
