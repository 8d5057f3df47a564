"""Copies of roles' states in the log's archive; a new machine starts from a copy instead of the first record.

A copy is equivalent to the state that a killed process left: the next process reads the log from its offsets on.
"""

import asyncio
import contextlib
import gzip
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from services.errors import ConflictError, UnavailableError
from services.log.archive.store import STATES_FOLDER, ArchiveStore
from services.log.identity import LOG_IDENTITY_FILE, noted_log_identity
from services.process.clock import Clock
from services.process.data_directory import RUNNING_LOCK
from services.process.durable import make_durable
from services.process.logs import logger
from services.process.metrics import STATE_COPY_FAILURES
from services.replica.membership import STATE_DIRECTORY_ID_FILE
from services.replica.replay import copy_state

LOOK_EVERY_MS = 3_600_000
_OF_THIS_MACHINE = {STATE_DIRECTORY_ID_FILE, RUNNING_LOCK}
_FAST = 1
_READ_BYTES = 1024 * 1024


class StateCopies:
    """The newest copy of one role instance's state: a tar file, compressed with gzip, named after the directory.

    Calls block, so they are made in a thread.
    """

    def __init__(self, archive: ArchiveStore, directory: Path, log_identity: str, name: str = "") -> None:
        """`name`: that of the file, where it is not named after the directory."""
        self._archive = archive
        self._directory = directory
        self._log_identity = log_identity
        self._name = name or f"{directory.name}.tar.gz"
        self._work = directory.with_name(f"{directory.name}.copying")

    @property
    def location(self) -> str:
        """The path or URL of the copy, for logs and errors."""
        return f"{self._archive.location}/{STATES_FOLDER}/{self._name}"

    def saved_ms(self) -> int | None:
        """Return the time in ms since 1970 at which the archive's copy was saved; None if it has none.

        UnavailableError: the archive does not work.
        """
        return self._archive.file_saved_ms(self._name)

    def save(self, look: Callable[[Path], None] = lambda copy: None) -> None:
        """Replace the copy in the archive by one of the state as it is now, also while the role changes it.

        `look` is called with the directory of the copy before it is packed.
        UnavailableError: the disk or the archive refuses it; the former copy stays.
        """
        with self._working() as work:
            copy, packed = work / "copy", work / self._name
            copy_state(self._directory, copy)
            look(copy)
            with tarfile.open(packed, "w:gz", compresslevel=_FAST) as tar:
                for path in sorted(copy.iterdir()):
                    if path.name not in _OF_THIS_MACHINE:
                        tar.add(path, path.name)
            shutil.rmtree(copy)
            self._archive.put_file(self._name, packed)

    def take(self) -> bool:
        """Fill the directory, if it has no state yet, from the archive's copy; return whether that was done.

        The file with the log's identity is moved last: after a kill before that, the next start does it all again. A
        copy that is of another log, or that cannot be read, is not used: the state is then built from the log.
        UnavailableError: the disk or the archive does not work.
        """
        shutil.rmtree(self._work, ignore_errors=True)  # a kill may have left it
        if noted_log_identity(self._directory) or self.saved_ms() is None:
            return False
        with self._working() as work:
            packed, unpacked = work / self._name, work / "state"
            try:
                self._archive.get_file(self._name, packed)
                _unpack(packed, unpacked)
            except (ConflictError, OSError, EOFError, tarfile.TarError, zlib.error) as error:
                logger.warning("the copy of a state is not used", location=self.location, error=str(error))
                return False
            if noted_log_identity(unpacked) != self._log_identity:
                logger.warning("the copy of a state is of another log and is not used", location=self.location)
                return False
            self._move(unpacked)
        return True

    @contextlib.contextmanager
    def _working(self) -> Iterator[Path]:
        """Make an empty directory beside the state, and remove it at the end. UnavailableError: the disk fails."""
        shutil.rmtree(self._work, ignore_errors=True)
        try:
            self._work.mkdir(parents=True)
            yield self._work
        except (OSError, sqlite3.Error) as error:
            raise UnavailableError(f"the state {self._directory} cannot be copied: {error}") from error
        finally:
            shutil.rmtree(self._work, ignore_errors=True)

    def _move(self, unpacked: Path) -> None:
        for path in unpacked.rglob("*"):
            make_durable(path)
        for path in sorted(unpacked.iterdir(), key=lambda path: path.name == LOG_IDENTITY_FILE):
            target = self._directory / path.name
            if target.is_dir():
                shutil.rmtree(target)
            path.rename(target)
            make_durable(self._directory)


def _unpack(packed: Path, target: Path) -> None:
    """Unpack a copy, and read it to its end: only there gzip compares its checksum with what was read."""
    with gzip.open(packed) as file:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            tar.extractall(target, filter="data")
        while file.read(_READ_BYTES):
            pass


class StateSaver:
    """Service that saves a copy of the state where the archive's is older than `every_ms`.

    Where several processes stand by for one shard, the first that finds the copy too old replaces it.
    """

    name = "state copies"

    def __init__(self, copies: StateCopies, clock: Clock, every_ms: int) -> None:
        self._copies = copies
        self._clock = clock
        self._every_ms = every_ms

    async def run(self, ready: asyncio.Event) -> None:
        """Look once an hour, first after an hour. Where the archive fails, the process goes on."""
        ready.set()
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + min(LOOK_EVERY_MS, self._every_ms))
            try:
                await self.save_if_old()
            except UnavailableError as error:
                STATE_COPY_FAILURES.inc()
                logger.error("the state was not copied to the archive; trying again later", error=str(error))

    async def save_if_old(self) -> bool:
        """Save a copy if the archive's is too old or missing; return whether that was done.

        UnavailableError: the disk or the archive refuses it.
        """
        saved_ms = await asyncio.to_thread(self._copies.saved_ms)
        if saved_ms is not None and saved_ms + self._every_ms > self._clock.now_ms():
            return False
        await asyncio.to_thread(self._copies.save)
        logger.info("the state was copied to the archive", location=self._copies.location)
        return True
