"""Dead letters: records that cannot be decoded or applied are stored with their position, and reading continues."""

import base64
import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from google.protobuf.message import DecodeError

from services.errors import CarillonError
from services.log.port import Partition, Record
from services.process.logs import logger
from services.process.metrics import DEAD_LETTERS
from services.replica.sqlite_store import SqliteStore
from services.replica.store import Fact

Position: TypeAlias = tuple[str, int, int]

UNUSABLE = (DecodeError, ValueError, OverflowError, LookupError, sqlite3.IntegrityError)
"""Errors of decoding or applying a record that no writer of this service has written: with a number that no column or
bitmap takes, a partition that does not exist, a name that another row has."""


class TooManyDeadLettersError(CarillonError):
    """The limit of dead letters is reached; the reader stops."""


class DeadLetters:
    """Appends dead letters to a file of JSON lines; `limit` of them in one run raise TooManyDeadLettersError.

    A record that is in the file already is neither counted nor written again. So the start after that error passes
    the records that the operator has seen, even if all of them are in one batch.
    """

    def __init__(self, path: Path, role: str, limit: int = 100) -> None:
        self._path = path
        self._role = role
        self._limit = limit
        self._count = 0
        self._known: set[Position] | None = None

    def add(self, record: Record, error: Exception) -> None:
        if self._known is None:
            self._known = _stored(self._path)
        if (at := (record.topic, record.partition, record.offset)) in self._known:
            return
        self._known.add(at)
        self._count += 1
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        line = {**position, "error": str(error), "value": base64.b64encode(record.value).decode()}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            if file.tell() and not self._ends_whole(file):
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")
        DEAD_LETTERS.labels(self._role).inc()
        logger.error("record dead-lettered", role=self._role, error=str(error), **position)
        if self._count >= self._limit:
            raise TooManyDeadLettersError(
                f"{self._role} stopped: {self._count} records could not be processed; they are in {self._path}."
                " Look at their errors, repair the writer or upgrade this role, then start it again: it goes on behind"
                " them, and stops again after as many others"
            )

    @staticmethod
    def _ends_whole(file: IO[bytes]) -> bool:
        """Return whether the last line is complete: a kill may have cut it off."""
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def leave_out(reader: str, record: Record, error: Exception) -> None:
    """Count and log a record that a reader without a file of dead letters leaves out, because it keeps no state."""
    DEAD_LETTERS.labels(reader).inc()
    logger.error(
        "a record of the log could not be applied and is left out: it is damaged, a newer version wrote it, to which"
        " this process must be upgraded, or it is forged",
        role=reader,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        error=str(error),
    )


def _stored(path: Path) -> set[Position]:
    """Return the positions of the dead letters in the file; a line that a kill has cut off is left out."""
    found: set[Position] = set()
    if path.exists():
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, KeyError):
                letter = json.loads(line)
                found.add((letter["topic"], letter["partition"], letter["offset"]))
    return found


# Repairs compacted topics: compaction keeps the last record of a key, even one that every reader refuses.
#
# Compaction may remove the valid record of a key because a former owner's record follows it, which every reader
# refuses. So the owner writes the valid record again behind the refused one.


class RefusedKeys:
    """The keys of own partitions whose latest record was refused, stored with the state that was folded meanwhile.

    They are those with which the records were written; sealed records are stored under other ones.
    All methods are called in the follower's thread, those that change the keys inside its transaction.
    """

    def __init__(self, store: SqliteStore, valid: Callable[[Partition, bytes], Fact | None]) -> None:
        """`valid` returns the fact of the key's present state, with an event id and a time; None if there is none."""
        self._store = store
        self._valid = valid
        self._keys = store.refused()

    def note(self, partition: Partition, key: bytes, *, refused: bool) -> None:
        """Note whether the latest record of the key is refused."""
        if refused != ((partition, key) in self._keys):
            self._store.set_refused(partition, key, refused=refused)
            self._keys.symmetric_difference_update({(partition, key)})

    def reload(self) -> None:
        """Return to the stored keys, after the transaction was rolled back."""
        self._keys = self._store.refused()

    @property
    def waiting(self) -> bool:
        """Whether there are records to write again."""
        return bool(self._keys)

    def facts(self) -> Sequence[Fact]:
        """Return the facts to write again, and note all keys as restored."""
        found = [self._valid(partition, key) for partition, key in sorted(self._keys)]
        for partition, key in list(self._keys):
            self.note(partition, key, refused=False)
        return [fact for fact in found if fact is not None]
